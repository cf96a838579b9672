"""`torch.compile` sees one graph, does not compile again for the next batch, and agrees.

The checks run in processes of their own, because the shape checks of the test suite wrap the
package in code that a compiler cannot follow.
"""

import shutil
import subprocess
import sys

import pytest

START = """
import sys
import torch
from torch._dynamo.utils import counters
from tests.families import CONFIGS, adapt, logits, tokens

for family in ("gpt2", "llama"):
    config = CONFIGS[family]()
    config.num_hidden_layers = int(sys.argv[1])
    CONFIGS[family] = lambda config=config: config
"""

CHECK = """
batches = [tokens(seed=seed) for seed in range(3)]
untouched = torch._dynamo.config.patch(error_on_recompile=True)

def gradients(network, trained, rows):
    found = network(input_ids=rows, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    return loss.detach(), *torch.autograd.grad(loss, trained)

def check(backend, family, changes, evaluated=True):
    torch._dynamo.reset()
    counters.clear()
    model = adapt(family, **changes).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
    gradients(compiled, trained, batches[0])
    assert counters["stats"]["unique_graphs"] == 1, (family, changes, counters["stats"])
    with untouched:
        for rows in batches:
            found, expected = (gradients(m, trained, rows) for m in (compiled, model))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    if not evaluated:
        return
    model.eval()
    logits(compiled, batches[0], use_cache=False)
    with untouched:
        for rows in batches:
            found, expected = (logits(m, rows, use_cache=False) for m in (compiled, model))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 2, (family, changes, counters["stats"])
"""

# Every kind of LoRA and of landmark once, and both kinds of layers.
CASES = """
check("aot_eager", "llama", {})
check("aot_eager", "gpt2", {"use_dora": True, "landmark_design": "learnable"})
check("aot_eager", "gpt2", {"share_factors": "A", "landmark_design": "per_layer"})
"""

# The squares of the frozen weights are remembered, and a graph cannot ask whether they still hold.
NEW_WEIGHTS = """
model = adapt("llama", use_dora=True)
logits(model, tokens())
with torch.no_grad():
    for _, layer in model.base_model.lora_layers("default"):
        layer.get_base_layer().weight.mul_(1.5)
compiled = torch.compile(model, fullgraph=True, backend="eager")
found = logits(compiled, tokens(), use_cache=False)
torch.testing.assert_close(found, logits(model, tokens()), atol=1e-4, rtol=1e-4)
"""


def run(*parts: str, layers: int) -> None:
    command = [sys.executable, "-c", "".join(parts), str(layers)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]


def test_training_is_one_graph_and_evaluation_another() -> None:
    run(START, CHECK, CASES, layers=2)  # the fewest that can share a factor


@pytest.mark.skipif(shutil.which("c++") is None, reason="the default compiler needs a C++ compiler")
def test_the_default_compiler_agrees() -> None:
    # Its training graph alone: both take it half a minute, and evaluation is a part of training.
    run(START, CHECK, 'check("inductor", "llama", {"use_dora": True}, evaluated=False)', layers=1)


def test_a_compiled_model_sees_base_weights_that_changed_before() -> None:
    run(START, NEW_WEIGHTS, layers=1)
