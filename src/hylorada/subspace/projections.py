"""What a projection is: a fixed matrix that turns a few coordinates into many parameters.

The kinds that ship follow below. One of your own subclasses `RandomProjection`, adds itself with
`@PROJECTIONS.add`, and is named in the entry point group `hylorada.projections`.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.registry import Registry
from hylorada.seeds import BitStream

# Coarse enough that the last bits of a matrix factorisation, which libraries round differently,
# do not change a fingerprint.
ROUNDING = 2**12
LARGEST_DENSE = 1 << 30  # four gigabytes of float32

Isometry = Literal["exact", "expected"]
Arrays = Mapping[str, NDArray[np.generic]]


class Projection(ABC):
    """A fixed matrix P of `full` rows and `dim` columns that is applied, never formed.

    Every implementation satisfies: `adjoint` is the transpose of `apply`; gradients flow through
    both; every column has unit norm in expectation, and `PᵀP = I` exactly or in expectation, as
    `isometry` says. Instances never change, so copies of a model share them.
    """

    full: int
    dim: int
    isometry: Isometry = "exact"

    def apply(self, w: Float[Tensor, " dim"]) -> Float[Tensor, " full"]:
        """Return P w."""
        if torch.compiler.is_compiling():  # a compiler differentiates the plain operations itself
            return self.multiply(w)
        return cast(Callable[..., Tensor], _Product.apply)(w, self, False)

    def adjoint(self, theta: Float[Tensor, " full"]) -> Float[Tensor, " dim"]:
        """Return Pᵀ theta."""
        if torch.compiler.is_compiling():
            return self.multiply_transposed(theta)
        return cast(Callable[..., Tensor], _Product.apply)(theta, self, True)

    @abstractmethod
    def multiply(self, w: Tensor) -> Tensor:
        """Return P w from plain operations."""

    @abstractmethod
    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta from plain operations."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash of the matrix: equal on every machine, device and library version."""

    def __deepcopy__(self, memo: dict[int, object]) -> "Projection":
        return self


class _Product(torch.autograd.Function):
    """P w or Pᵀ theta; the gradient of one is the other, cheaper than what autograd records."""

    @staticmethod
    def forward(ctx: Any, factor: Tensor, projection: Projection, transposed: bool) -> Tensor:
        ctx.projection, ctx.transposed = projection, transposed
        return (projection.multiply_transposed if transposed else projection.multiply)(factor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        onward = ctx.projection.apply if ctx.transposed else ctx.projection.adjoint
        return onward(gradient), None, None


class RandomProjection(Projection):
    """A projection drawn from a stream of random bits; its `tensors` stand for the matrix."""

    name: ClassVar[str]
    words: ClassVar[str]

    def __init__(self, full: int, dim: int, arrays: Arrays) -> None:
        self.full, self.dim = full, dim
        # On the CPU; `at` holds copies elsewhere.
        self.tensors = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
        self._places: dict[torch.device, dict[str, Tensor]] = {}

    @classmethod
    @abstractmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "RandomProjection":
        """Return a projection drawn from a stream of random bits."""

    @classmethod
    def joined(cls, blocks: Sequence["RandomProjection"]) -> Projection:
        """Return the block-diagonal map of projections of this kind."""
        return _Blocks(blocks)

    def fingerprint(self) -> str:
        """Return a hash of what stands for the matrix."""
        digest = hashlib.sha256(f"{self.name}/{self.full}/{self.dim}".encode())
        for name, tensor in sorted(self.tensors.items()):
            if tensor.is_floating_point():
                tensor = (tensor.double() * ROUNDING).round().to(torch.int64)
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def stored_values(self) -> int:
        """Return how many numbers stand for the matrix."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def at(self, device: torch.device) -> dict[str, Tensor]:
        """Return the stored tensors on a device; they are moved there once."""
        if device not in self._places:
            self._places[device] = {name: t.to(device) for name, t in self.tensors.items()}
        return self._places[device]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_places": {}}


class _Blocks(Projection):
    """Projections side by side: each moves its own parameters by its own coordinates."""

    def __init__(self, blocks: Sequence[Projection]) -> None:
        self.full, self.dim = sum(b.full for b in blocks), sum(b.dim for b in blocks)
        self.blocks = tuple(blocks)
        if any(block.isometry == "expected" for block in blocks):
            self.isometry = "expected"

    def multiply(self, w: Tensor) -> Tensor:
        pairs = zip(self.blocks, w.split([block.dim for block in self.blocks]), strict=True)
        return torch.cat([block.multiply(part) for block, part in pairs])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        pairs = zip(self.blocks, theta.split([block.full for block in self.blocks]), strict=True)
        return torch.cat([block.multiply_transposed(part) for block, part in pairs])

    def fingerprint(self) -> str:
        joined = "/".join(block.fingerprint() for block in self.blocks)
        return hashlib.sha256(joined.encode()).hexdigest()[:16]


PROJECTIONS: Registry[type[RandomProjection]] = Registry("projection", "hylorada.projections")


def build_projection(
    kind: str, full: int, dim: int, *, seed: int, name: str, factor: str
) -> RandomProjection:
    """Return a projection of a registered kind; each seed, name and factor has its own stream."""
    known = PROJECTIONS[kind]
    if dim < 1:
        raise SpecError(f"a projection needs at least one coordinate; got {dim}")
    if dim > full:
        raise SpecError(
            f"coordinates must not exceed the {full} parameters they move; got {dim}; "
            "lower intrinsic_dim, or adapt more modules"
        )
    return known.draw(full, dim, BitStream(seed, "projection", kind, name, factor))


@PROJECTIONS.add
class _Dense(RandomProjection):
    """Independent entries of variance 1/full: isometric in expectation, full x dim memory."""

    name = "dense"
    words = "independent Gaussian entries; the reference, full × dim memory"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "_Dense":
        if full * dim > LARGEST_DENSE:
            raise SpecError(
                f"a dense projection may hold {LARGEST_DENSE} entries; got {full} x {dim}; "
                "use projection='grouped'"
            )
        entries = stream.normal(full, dim) / math.sqrt(full)
        return cls(full, dim, {"matrix": entries.astype(np.float32)})

    def multiply(self, w: Tensor) -> Tensor:
        return self.at(w.device)["matrix"].to(w.dtype) @ w

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        return theta @ self.at(theta.device)["matrix"].to(theta.dtype)


@PROJECTIONS.add
class _Sparse(RandomProjection):
    """√full entries of random sign in each column: unit columns, orthogonal on average.

    A column has one entry in each of √full equal strata of the rows, so no two coincide.
    """

    name = "sparse"
    words = "√full signs in each column"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "_Sparse":
        count = max(1, math.isqrt(full))
        edges = np.arange(count + 1, dtype=np.int64) * full // count
        widths = np.broadcast_to(np.diff(edges), (dim, count))
        rows = edges[:-1] + stream.below(widths)
        signs = stream.signs(dim, count)
        return cls(full, dim, {"rows": rows.astype(np.int32), "signs": signs})

    def multiply(self, w: Tensor) -> Tensor:
        rows, signs = self.at(w.device).values()
        values = (signs.to(w.dtype) / math.sqrt(rows.shape[1])) * w[:, None]
        return w.new_zeros(self.full).index_add_(0, rows.flatten(), values.flatten())

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        rows, signs = self.at(theta.device).values()
        read = theta.index_select(0, rows.flatten()).view(rows.shape)
        return (read * (signs.to(theta.dtype) / math.sqrt(rows.shape[1]))).sum(dim=1)


@PROJECTIONS.add
class _KroneckerQR(RandomProjection):
    """`Π (Q1 ⊗ Q2 ⊕ E)`: the first k² coordinates, as a matrix W, become `Q1 W Q2ᵀ`.

    Q1, Q2 and E have orthonormal columns, E carries the coordinates that are left over, and the
    block is kept small enough that E has a row for each of them.
    """

    name = "kron_qr"
    words = "orthonormal Kronecker product, as in the published code"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "_KroneckerQR":
        inner = math.isqrt(dim)
        left_over = dim - inner**2
        outer = math.isqrt(full - left_over)
        shapes = {"first": (outer, inner), "second": (outer, inner)}
        arrays: dict[str, NDArray[np.generic]] = {}
        for name, shape in (shapes | {"rest": (full - outer**2, left_over)}).items():
            factor, triangle = np.linalg.qr(stream.normal(*shape))
            signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)  # a positive diagonal of R
            arrays[name] = (factor * signs).astype(np.float32)
        arrays["order"] = stream.permutation(full).astype(np.int32)
        arrays["inverse"] = np.argsort(arrays["order"]).astype(np.int32)
        return cls(full, dim, arrays)

    def multiply(self, w: Tensor) -> Tensor:
        stored = self.at(w.device)
        first, second, rest = (stored[n].to(w.dtype) for n in ("first", "second", "rest"))
        inner = first.shape[1]
        block = first @ w[: inner**2].view(inner, inner) @ second.t()
        whole = torch.cat([block.flatten(), rest @ w[inner**2 :]])
        return whole.index_select(0, stored["order"])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        stored = self.at(theta.device)
        first, second, rest = (stored[n].to(theta.dtype) for n in ("first", "second", "rest"))
        outer = first.shape[0]
        whole = theta.index_select(0, stored["inverse"])
        block = first.t() @ whole[: outer**2].view(outer, outer) @ second
        return torch.cat([block.flatten(), whole[outer**2 :] @ rest])


@PROJECTIONS.add
class _Grouped(RandomProjection):
    """Parameters in random groups of equal size, up to one; a group moves along one coordinate.

    A parameter in a group of n reads its coordinate times 1/√n, so columns are orthonormal and
    every coordinate has at least one parameter. The adjoint gathers each group side by side and
    sums, in the same order every time.
    """

    name = "grouped"
    words = "each parameter reads one coordinate: exactly isometric, one gather"

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
    def draw(cls, full: int, dim: int, stream: BitStream) -> "_Grouped":
        index = np.empty(full, dtype=np.int64)
        index[stream.permutation(full)] = np.arange(full) % dim
        return cls(index, dim)

    @classmethod
    def joined(cls, blocks: Sequence[RandomProjection]) -> "_Grouped":
        starts = np.cumsum([0, *(block.dim for block in blocks)])
        parts = [
            block.tensors["index"].numpy().astype(np.int64) + start
            for block, start in zip(blocks, starts[:-1], strict=True)
        ]
        return cls(np.concatenate(parts), int(starts[-1]))

    def multiply(self, w: Tensor) -> Tensor:
        stored = self.at(w.device)
        return (w * stored["weight"].to(w.dtype)).index_select(0, stored["index"])

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        stored = self.at(theta.device)
        gathered = theta.index_select(0, stored["order"])
        pieces = gathered.split([count * size for count, size in self.runs])
        sums = [
            piece.view(count, size).sum(dim=1)
            for piece, (count, size) in zip(pieces, self.runs, strict=True)
        ]
        joined = sums[0] if len(sums) == 1 else torch.cat(sums)
        return joined.index_select(0, stored["place"]) * stored["weight"].to(theta.dtype)


@PROJECTIONS.add
class _Fastfood(RandomProjection):
    """Blocks `S H G Π H B` of n = 2^k rows, n the first power of two that holds the coordinates.

    H is orthonormal with entries of one size, so `G Π H B` has columns of one length whatever G
    is, and S needs to be only a number: every column has exactly unit norm. (A random S, as in the
    original construction, would make rows look Gaussian and columns uneven.) The rows of a last,
    cut block are taken before its second H, for the same reason.
    """

    name = "fastfood"
    words = "Hadamard transforms and diagonals"
    isometry: Isometry = "expected"

    @classmethod
    def draw(cls, full: int, dim: int, stream: BitStream) -> "_Fastfood":
        size = 1 << (dim - 1).bit_length()
        blocks = -(-full // size)
        order = np.stack([stream.permutation(size) for _ in range(blocks)])
        gains = stream.normal(blocks, size)
        gains.reshape(-1)[full:] = 0.0
        # Columns have squared norm |g|²/n summed over the blocks; fsum rounds alike everywhere.
        gains *= math.sqrt(size / math.fsum((gains**2).flatten().tolist()))
        arrays: dict[str, NDArray[np.generic]] = {
            "signs": stream.signs(blocks, size),
            "order": order.astype(np.int32),
            "inverse": np.argsort(order, axis=1).astype(np.int32),
            "gains": gains.astype(np.float32),
        }
        return cls(full, dim, arrays)

    def multiply(self, w: Tensor) -> Tensor:
        stored = self.at(w.device)
        gains = stored["gains"].to(w.dtype)
        padded = torch.nn.functional.pad(w, (0, gains.shape[1] - self.dim))
        mixed = _hadamard(stored["signs"].to(w.dtype) * padded)
        shuffled = gains * mixed.gather(1, stored["order"].long())
        return self._all_but_the_cut(shuffled).flatten()[: self.full]

    def multiply_transposed(self, theta: Tensor) -> Tensor:
        # The transforms are symmetric, the rest in reverse order.
        stored = self.at(theta.device)
        gains = stored["gains"].to(theta.dtype)
        rows = torch.nn.functional.pad(theta, (0, gains.numel() - self.full)).view(gains.shape)
        shuffled = gains * self._all_but_the_cut(rows)
        mixed = _hadamard(shuffled.gather(1, stored["inverse"].long()))
        return (mixed * stored["signs"].to(theta.dtype)).sum(dim=0)[: self.dim]

    def _all_but_the_cut(self, rows: Tensor) -> Tensor:
        """Return the rows, transformed but for those of a last block that is cut."""
        whole = self.full // rows.shape[1]
        return torch.cat([_hadamard(rows[:whole]), rows[whole:]])


def _hadamard(rows: Tensor) -> Tensor:
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
