"""`fastfood`: Hadamard transforms and diagonals; unit columns, orthogonal on average."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hylorada.models.bits import BitStream
from hylorada.subspace.projection import Isometry, Projection


class Fastfood(Projection):
    """Blocks `S H G Π H B` of n = 2^k rows, n the first power of two that holds the coordinates.

    H is orthonormal with entries of one size, so `G Π H B` has columns of one length whatever G
    is, and S needs to be only a number: every column has exactly unit norm. (A random S, as in the
    original construction, would make rows look Gaussian and columns uneven.) The rows of a last,
    cut block are taken before its second H, for the same reason.
    """

    kind = "fastfood"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "Fastfood":
        """Return blocks of random signs, permutations and near-Gaussian diagonals."""
        size = 1 << (dim - 1).bit_length()
        blocks = -(-full // size)
        order = np.stack([stream.permutation(size) for _ in range(blocks)])
        inverse = np.argsort(order, axis=1)
        gains = stream.normal(blocks, size)
        cut = blocks * size - full
        if cut:
            gains[-1, size - cut :] = 0.0
        # Columns have squared norm |g|²/n summed over the blocks; fsum rounds alike everywhere.
        gains *= math.sqrt(size / math.fsum((gains**2).flatten().tolist()))
        arrays: dict[str, NDArray[Any]] = {
            "signs": stream.signs(blocks, size),
            "order": order.astype(np.int32),
            "inverse": inverse.astype(np.int32),
            "gains": gains.astype(np.float32),
        }
        return cls(full, dim, arrays)

    @property
    def whole_blocks(self) -> int:
        """The number of blocks that are not cut."""
        return self.full // self.tensors["gains"].shape[1]

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w."""
        stored = self.at(w.device)
        gains = stored["gains"].to(w.dtype)
        padded = torch.nn.functional.pad(w, (0, gains.shape[1] - self.dim))
        mixed = hadamard(stored["signs"].to(w.dtype) * padded)
        shuffled = gains * mixed.gather(1, stored["order"].long())
        last = shuffled[self.whole_blocks :]
        return torch.cat([hadamard(shuffled[: self.whole_blocks]), last]).flatten()[: self.full]

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta: the transforms are symmetric, the rest in reverse order."""
        stored = self.at(theta.device)
        gains = stored["gains"].to(theta.dtype)
        rows = torch.nn.functional.pad(theta, (0, gains.numel() - self.full)).view(gains.shape)
        last = rows[self.whole_blocks :]
        shuffled = gains * torch.cat([hadamard(rows[: self.whole_blocks]), last])
        mixed = hadamard(shuffled.gather(1, stored["inverse"].long()))
        return (mixed * stored["signs"].to(theta.dtype)).sum(dim=0)[: self.dim]


def hadamard(rows: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of each row; its length is a power of two.

    By butterflies, whose sums have one order on every device.
    """
    count, size = rows.shape
    stride = 1
    while stride < size:
        pairs = rows.reshape(count, size // (2 * stride), 2, stride)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)
        stride *= 2
    return rows.reshape(count, size) / math.sqrt(size)
