"""Compiled blocks and loss train like the eager ones, and leave the model as it was.

In a process of its own, because the shape checks of the test suite wrap the package in code that a
compiler cannot follow.
"""

import shutil
import subprocess
import sys

import pytest

CHECK_BLOCKS = """
import torch
from hylorada.training.compiling import compiled_blocks
from hylorada.training.loss import chunked_loss
from tests.families import adapt, tokens, trainable

model = adapt("llama", landmark_design="learnable").train()

def gradients():
    with chunked_loss(model, chunk_tokens=7):
        model(input_ids=tokens(), labels=tokens()).loss.backward()
    found = [parameter.grad.clone() for parameter in trainable(model).values()]
    model.zero_grad()
    return found

expected = gradients()
blocks = model.base_model.model.model.layers
with compiled_blocks(model, backend="aot_eager"):
    assert all(block._compiled_call_impl is not None for block in blocks)
    torch.testing.assert_close(gradients(), expected, atol=1e-6, rtol=1e-4)
assert all(block._compiled_call_impl is None for block in blocks)
"""

CHECK_LOSS = """
import torch
from hylorada.training.loss import chunked_cross_entropy

generator = torch.Generator().manual_seed(0)
states = torch.randn(2, 9, 4, generator=generator).bfloat16().requires_grad_()
labels = torch.randint(11, (2, 9), generator=generator)
labels[0, 3] = -100
weight = torch.randn(11, 4, generator=generator).bfloat16()

def found(compiled):
    loss = chunked_cross_entropy(
        states, labels, lambda rows: rows @ weight.T, chunk_tokens=8, compiled=compiled
    )
    return loss, *torch.autograd.grad(loss, states)

torch.testing.assert_close(found(True), found(False), atol=1e-3, rtol=1e-3)
"""


def check(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_compiled_blocks_give_the_gradients_of_the_eager_model_and_are_undone() -> None:
    check(CHECK_BLOCKS)


@pytest.mark.skipif(shutil.which("c++") is None, reason="the default compiler needs a C++ compiler")
def test_a_compiled_loss_is_the_loss() -> None:
    check(CHECK_LOSS)
