"""`dense` and `sparse`: matrices whose entries are stored, all of them or those that are not zero.

`dense` is the reference the others are tested against.
"""

import math

import numpy as np
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.models.bits import BitStream
from hylorada.subspace.projection import Isometry, Projection

LARGEST_DENSE = 1 << 30  # four gigabytes of float32


class Dense(Projection):
    """Independent entries of variance 1/full: isometric in expectation, full x dim memory."""

    kind = "dense"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "Dense":
        """Return a matrix of nearly Gaussian entries."""
        if full * dim > LARGEST_DENSE:
            raise SpecError(
                f"a dense projection may hold {LARGEST_DENSE} entries; got {full} x {dim}; "
                "use projection='grouped'"
            )
        entries = stream.normal(full, dim) / math.sqrt(full)
        return cls(full, dim, {"matrix": entries.astype(np.float32)})

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w."""
        return self.at(w.device)["matrix"].to(w.dtype) @ w

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta."""
        return theta @ self.at(theta.device)["matrix"].to(theta.dtype)


class Sparse(Projection):
    """√full entries of random sign in each column: unit columns, orthogonal on average.

    A column has one entry in each of √full equal strata of the rows, so no two coincide.
    """

    kind = "sparse"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "Sparse":
        """Return a matrix with random rows and signs."""
        count = max(1, math.isqrt(full))
        edges = np.arange(count + 1, dtype=np.int64) * full // count
        widths = np.broadcast_to(np.diff(edges), (dim, count))
        rows = edges[:-1] + stream.below(widths)
        signs = stream.signs(dim, count)
        return cls(full, dim, {"rows": rows.astype(np.int32), "signs": signs})

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w."""
        stored = self.at(w.device)
        rows, signs = stored["rows"], stored["signs"]
        values = (signs.to(w.dtype) / math.sqrt(rows.shape[1])) * w[:, None]
        return w.new_zeros(self.full).index_add_(0, rows.flatten(), values.flatten())

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta."""
        stored = self.at(theta.device)
        rows, signs = stored["rows"], stored["signs"]
        read = theta.index_select(0, rows.flatten()).view(rows.shape)
        return (read * (signs.to(theta.dtype) / math.sqrt(rows.shape[1]))).sum(dim=1)
