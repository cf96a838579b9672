"""Quantisation-aware training: the loss sees the values that a message holds.

A parametrisation stands between a module and its parameter, so neither subspace modules nor PEFT
know of it.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hylorada.compression.message import QuantisedGates, quantise_gates
from hylorada.compression.quantise import (
    DEFAULT_LEVELS,
    DROPPED_BITS,
    SHORT_STEPS,
    Codebook,
    Quantised,
    fitted,
    kmeans,
    listed_codebook,
    require_dead_zone,
    require_levels,
    scaled_codebook,
)
from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.specs.run import CODEBOOKS

NAMES = ("vector", "subspace_params")


class _Rounding(nn.Module):
    """Coordinates to the values of a codebook: multiples of a trained step, or a trained list.

    Attributes:
        trained: The step or the list, before it is rounded as in a message.
        gradual: Coordinates that are not settled are seen as they are, instead of rounded.
        settled: Which coordinates keep their symbol for good.
        kept: The symbols of those.
    """

    settled: Tensor
    kept: Tensor

    def __init__(self, start: Codebook, dim: int, *, dead_zone: float, gradual: bool) -> None:
        super().__init__()
        self.is_scaled, self.largest = start.step is not None, start.levels // 2
        self.dead_zone, self.gradual = dead_zone, gradual
        first = torch.tensor(start.values if start.step is None else start.step)
        # Settling is exact for a given codebook; a moving one would move what is settled.
        self.trained = nn.Parameter(first, requires_grad=not gradual)
        self.register_buffer("settled", torch.zeros(dim, dtype=torch.bool))
        self.register_buffer("kept", torch.zeros(dim, dtype=torch.long))

    def held(self) -> Tensor:
        """Return step or list as a message holds it."""
        half = self.trained.detach().half()
        if self.is_scaled:  # as `short_step` does
            index = (half.view(torch.int16).int() + (1 << DROPPED_BITS - 1)) >> DROPPED_BITS
            index = index.clamp(1, SHORT_STEPS - 1)
            half = (index << DROPPED_BITS).to(torch.int16).view(torch.float16)
        return half.float()

    def codebook(self) -> Float[Tensor, " levels"]:
        # The gradient passes through the rounding.
        rounded = self.trained + (self.held() - self.trained.detach())
        if not self.is_scaled:
            return rounded
        return torch.arange(-self.largest, self.largest + 1, device=rounded.device) * rounded

    def spacing(self) -> Float[Tensor, ""]:
        """Return the distance of neighbouring values, the unit of soft assignments."""
        if self.is_scaled:
            return self.trained + (self.held() - self.trained.detach())
        # The mean distance of neighbours; 1 where all values are the same.
        values = self.trained.detach()
        distance = (values.max() - values.min()) / max(1, len(values) - 1)
        return torch.where(distance > 0, distance, 1.0)

    def symbols(self, original: Float[Tensor, " dim"]) -> Int[Tensor, " dim"]:
        """Return the level of each coordinate; what is settled keeps its own."""
        seen = original.detach()
        if self.is_scaled:
            sizes = (seen.abs() / self.held() + 0.5 - self.dead_zone).floor()
            nearest = (sizes.clamp(0, self.largest) * seen.sign() + self.largest).long()
        else:
            nearest = (seen[:, None] - self.held()).abs().argmin(dim=1)
        return torch.where(self.settled, self.kept, nearest)

    def forward(self, original: Float[Tensor, " dim"]) -> Float[Tensor, " dim"]:
        values = self.codebook()[self.symbols(original)]
        if self.gradual:
            return torch.where(self.settled, values, original)
        return values + (original - original.detach())


class QuantizingWrapper(nn.Module):
    """A module one of whose parameters is quantised while it trains.

    By default all coordinates are quantised at once, with straight-through gradients, and the
    codebook is a parameter of the module that an optimiser made afterwards trains too. Gradual
    quantisation has exact gradients instead: `settle` rounds a growing share of the coordinates for
    good, and those that are still free make up for what is lost. Add `price * wrapper.bits()` to
    the loss, in loss per bit, to trade bits for loss. `finish` leaves the module as it was, with
    quantised values in its parameter. `hylorada train --quantisation.share` does all of this.

    Args:
        module: What holds the parameter, itself or in one of its parts: a subspace, an `IDModule`,
            a PEFT model with one SubLoRA adapter. It is changed in place.
        name: The parameter; None takes `vector` or `subspace_params`, whichever there is.
        levels: Number of values; odd for "symmetric".
        kind: "symmetric" trains one step, "learned" every value of the codebook.
        step: Step at the start; None takes the one with the least squared error.
        dead_zone: Share of a step, up to 0.5, by which each bin of "symmetric" begins later.
        gradual: Quantise only what is settled; the codebook then stays as it is.
        sharpness: How hard `bits` assigns coordinates to values; larger is closer to symbols
            and gives gradients to fewer coordinates.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str | None = None,
        *,
        levels: int = DEFAULT_LEVELS,
        kind: str = "symmetric",
        step: float | None = None,
        dead_zone: float = 0.0,
        gradual: bool = False,
        sharpness: float = 4.0,
    ) -> None:
        super().__init__()
        self.module, self.sharpness = module, sharpness
        self.place, self.name = _place(module, NAMES if name is None else (name,))
        parameter = self._owner().get_parameter(self.name)
        original = parameter.detach().float().cpu().numpy()
        require_one_of("kind", kind, CODEBOOKS)
        require_dead_zone(dead_zone)
        if kind == "learned":
            start = kmeans(original, levels).codebook
        elif step is None:
            start = fitted(original, levels).codebook
        else:
            require_levels(levels, one_scale=True)
            start = scaled_codebook(step, levels // 2)
        rounding = _Rounding(start, len(original), dead_zone=dead_zone, gradual=gradual)
        rounding.to(parameter.device)
        parametrize.register_parametrization(self._owner(), self.name, rounding)

    def forward(self, *arguments: object, **named: object) -> Any:
        """Return what the module returns with its quantised parameter."""
        return self.module(*arguments, **named)

    def settle(self, share: float) -> None:
        """Settle a share of all coordinates for good, those closest to their values first.

        Call it with a share that grows from 0 to 1 in the course of the training; `finish` settles
        the rest.
        """
        if not 0.0 <= share <= 1.0:
            raise SpecError(f"the share to settle must lie between 0 and 1; got {share:g}")
        rounding, original = self._parts()
        symbols = rounding.symbols(original)
        distances = (original.detach() - rounding.codebook().detach()[symbols]).abs()
        order = distances.masked_fill(rounding.settled, -1.0).argsort(stable=True)
        rounding.kept = symbols
        rounding.settled[order[: math.ceil(share * len(order))]] = True

    def bits(self) -> Float[Tensor, ""]:
        """Return a differentiable estimate of the bits of all symbols.

        Coordinates are assigned softly; the code is that of the mean assignment, symmetric where
        the codebook is.
        """
        rounding, original = self._parts()
        codebook = rounding.codebook()
        seen = torch.where(rounding.settled, codebook[rounding.kept], original)
        distances = (seen[:, None] - codebook) / rounding.spacing()
        shares = torch.softmax(-self.sharpness * distances.square(), dim=1)
        mean = shares.mean(dim=0)
        if rounding.is_scaled:
            mean = (mean + mean.flip(0)) / 2
        return -(shares * mean.clamp_min(torch.finfo(mean.dtype).tiny).log2()).sum()

    def spacing(self) -> float:
        """Return the distance of neighbouring values, the scale on which coordinates move."""
        return float(self._parts()[0].spacing().detach())

    def quantised(self) -> Quantised:
        """Return symbols and codebook as they stand."""
        rounding, original = self._parts()
        symbols = rounding.symbols(original).cpu().numpy().astype(np.int32)
        if rounding.is_scaled:
            return Quantised(symbols, scaled_codebook(float(rounding.held()), rounding.largest))
        return Quantised(symbols, listed_codebook(rounding.trained.detach().cpu().numpy()))

    def finish(self) -> Quantised:
        """Leave quantised values in the module's plain parameter; return symbols and codebook."""
        found = self.quantised()
        parametrize.remove_parametrizations(self._owner(), self.name, leave_parametrized=False)
        with torch.no_grad():
            self._owner().get_parameter(self.name).copy_(torch.from_numpy(found.values))
        return found

    def _owner(self) -> nn.Module:
        return self.module.get_submodule(self.place)

    def _parts(self) -> tuple[_Rounding, Tensor]:
        if not parametrize.is_parametrized(self._owner(), self.name):
            raise SpecError("the wrapper is finished; wrap the module again to go on training")
        held: Any = self._owner().get_submodule(f"parametrizations.{self.name}")
        return held[0], held.original


def settle_gates(module: nn.Module, bits: int = 6, name: str = "gates") -> QuantisedGates:
    """Put gates on the grid of a message and train them no further; return their symbols.

    Done before the coordinates are quantised, so that these adapt to the gates that are evaluated.
    """
    place, name = _place(module, (name,))
    gates = module.get_submodule(place).get_parameter(name)
    found = quantise_gates(gates.detach().float().cpu().numpy(), bits)
    with torch.no_grad():
        gates.copy_(torch.from_numpy(found.values))
    gates.requires_grad_(False)
    return found


def _place(module: nn.Module, names: tuple[str, ...]) -> tuple[str, str]:
    """Return the part of a module that owns a parameter of one of these names, and which."""
    paths = (path.rpartition(".") for path, _ in module.named_parameters())
    found = [(place, name) for place, _, name in paths if name in names]
    if len(found) != 1:
        raise SpecError(
            f"a module to quantise must have one parameter {' or '.join(names)}; "
            f"{type(module).__name__} has {len(found)}: pass the part that has one, or its name"
        )
    return found[0]
