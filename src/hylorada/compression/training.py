"""Quantisation-aware training: the loss sees the values that a message holds.

A parametrisation stands between a module and its parameter, so neither subspace modules nor PEFT
know of it.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hylorada.compression.codebooks import Quantised, require_odd_levels, short_step
from hylorada.compression.gates import QuantisedGates, quantise_gates
from hylorada.compression.quantise import fitted, kmeans, require_dead_zone
from hylorada.compression.rounding import Listed, OneScale, Rounding
from hylorada.errors import SpecError
from hylorada.names import require_one_of

NAMES = ("vector", "subspace_params")
KINDS = ("symmetric", "learned")


class QuantizingWrapper(nn.Module):
    """A module one of whose parameters is quantised while it trains.

    By default all coordinates are quantised at once, with straight-through gradients, and the
    codebook is a parameter of the module that an optimiser made afterwards trains too. Gradual
    quantisation has exact gradients instead: `settle` rounds a growing share of the coordinates for
    good, and those that are still free make up for what is lost. Add `price * wrapper.bits()` to
    the loss, in loss per bit, to trade bits for loss. `finish` leaves the module as it was, with
    quantised values in its parameter.

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
        levels: int = 11,
        kind: str = "symmetric",
        step: float | None = None,
        dead_zone: float = 0.0,
        gradual: bool = False,
        sharpness: float = 4.0,
    ) -> None:
        super().__init__()
        self.module = module
        self.sharpness = sharpness
        self.place, self.name = _place(module, NAMES if name is None else (name,))
        parameter = self._owner().get_parameter(self.name)
        original = parameter.detach().float().cpu().numpy()
        rounding = _rounding(original, levels, kind, step, dead_zone, gradual)
        parametrize.register_parametrization(
            self._owner(), self.name, rounding.to(parameter.device)
        )

    def forward(self, *arguments: Any, **named: Any) -> Any:
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
        rounding.settle(original, share)

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
        if isinstance(rounding, OneScale):
            mean = (mean + mean.flip(0)) / 2
        tiny = torch.finfo(mean.dtype).tiny
        return -(shares * mean.clamp_min(tiny).log2()).sum()

    def quantised(self) -> Quantised:
        """Return symbols and codebook as they stand."""
        rounding, original = self._parts()
        return rounding.quantised(original.detach())

    def finish(self) -> Quantised:
        """Leave quantised values in the module's plain parameter; return symbols and codebook."""
        found = self.quantised()
        parametrize.remove_parametrizations(self._owner(), self.name, leave_parametrized=False)
        with torch.no_grad():
            self._owner().get_parameter(self.name).copy_(torch.from_numpy(found.values))
        return found

    def _owner(self) -> nn.Module:
        return self.module.get_submodule(self.place)

    def _parts(self) -> tuple[Rounding, Tensor]:
        if not parametrize.is_parametrized(self._owner(), self.name):
            raise SpecError("the wrapper is finished; wrap the module again to go on training")
        held = self._owner().get_submodule(f"parametrizations.{self.name}")
        assert isinstance(held, parametrize.ParametrizationList)
        rounding, original = held[0], held.original
        assert isinstance(rounding, Rounding)
        assert isinstance(original, Tensor)
        return rounding, original


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


def _rounding(
    original: Float[np.ndarray, " dim"],
    levels: int,
    kind: str,
    step: float | None,
    dead_zone: float,
    gradual: bool,
) -> Rounding:
    require_one_of("kind", kind, KINDS)
    require_dead_zone(dead_zone)
    if kind == "learned":
        return Listed(len(original), gradual, kmeans(original, levels).codebook.values)
    require_odd_levels(levels)
    start = fitted(original, levels).codebook.step if step is None else short_step(step)
    assert start is not None
    return OneScale(len(original), gradual, step=start, largest=levels // 2, dead_zone=dead_zone)


def _place(module: nn.Module, names: tuple[str, ...]) -> tuple[str, str]:
    """Return the part of a module that owns a parameter of one of these names, and which."""
    found = [
        path.rpartition(".")[::2]
        for path, _ in module.named_parameters()
        if path.rpartition(".")[2] in names
    ]
    if len(found) != 1:
        raise SpecError(
            f"a module to quantise must have one parameter {' or '.join(names)}; "
            f"{type(module).__name__} has {len(found)}: pass the part that has one, or its name"
        )
    return found[0]
