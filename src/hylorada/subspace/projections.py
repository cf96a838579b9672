"""The projections by name, and several of them side by side."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.models.bits import BitStream
from hylorada.names import require_one_of
from hylorada.subspace.explicit import Dense, Sparse
from hylorada.subspace.fastfood import Fastfood
from hylorada.subspace.grouped import Grouped
from hylorada.subspace.kronecker import KroneckerQR
from hylorada.subspace.projection import Projection

DRAWN: dict[str, type[Dense] | type[Sparse] | type[KroneckerQR] | type[Fastfood] | type[Grouped]]
DRAWN = {drawn.kind: drawn for drawn in (Dense, Sparse, KroneckerQR, Fastfood, Grouped)}
KINDS = tuple(DRAWN)


def build_projection(
    kind: str, full: int, dim: int, *, seed: int, name: str, factor: str
) -> Projection:
    """Return the projection of this kind for one set of parameters.

    Args:
        kind: One of `KINDS`.
        full: Number of parameters.
        dim: Number of coordinates, at most `full`.
        seed: The seed that all projections of a model share.
        name: The tensor or group of tensors; each has a stream of its own.
        factor: "A", "B" or another word for the side of the update.
    """
    require_one_of("projection", kind, KINDS)
    if dim < 1:
        raise SpecError(f"a projection needs at least one coordinate; got {dim}")
    if dim > full:
        raise SpecError(
            f"coordinates must not exceed the {full} parameters they move; got {dim}; "
            "lower intrinsic_dim, or adapt more modules"
        )
    return DRAWN[kind].draw(full, dim, BitStream(seed, "projection", kind, name, factor))


def side_by_side(blocks: Sequence[Projection]) -> Projection:
    """Return the block-diagonal map: each block moves its own parameters by its own coordinates."""
    if len(blocks) == 1:
        return blocks[0]
    groupings = [block for block in blocks if isinstance(block, Grouped)]
    return Grouped.side_by_side(groupings) if len(groupings) == len(blocks) else Blocks(blocks)


class Blocks(Projection):
    """Projections side by side."""

    kind = "blocks"

    def __init__(self, blocks: Sequence[Projection]) -> None:
        super().__init__(sum(b.full for b in blocks), sum(b.dim for b in blocks), {})
        self.blocks = tuple(blocks)
        if any(block.isometry == "expected" for block in blocks):
            self.isometry = "expected"

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w."""
        parts = w.split([block.dim for block in self.blocks])
        pairs = zip(self.blocks, parts, strict=True)
        return torch.cat([block.multiply(part) for block, part in pairs])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta."""
        parts = theta.split([block.full for block in self.blocks])
        pairs = zip(self.blocks, parts, strict=True)
        return torch.cat([block.multiply_transposed(part) for block, part in pairs])

    def fingerprint(self) -> str:
        """Return a hash of all blocks."""
        joined = "/".join(block.fingerprint() for block in self.blocks)
        return hashlib.sha256(joined.encode()).hexdigest()[:16]

    def stored_values(self) -> int:
        """Return how many numbers stand for the matrix."""
        return sum(block.stored_values() for block in self.blocks)
