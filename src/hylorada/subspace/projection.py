"""What a projection is: a fixed linear map from few coordinates to many parameters."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

# Coarse enough that the last bits of a matrix factorisation, which libraries round differently,
# do not change a fingerprint.
ROUNDING = 2**12

Isometry = Literal["exact", "expected"]


class Projection(ABC):
    """A fixed matrix P of `full` rows and `dim` columns that is applied, never formed.

    Every implementation satisfies: `adjoint` is the transpose of `apply`; gradients flow through
    both; every column has unit norm in expectation, and `PᵀP = I` exactly or in expectation, as
    `isometry` says. Instances never change, so copies of a model share them.

    Attributes:
        full: Number of parameters.
        dim: Number of coordinates.
        isometry: Whether `PᵀP = I` holds "exact"ly, up to rounding, or "expected".
    """

    kind: str
    isometry: Isometry = "exact"

    def __init__(self, full: int, dim: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.full = full
        self.dim = dim
        self.tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()
        }
        self._places: dict[torch.device, dict[str, Tensor]] = {}

    def apply(self, w: Float[Tensor, " dim"]) -> Float[Tensor, " full"]:
        """Return P w."""
        if torch.compiler.is_compiling():  # a compiler differentiates the plain operations itself
            return self.multiply(w)
        return cast(Callable[..., Tensor], _Apply.apply)(w, self)

    def adjoint(self, theta: Float[Tensor, " full"]) -> Float[Tensor, " dim"]:
        """Return Pᵀ theta."""
        if torch.compiler.is_compiling():
            return self.multiply_transposed(theta)
        return cast(Callable[..., Tensor], _Adjoint.apply)(theta, self)

    @abstractmethod
    def multiply(self, w: Tensor) -> Tensor:
        """Return P w from plain operations."""

    @abstractmethod
    def multiply_transposed(self, theta: Tensor) -> Tensor:
        """Return Pᵀ theta from plain operations."""

    def fingerprint(self) -> str:
        """Return a hash of the matrix: equal on every machine, device and library version."""
        digest = hashlib.sha256(f"{self.kind}/{self.full}/{self.dim}".encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(name.encode())
            digest.update(_stable_bytes(tensor))
        return digest.hexdigest()[:16]

    def stored_values(self) -> int:
        """Return how many numbers stand for the matrix."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def at(self, device: torch.device) -> dict[str, Tensor]:
        """Return the stored tensors on a device; they are moved there once."""
        if device not in self._places:
            moved = {name: tensor.to(device) for name, tensor in self.tensors.items()}
            self._places[device] = moved
        return self._places[device]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Projection":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_places": {}}


class _Apply(torch.autograd.Function):
    """P w, whose gradient is the adjoint: cheaper than what autograd would record."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, projection: Projection) -> Tensor:
        ctx.projection = projection
        return projection.multiply(w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.projection.adjoint(gradient), None


class _Adjoint(torch.autograd.Function):
    """Pᵀ theta, whose gradient is P again."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, projection: Projection) -> Tensor:
        ctx.projection = projection
        return projection.multiply_transposed(theta)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.projection.apply(gradient), None


def _stable_bytes(tensor: Tensor) -> bytes:
    if tensor.is_floating_point():
        tensor = (tensor.double() * ROUNDING).round().to(torch.int64)
    return tensor.cpu().contiguous().numpy().tobytes()
