"""Landmarks: K learned vectors, mixed by a gate and added to the hidden states.

After the final norm a landmark is a gated mixture of K static logit biases,
`lm_head(h') = lm_head(h) + scale * sum_k g_k (W_e L_k)`: it moves no information between tokens.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.buckets import bucket_table, read_bucket
from hylorada.adapters.history import PrefixSums, causal_mean
from hylorada.adapters.offloading import resident
from hylorada.errors import SpecError
from hylorada.names import plain, real_number, require_one_of, whole_number

INITIAL_STD = 0.02


class LandmarkBank(nn.Module):
    """K landmarks `L` and the content gate `W_c`: what every design shares."""

    def __init__(
        self,
        hidden_size: int,
        num_landmarks: int = 8,
        scale: float = 0.1,
        dropout: float = 0.0,
        scales: int = 1,
    ) -> None:
        super().__init__()
        hidden_size = whole_number("hidden_size", hidden_size)
        num_landmarks = plain("num_landmarks", num_landmarks, int)
        if num_landmarks < 2:  # a softmax over one is constant: its gate would never train
            raise SpecError(
                f"num_landmarks must be at least 2; got {num_landmarks}: "
                "for a single vector use the static control"
            )
        scales = whole_number("scales", scales)
        scale = real_number("landmark scale", scale, "finite and not negative")
        dropout = real_number("landmark dropout", dropout, "in [0, 1)", "0 turns it off")
        self.landmarks = nn.Parameter(torch.randn(num_landmarks, hidden_size) * INITIAL_STD)
        self.content_gate = nn.Linear(hidden_size, num_landmarks, bias=False)
        self.scale = nn.Parameter(torch.full((scales,), float(scale)))
        self.dropout = nn.Dropout(dropout)

    def mixture(
        self,
        gate_logits: Float[Tensor, "batch time landmarks"],
        dtype: torch.dtype,
        scale: Float[Tensor, " one"],
    ) -> Float[Tensor, "batch time dim"]:
        """Return `scale * softmax(gate_logits) L` in `dtype`."""
        gate = torch.softmax(gate_logits.float(), dim=-1)
        return self.dropout(gate.to(dtype) @ (self.landmarks * scale).to(dtype))

    def content_logits(
        self, hidden: Float[Tensor, "batch time dim"]
    ) -> Float[Tensor, "batch time landmarks"]:
        """Return `W_c h` in the dtype of the hidden states."""
        return nn.functional.linear(hidden, resident(self.content_gate).to(hidden.dtype))


class PositionAdaptiveLandmark(LandmarkBank):
    """Landmarks gated by position bucket and content: `g_t = softmax(P[bucket(p_t)] + W_c h_t)`.

    `2 K d + B K + 1` parameters. Positions default to 0 .. T-1.
    """

    bucket_of_position: Tensor

    def __init__(
        self,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int = 1024,
        bucket_spacing: str = "log",
        scale: float = 0.1,
        dropout: float = 0.0,
        scales: int = 1,
    ) -> None:
        super().__init__(hidden_size, num_landmarks, scale, dropout, scales)
        table = bucket_table(bucket_spacing, num_buckets, max_positions)
        self.register_buffer("bucket_of_position", table, persistent=False)
        rows = int(table[-1]) + 1
        self.position_gate = nn.Parameter(torch.randn(rows, num_landmarks) * INITIAL_STD)

    def position_logits(
        self, positions: Int[Tensor, "#batch time"]
    ) -> Float[Tensor, "#batch time landmarks"]:
        """Return `P[bucket(p)]`."""
        return self.position_gate[read_bucket(self.bucket_of_position, positions)]

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
        *,
        site: int = 0,
    ) -> Float[Tensor, "batch time dim"]:
        """Return `h + scale * g L`; `site` picks the scale where the bank is shared by layers."""
        positions = positions_or_arange(positions, hidden_states)
        logits = self.position_logits(positions) + self.content_logits(hidden_states)
        scale = self.scale[site : site + 1]
        return hidden_states + self.mixture(logits, hidden_states.dtype, scale)


LandmarkLoRA = PositionAdaptiveLandmark


class LearnableBucketLandmark(PositionAdaptiveLandmark):
    """Position-adaptive landmarks whose bucket boundaries are learned: `B - 1` parameters more.

    `boundaries` holds the logits of the bucket widths, the last one fixed at zero, so that the
    boundaries stay sorted inside (0, 1) whatever the optimiser does; zeros are uniform buckets.
    `temperature` is a share of the context, or of a bucket's width with `unit="bucket"`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int = 1024,
        temperature: float = 0.1,
        unit: str = "context",
        scale: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        num_buckets = plain("num_buckets", num_buckets, int)
        max_positions = plain("max_positions", max_positions, int)
        if min(num_buckets, max_positions) < 2:
            raise SpecError(
                "learnable buckets need at least 2 buckets and 2 positions; got "
                f"num_buckets={num_buckets}, max_positions={max_positions}"
            )
        check_temperature(temperature, unit)
        super().__init__(
            hidden_size, num_landmarks, num_buckets, max_positions, "uniform", scale, dropout
        )
        buckets = self.position_gate.shape[0]
        self.boundaries = nn.Parameter(torch.zeros(buckets - 1))
        self.max_positions = max_positions
        self.temperature = temperature / buckets if unit == "bucket" else temperature

    def relative_boundaries(self) -> Float[Tensor, " inner"]:
        """Return the boundaries as shares of the context, sorted, in (0, 1)."""
        widths = torch.softmax(nn.functional.pad(self.boundaries.float(), (0, 1)), dim=0)
        return widths.cumsum(dim=0)[:-1]

    def get_learned_boundaries(self) -> Float[Tensor, " inner"]:
        """Return the boundaries in tokens, sorted."""
        return self.relative_boundaries().detach() * self.max_positions

    def bucket_weights(
        self, positions: Int[Tensor, "#batch time"]
    ) -> Float[Tensor, "#batch time buckets"]:
        """Return `u`, the soft share of each bucket: never negative, summing to one.

        `q_i = sigmoid((p / P - b_i) / temperature)`, `u_i = q_i - q_{i+1}`, `q_0 = 1`, `q_B = 0`.
        """
        share = (positions / self.max_positions)[..., None]
        beyond = torch.sigmoid((share - self.relative_boundaries()) / self.temperature)
        padded = nn.functional.pad(beyond, (1, 0), value=1.0)
        return padded - nn.functional.pad(beyond, (0, 1))

    def position_logits(
        self, positions: Int[Tensor, "#batch time"]
    ) -> Float[Tensor, "#batch time landmarks"]:
        """Return `u P`."""
        return self.bucket_weights(positions) @ self.position_gate.float()


class OriginalLandmark(LandmarkBank):
    """Landmarks gated by the causal mean of the document so far: `2 K d + 1` parameters.

    It sees the past only: no future token, no padding before the document.
    """

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
        *,
        history: PrefixSums | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Return `h + scale * softmax(W_g mean(h_<=t)) L`; `history` holds cached tokens' sums."""
        positions = positions_or_arange(positions, hidden_states)
        logits = self.content_logits(causal_mean(hidden_states, positions, history))
        return hidden_states + self.mixture(logits, hidden_states.dtype, self.scale)


class PerLayerLandmark(nn.ModuleList):
    """An `OriginalLandmark` bank of its own after every block."""

    def __init__(
        self,
        layers: int,
        hidden_size: int,
        num_landmarks: int = 4,
        scale: float = 0.05,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            OriginalLandmark(hidden_size, num_landmarks, scale, dropout)
            for _ in range(whole_number("layers", layers))
        )

    def forward(
        self,
        hidden_states: Float[Tensor, "batch time dim"],
        positions: Int[Tensor, "#batch time"] | None = None,
        *,
        site: int = 0,
        history: PrefixSums | None = None,
    ) -> Float[Tensor, "batch time dim"]:
        """Apply the bank of block `site` to that block's output."""
        return self[site](hidden_states, positions, history=history)


class SharedLandmark(PositionAdaptiveLandmark):
    """One position-adaptive bank after every block, with a scale per block: `2Kd + BK + layers`."""

    def __init__(
        self,
        layers: int,
        hidden_size: int,
        num_landmarks: int = 8,
        num_buckets: int = 32,
        max_positions: int = 1024,
        bucket_spacing: str = "log",
        scale: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            hidden_size,
            num_landmarks,
            num_buckets,
            max_positions,
            bucket_spacing,
            scale,
            dropout,
            scales=whole_number("layers", layers),
        )


def positions_or_arange(
    positions: Int[Tensor, "#batch time"] | None, hidden: Float[Tensor, "batch time dim"]
) -> Int[Tensor, "#batch time"]:
    """Return the positions given, or those of one whole unpadded document."""
    require_tokens(hidden)
    if positions is None:
        return torch.arange(hidden.shape[1], device=hidden.device)[None]
    return positions


def require_tokens(hidden: Float[Tensor, "batch time dim"]) -> None:
    """Raise `SpecError` unless hidden states are those of a batch; fewer axes would broadcast."""
    if hidden.ndim != 3:
        shape = tuple(hidden.shape)
        raise SpecError(f"hidden states must be (batch, time, dim); got {shape}; reshape them")


def check_temperature(temperature: float, unit: str) -> None:
    """Raise SpecError unless the softness of learnable buckets is usable."""
    real_number("bucket temperature", temperature, "positive and finite")
    require_one_of("bucket temperature unit", unit, ("context", "bucket"))
