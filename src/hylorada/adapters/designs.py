"""Landmark designs and controls by name.

Each registers itself in the file that defines its module, with everything others ask of it. Other
packages name the modules that register theirs in the entry point group `hylorada.designs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from hylorada.adapters.positions import Hidden, Positions
from hylorada.registry import Registry
from hylorada.specs.adapters import HyLoRADAFields

# Measured with SmolLM2-135M on WikiText-2: landmarks gain 0.04 % at the learning rate of LoRA and
# 3.5 % at thirty times that rate.
RATE_MULTIPLIER = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A module that changes hidden states, and what the rest of the library must know of it.

    The module is called as `module(hidden_states, positions)`, and returns hidden states. Its
    gates are shown in reports where it, or a part of it, is `Gated`.

    Attributes:
        name: What users type as `landmark_design`.
        words: One line for tables and lists.
        module: The class that `build` returns; its parameters are counted as landmarks.
        build: Takes the settings, with `max_positions` known, the hidden size and the number of
            blocks.
        control: Whether it is a control, which landmarks have to beat.
        after_every_block: Whether it acts after every block, with the block's index as the keyword
            `site`; otherwise after the final norm.
        reads_the_past: Whether it takes the sums over cached tokens as the keyword `history`.
        fewest_landmarks: The least `num_landmarks` it works with.
        fewest_buckets: The least `num_position_buckets` it works with.
        rate_multiplier: Learning rate of its parameters as a multiple of that of LoRA.
        switch: Name of the parameters that turn it off where all are zero; None if it always acts.
    """

    name: str
    words: str
    module: type[nn.Module]
    build: Callable[[HyLoRADAFields, int, int], nn.Module]
    control: bool = False
    after_every_block: bool = False
    reads_the_past: bool = False
    fewest_landmarks: int = 2  # a softmax over one landmark is constant: its gate never trains
    fewest_buckets: int = 1
    rate_multiplier: float = RATE_MULTIPLIER
    switch: str | None = None

    def acts(self, module: nn.Module) -> bool:
        """Return whether a module of this design changes anything."""
        if self.switch is None:
            return True
        return any(
            bool(parameter.any())
            for name, parameter in module.named_parameters()
            if name.rpartition(".")[2] == self.switch
        )


@runtime_checkable
class Gated(Protocol):
    """A module whose landmarks have weights that differ from token to token."""

    def gate_weights(
        self, hidden_states: Hidden, positions: Positions
    ) -> Float[Tensor, "batch time landmarks"]:
        """Return the weight of each landmark at each token."""
        ...


DESIGNS: Registry[Design] = Registry("design", "hylorada.designs", "hylorada.adapters.landmarks")


def count_landmark_params(model: nn.Module) -> int:
    """Return how many numbers the landmark modules (or controls) inside `model` hold."""
    kinds = tuple(design.module for design in DESIGNS.values())
    modules = (module for module in model.modules() if isinstance(module, kinds))
    counted = {parameter for module in modules for parameter in module.parameters()}
    return sum(parameter.numel() for parameter in counted)
