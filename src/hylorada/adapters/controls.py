"""Controls: the plainest modules of the same or smaller size at the landmarks' place.

"Landmarks help" means that they beat these too.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Bias(nn.Module):
    """`h + b`: `d` numbers."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Add one learned vector to every token."""
        return hidden_states + self.bias.to(hidden_states.dtype)


class Static(nn.Module):
    """`h + scale * L`: what a single landmark is, since a softmax over one is one; `d + 1`."""

    def __init__(self, hidden_size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.landmark = nn.Parameter(torch.randn(hidden_size) * 0.02)
        self.scale = nn.Parameter(torch.full((1,), float(scale)))

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Add the one landmark to every token."""
        return hidden_states + (self.scale * self.landmark).to(hidden_states.dtype)


class LowRank(nn.Module):
    """`h + U V h`, U zero at the start: `2 r d` numbers, the size of K = r landmarks."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(hidden_size, rank, bias=False)
        self.up = nn.Parameter(torch.zeros(hidden_size, rank))

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Add a learned low-rank map of each token to it."""
        dtype = hidden_states.dtype
        inner = nn.functional.linear(hidden_states, self.down.weight.to(dtype))
        return hidden_states + nn.functional.linear(inner, self.up.to(dtype))


class NormGain(nn.Module):
    """`h * (1 + g)`: `d` numbers, a retrained gain of the final norm."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Rescale each channel."""
        return hidden_states * (1 + self.gain).to(hidden_states.dtype)


CONTROLS: dict[str, type[nn.Module]] = {
    "bias": Bias,
    "static": Static,
    "low_rank": LowRank,
    "norm_gain": NormGain,
}
