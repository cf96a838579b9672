"""Compiled blocks and loss train like the eager ones, and leave the model as it was.

In a process of its own, because the shape checks of the test suite wrap the package in code that a
compiler cannot follow. What is traced is then run as it is, instead of being written in C++.
"""

import subprocess
import sys

PROGRAM = """
from functools import partial
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from hylorada.training.trainer import compiled_blocks
from hylorada.training.loss import chunked_cross_entropy, chunked_loss
from tests.families import GATED, adapt, tokens, trainable

# More blocks than torch would compile for themselves.
base = LlamaForCausalLM(LlamaConfig(**GATED | {"num_hidden_layers": 10}))
model = adapt("llama", base=base, landmark_design="learnable").train()
blocks = base.model.layers

def gradients():
    model(input_ids=tokens(), labels=tokens()).loss.backward()
    found = [parameter.grad.clone() for parameter in trainable(model).values()]
    model.zero_grad()
    return found

with chunked_loss(model, chunk_tokens=7):
    expected = gradients()
    with compiled_blocks(model, backend="aot_eager"):
        assert all(block._compiled_call_impl is not None for block in blocks)
        torch.testing.assert_close(gradients(), expected, atol=1e-6, rtol=1e-4)
assert all(block._compiled_call_impl is None for block in blocks)

generator = torch.Generator().manual_seed(0)
states = torch.randn(2, 9, 4, generator=generator).bfloat16().requires_grad_()
labels = torch.randint(11, (2, 9), generator=generator)
labels[0, 3] = -100
weight = torch.randn(11, 4, generator=generator).bfloat16()

def loss_and_gradient(compiled):
    loss = chunked_cross_entropy(
        states, labels, lambda rows: rows @ weight.T, chunk_tokens=8, compiled=compiled
    )
    return loss, *torch.autograd.grad(loss, states)

torch.compile = partial(torch.compile, backend="aot_eager")
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
torch.testing.assert_close(loss_and_gradient(True), loss_and_gradient(False), atol=1e-3, rtol=1e-3)
assert graphs == 2, graphs  # the first block, whose inputs need no gradients, and all others
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > graphs
"""


def test_compiled_blocks_and_loss_give_the_gradients_of_the_eager_ones_and_are_undone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
