"""Controls: the plainest modules of the same or smaller size at the landmarks' place.

"Landmarks help" means that they beat these too.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.landmarks import require_tokens
from hylorada.adapters.offloading import resident
from hylorada.names import real_number, whole_number


class Control(nn.Module):
    """A module that treats every token alike, wherever it stands."""

    @abstractmethod
    def changed(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Return the hidden states as the control leaves them."""

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Return the changed hidden states; positions are taken as landmarks take them, unread."""
        require_tokens(hidden_states)
        return self.changed(hidden_states)


class Bias(Control):
    """`h + b`: `d` numbers."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(whole_number("hidden_size", hidden_size)))

    def changed(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Add one learned vector to every token."""
        return hidden + self.bias.to(hidden.dtype)


class Static(Control):
    """`h + scale * L`: what a single landmark is, since a softmax over one is one; `d + 1`."""

    def __init__(self, hidden_size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.landmark = nn.Parameter(torch.randn(whole_number("hidden_size", hidden_size)) * 0.02)
        scale = real_number("landmark scale", scale, "finite and not negative")
        self.scale = nn.Parameter(torch.full((1,), float(scale)))

    def changed(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Add the one landmark to every token."""
        return hidden + (self.scale * self.landmark).to(hidden.dtype)


class LowRank(Control):
    """`h + U V h`, U zero at the start: `2 r d` numbers, the size of K = r landmarks."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        hidden_size, rank = whole_number("hidden_size", hidden_size), whole_number("rank", rank)
        self.down = nn.Linear(hidden_size, rank, bias=False)
        self.up = nn.Parameter(torch.zeros(hidden_size, rank))

    def changed(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Add a learned low-rank map of each token to it."""
        dtype = hidden.dtype
        inner = nn.functional.linear(hidden, resident(self.down).to(dtype))
        return hidden + nn.functional.linear(inner, self.up.to(dtype))


class NormGain(Control):
    """`h * (1 + g)`: `d` numbers, a retrained gain of the final norm."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(whole_number("hidden_size", hidden_size)))

    def changed(self, hidden: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch time dim"]:
        """Rescale each channel."""
        return hidden * (1 + self.gain).to(hidden.dtype)


CONTROLS: dict[str, type[Control]] = {
    "bias": Bias,
    "static": Static,
    "low_rank": LowRank,
    "norm_gain": NormGain,
}
