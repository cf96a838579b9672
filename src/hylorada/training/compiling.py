"""Compiled blocks: fewer passes over memory on a GPU, for half a minute at the start."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hylorada.models.anatomy import find_decoder


@contextmanager
def compiled_blocks(model: nn.Module, *, backend: str = "inductor") -> Iterator[None]:
    """Compile each block of a model inside the block of code.

    Blocks that differ in their weights alone share a compilation. A position bias tells them apart:
    each is then compiled for itself, as far as torch's `recompile_limit` goes. What lies between
    blocks, such as the generation of a subspace's factors, stays as it is.
    """
    blocks = find_decoder(model).layers
    for block in blocks:
        block.compile(backend=backend)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
