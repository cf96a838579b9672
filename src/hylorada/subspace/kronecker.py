"""`kron_qr`: a Kronecker product of orthonormal factors, the rows shuffled. Exactly isometric."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hylorada.models.bits import BitStream
from hylorada.subspace.projection import Projection


class KroneckerQR(Projection):
    """`Π (Q1 ⊗ Q2 ⊕ E)`: the first k² coordinates, as a matrix W, become `Q1 W Q2ᵀ`.

    Q1, Q2 and E have orthonormal columns, E carries the coordinates that are left over, and the
    block is kept small enough that E has a row for each of them.
    """

    kind = "kron_qr"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "KroneckerQR":
        """Return a product of random factors."""
        inner = math.isqrt(dim)
        left_over = dim - inner**2
        outer = math.isqrt(full - left_over)
        arrays: dict[str, NDArray[np.float32] | NDArray[np.int32]] = {
            "first": _orthonormal(stream, outer, inner),
            "second": _orthonormal(stream, outer, inner),
            "rest": _orthonormal(stream, full - outer**2, left_over),
        }
        order = stream.permutation(full)
        inverse = np.empty_like(order)
        inverse[order] = np.arange(full)
        arrays |= {"order": order.astype(np.int32), "inverse": inverse.astype(np.int32)}
        return cls(full, dim, arrays)

    def multiply(self, w: Tensor) -> Tensor:
        """Return P w: two small matrix products and a gather."""
        stored = self.at(w.device)
        first, second, rest = (stored[n].to(w.dtype) for n in ("first", "second", "rest"))
        inner = first.shape[1]
        block = first @ w[: inner**2].view(inner, inner) @ second.t()
        whole = torch.cat([block.flatten(), rest @ w[inner**2 :]])
        return whole.index_select(0, stored["order"])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta."""
        stored = self.at(theta.device)
        first, second, rest = (stored[n].to(theta.dtype) for n in ("first", "second", "rest"))
        outer = first.shape[0]
        whole = theta.index_select(0, stored["inverse"])
        block = first.t() @ whole[: outer**2].view(outer, outer) @ second
        return torch.cat([block.flatten(), whole[outer**2 :] @ rest])


def _orthonormal(stream: BitStream, rows: int, columns: int) -> NDArray[np.float32]:
    """Return the Q factor of a random matrix, its signs fixed by a positive diagonal of R."""
    factor, triangle = np.linalg.qr(stream.normal(rows, columns))
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return (factor * signs).astype(np.float32)
