"""`torch.compile` sees one graph, does not compile again for the next batch, and agrees.

Each test runs in a process of its own, because the shape checks of the test suite wrap the package
in code that a compiler cannot follow.
"""

import shutil
import subprocess
import sys

import pytest

CHECK = """
import sys
import torch
from torch._dynamo.utils import counters
from tests.families import adapt, logits, tokens

backend, family, cases = sys.argv[1], sys.argv[2], eval(sys.argv[3])
batches = [tokens(seed=seed) for seed in range(3)]
untouched = torch._dynamo.config.patch(error_on_recompile=True)

def gradients(network, trained, rows):
    found = network(input_ids=rows, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    return loss.detach(), *torch.autograd.grad(loss, trained)

for changes in cases:
    torch._dynamo.reset()
    counters.clear()
    model = adapt(family, **changes).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    gradients(compiled, trained, batches[0])
    assert counters["stats"]["unique_graphs"] == 1, (changes, counters["stats"])
    with untouched:
        for rows in batches:
            found, expected = (gradients(m, trained, rows) for m in (compiled, model))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    model.eval()
    logits(compiled, batches[0], use_cache=False)
    with untouched:
        for rows in batches:
            found, expected = (logits(m, rows, use_cache=False) for m in (compiled, model))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 2, (changes, counters["stats"])
"""

# The squares of the frozen weights are remembered, and a graph cannot ask whether they still hold.
CHECK_NEW_WEIGHTS = """
import torch
from tests.families import adapt, logits, tokens

model = adapt("llama", use_dora=True).eval()
logits(model, tokens())
with torch.no_grad():
    for _, layer in model.base_model.lora_layers("default"):
        layer.get_base_layer().weight.mul_(1.5)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
found = logits(compiled, tokens(), use_cache=False)
torch.testing.assert_close(found, logits(model, tokens()), atol=1e-4, rtol=1e-4)
"""

CASES: list[dict[str, object]] = [
    {},
    {"use_dora": True, "landmark_design": "learnable"},
    {"share_factors": "A", "landmark_design": "per_layer"},
]


def check(script: str, *arguments: str) -> None:
    command = [sys.executable, "-c", script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_training_is_one_graph_and_evaluation_another(family: str) -> None:
    check(CHECK, "aot_eager", family, repr(CASES))


@pytest.mark.skipif(shutil.which("c++") is None, reason="the default compiler needs a C++ compiler")
def test_the_default_compiler_agrees() -> None:
    check(CHECK, "inductor", "llama", repr([{"use_dora": True}]))


def test_a_compiled_model_sees_base_weights_that_changed_before() -> None:
    check(CHECK_NEW_WEIGHTS)
