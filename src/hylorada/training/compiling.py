"""Compiled blocks: fewer passes over memory on a GPU, for half a minute at the start."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from hylorada.models.anatomy import find_decoder


@contextmanager
def compiled_blocks(model: nn.Module, *, backend: str = "inductor") -> Iterator[None]:
    """Compile each block of a model inside the block of code.

    All blocks but the first share a compilation: they differ in their weights, and in their number,
    by which a position bias knows them. What lies between blocks, such as the generation of a
    subspace's factors, stays as it is.
    """
    blocks = find_decoder(model).layers
    for block in blocks:
        block.compile(backend=backend)
    try:
        # Else a graph would hold the number of its block, and serve no other.
        with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
            yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
