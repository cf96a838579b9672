"""The landmark design `halves`: one mixture of landmarks for each half of the context."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.designs import DESIGNS, Design
from hylorada.specs.adapters import HyLoRADAFields

Hidden = Float[Tensor, "batch time dim"]
Positions = Int[Tensor, "#batch time"]


class HalvesLandmark(nn.Module):
    """Adds `scale * g L` to hidden states; `g` knows only in which half of the context it is."""

    def __init__(self, hidden_size: int, landmarks: int, context: int, scale: float) -> None:
        super().__init__()
        self.middle = context // 2
        self.landmarks = nn.Parameter(0.02 * torch.randn(landmarks, hidden_size))
        self.gate = nn.Parameter(torch.zeros(2, landmarks))
        self.scale = nn.Parameter(torch.full((1,), scale))

    def gate_weights(
        self, hidden_states: Hidden, positions: Positions
    ) -> Float[Tensor, "batch time landmarks"]:
        """Return the weight of each landmark at each token; reports show them by position."""
        half = (positions >= self.middle).long().expand(hidden_states.shape[:2])
        return self.gate[half].softmax(dim=-1)

    def forward(self, hidden_states: Hidden, positions: Positions) -> Hidden:
        """Return the hidden states with the mixture added."""
        mixture = self.gate_weights(hidden_states, positions) @ self.landmarks
        return hidden_states + (self.scale * mixture).to(hidden_states.dtype)


def build(settings: HyLoRADAFields, hidden_size: int, blocks: int) -> nn.Module:
    """Return the module for a model of this size; `max_positions` is known by now."""
    context = settings.max_positions or 0
    return HalvesLandmark(hidden_size, settings.num_landmarks, context, settings.landmark_scale)


DESIGNS.add(
    Design(
        name="halves",
        words="landmarks gated by the half of the context",
        module=HalvesLandmark,
        build=build,
        switch="scale",
    )
)
