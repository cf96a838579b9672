"""Rounding as a parametrisation: what stands between a module and its quantised parameter.

Straight through: forward, each coordinate is its nearest codebook value; backward, its gradient
passes as if it were not rounded, and each codebook value gets the sum over its symbols. Gradual:
settled coordinates have their values, the others are seen as they are, and gradients are exact.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.compression.codebooks import (
    DROPPED_BITS,
    SHORT_STEPS,
    Quantised,
    listed_codebook,
    scaled_codebook,
)


class Rounding(nn.Module, ABC):
    """Coordinates to the values of a codebook.

    Attributes:
        gradual: Coordinates that are not settled are seen as they are, instead of rounded.
        settled: Which coordinates keep their symbol for good.
        kept: The symbols of those.
    """

    settled: Tensor
    kept: Tensor

    def __init__(self, dim: int, gradual: bool) -> None:
        super().__init__()
        self.gradual = gradual
        self.register_buffer("settled", torch.zeros(dim, dtype=torch.bool))
        self.register_buffer("kept", torch.zeros(dim, dtype=torch.long))

    @abstractmethod
    def codebook(self) -> Float[Tensor, " levels"]:
        """Return the values as a message holds them, with gradients to what is trained."""

    @abstractmethod
    def spacing(self) -> Float[Tensor, ""]:
        """Return the distance of neighbouring values, the unit of soft assignments."""

    @abstractmethod
    def nearest(self, original: Float[Tensor, " dim"]) -> Int[Tensor, " dim"]:
        """Return the level of each coordinate, settled or not."""

    @abstractmethod
    def quantised(self, original: Float[Tensor, " dim"]) -> Quantised:
        """Return symbols and codebook as a message holds them."""

    def symbols(self, original: Float[Tensor, " dim"]) -> Int[Tensor, " dim"]:
        """Return the level of each coordinate; what is settled keeps its own."""
        return torch.where(self.settled, self.kept, self.nearest(original.detach()))

    def settle(self, original: Float[Tensor, " dim"], share: float) -> None:
        """Settle that share of all coordinates: those closest to their values first."""
        symbols = self.symbols(original)
        distances = (original.detach() - self.codebook().detach()[symbols]).abs()
        order = distances.masked_fill(self.settled, -1.0).argsort(stable=True)
        self.kept = symbols
        self.settled[order[: math.ceil(share * len(order))]] = True

    def forward(self, original: Float[Tensor, " dim"]) -> Float[Tensor, " dim"]:
        """Return the coordinates that the module sees."""
        values = self.codebook()[self.symbols(original)]
        if self.gradual:
            return torch.where(self.settled, values, original)
        return values + (original - original.detach())


class OneScale(Rounding):
    """Multiples of one trained step, from -largest to largest."""

    def __init__(
        self, dim: int, gradual: bool, *, step: float, largest: int, dead_zone: float
    ) -> None:
        super().__init__(dim, gradual)
        # Settling is exact for a given step; a moving one would move what is settled.
        self.step = nn.Parameter(torch.tensor(step), requires_grad=not gradual)
        self.largest = largest
        self.dead_zone = dead_zone

    def codebook(self) -> Float[Tensor, " levels"]:
        """Return the multiples of the nearest step that a message can hold."""
        multiples = torch.arange(-self.largest, self.largest + 1, device=self.step.device)
        return multiples * self.spacing()

    def spacing(self) -> Float[Tensor, ""]:
        """Return the step, rounded as in a message; its gradient passes through the rounding."""
        return self.step + (_short(self.step.detach()) - self.step.detach())

    def nearest(self, original: Float[Tensor, " dim"]) -> Int[Tensor, " dim"]:
        """Return the level of each coordinate; each bin begins later by the dead zone."""
        sizes = original.abs() / _short(self.step.detach()) + 0.5 - self.dead_zone
        return (sizes.floor().clamp(0, self.largest) * original.sign() + self.largest).long()

    def quantised(self, original: Float[Tensor, " dim"]) -> Quantised:
        """Return symbols and the one-scale codebook."""
        codebook = scaled_codebook(float(_short(self.step.detach())), self.largest)
        return Quantised(_numpy_symbols(self.symbols(original)), codebook)


class Listed(Rounding):
    """Any trained values, rounded to float16."""

    def __init__(self, dim: int, gradual: bool, values: Float[np.ndarray, " levels"]) -> None:
        super().__init__(dim, gradual)
        start = torch.from_numpy(values.astype(np.float32))
        self.values = nn.Parameter(start, requires_grad=not gradual)

    def codebook(self) -> Float[Tensor, " levels"]:
        """Return the values, rounded to float16; their gradients pass through the rounding."""
        rounded = self.values.detach().half().float()
        return self.values + (rounded - self.values.detach())

    def nearest(self, original: Float[Tensor, " dim"]) -> Int[Tensor, " dim"]:
        """Return the level whose value is nearest to each coordinate."""
        return (original[:, None] - self.codebook().detach()).abs().argmin(dim=1)

    def spacing(self) -> Float[Tensor, ""]:
        """Return the mean distance of neighbouring values; 1 where all values are the same."""
        values = self.values.detach()
        distance = (values.max() - values.min()) / max(1, len(values) - 1)
        return torch.where(distance > 0, distance, 1.0)

    def quantised(self, original: Float[Tensor, " dim"]) -> Quantised:
        """Return symbols and the list of values."""
        codebook = listed_codebook(self.values.detach().cpu().numpy())
        return Quantised(_numpy_symbols(self.symbols(original)), codebook)


def _short(step: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the nearest step that a message can hold, as `short_step` does."""
    half = step.half().view(torch.int16).int()
    index = (half + (1 << DROPPED_BITS - 1)) >> DROPPED_BITS
    index = index.clamp(1, SHORT_STEPS - 1)
    return (index << DROPPED_BITS).to(torch.int16).view(torch.float16).float()


def _numpy_symbols(symbols: Int[Tensor, " dim"]) -> Int[np.ndarray, " dim"]:
    found: np.ndarray = symbols.cpu().numpy().astype(np.int32)
    return found
