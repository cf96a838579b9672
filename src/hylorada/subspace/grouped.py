"""`grouped`: every parameter reads one coordinate. Exactly isometric, one gather, no products."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hylorada.models.bits import BitStream
from hylorada.subspace.projection import Projection


class Grouped(Projection):
    """Parameters in random groups of equal size, up to one; a group moves along one coordinate.

    A parameter in a group of n reads its coordinate times 1/√n, so columns are orthonormal and
    every coordinate has at least one parameter. The adjoint gathers each group side by side and
    sums, in the same order every time.
    """

    kind = "grouped"

    def __init__(self, index: NDArray[np.int64], dim: int) -> None:
        sizes = np.bincount(index, minlength=dim)
        # Coordinates with groups of one size side by side: each size is one sum over a matrix.
        by_size = np.argsort(sizes, kind="stable")
        place = np.empty(dim, dtype=np.int64)
        place[by_size] = np.arange(dim)
        order = np.argsort(place[index], kind="stable")
        arrays = {
            "index": index.astype(np.int32),
            "order": order.astype(np.int32),
            "place": place.astype(np.int32),
            "weight": (1.0 / np.sqrt(sizes)).astype(np.float32),
        }
        super().__init__(index.size, dim, arrays)
        edges = np.flatnonzero(np.diff(sizes[by_size], prepend=-1, append=-1))
        self.runs = [
            (int(stop - start), int(sizes[by_size[start]])) for start, stop in pairwise(edges)
        ]

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "Grouped":
        """Return a balanced random grouping."""
        index = np.empty(full, dtype=np.int64)
        index[stream.permutation(full)] = np.arange(full) % dim
        return cls(index, dim)

    @classmethod
    def side_by_side(cls, blocks: Sequence["Grouped"]) -> "Grouped":
        """Return the block-diagonal map of several groupings: again one gather."""
        starts = np.cumsum([0, *(block.dim for block in blocks)])
        parts = [
            block.tensors["index"].numpy().astype(np.int64) + start
            for block, start in zip(blocks, starts[:-1], strict=True)
        ]
        return cls(np.concatenate(parts), int(starts[-1]))

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w: one product a coordinate, then a gather."""
        stored = self.at(w.device)
        return (w * stored["weight"].to(w.dtype)).index_select(0, stored["index"])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta: a gather, then a sum within each group."""
        stored = self.at(theta.device)
        gathered = theta.index_select(0, stored["order"])
        pieces = gathered.split([count * size for count, size in self.runs])
        sums = [
            piece.view(count, size).sum(dim=1)
            for piece, (count, size) in zip(pieces, self.runs, strict=True)
        ]
        joined = sums[0] if len(sums) == 1 else torch.cat(sums)
        return joined.index_select(0, stored["place"]) * stored["weight"].to(theta.dtype)
