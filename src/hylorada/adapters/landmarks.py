"""Landmarks: K learned vectors, mixed by a gate and added to the hidden states; and controls.

After the final norm a landmark is a gated mixture of K static logit biases,
`lm_head(h') = lm_head(h) + scale * sum_k g_k (W_e L_k)`: it moves no information between tokens.

Controls are the plainest modules of the same or smaller size at the landmarks' place. "Landmarks
help" means that they beat these too.
"""

from abc import abstractmethod
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hylorada.adapters.designs import DESIGNS, Design
from hylorada.adapters.positions import (
    Hidden,
    Positions,
    PrefixSums,
    bucket_table,
    causal_mean,
    read_bucket,
)
from hylorada.errors import SpecError
from hylorada.models.anatomy import resident
from hylorada.names import plain, real_number, whole_number
from hylorada.specs.adapters import HyLoRADAFields, check_temperature

GateWeights = Float[Tensor, "batch time landmarks"]
INITIAL_STD = 0.02


def positions_or_arange(positions: Positions | None, hidden: Hidden) -> Positions:
    """Return the positions given, or those of one whole unpadded document."""
    require_tokens(hidden)
    if positions is None:
        return torch.arange(hidden.shape[1], device=hidden.device)[None]
    return positions


def require_tokens(hidden: Hidden) -> None:
    """Raise `SpecError` unless hidden states are those of a batch; fewer axes would broadcast."""
    if hidden.ndim != 3:
        shape = tuple(hidden.shape)
        raise SpecError(f"hidden states must be (batch, time, dim); got {shape}; reshape them")


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

    @abstractmethod
    def gate_weights(
        self, hidden_states: Hidden, positions: Positions, history: PrefixSums | None = None
    ) -> GateWeights:
        """Return the weight `g` of each landmark at each token, in float32."""

    def content_logits(self, hidden: Hidden) -> GateWeights:
        """Return `W_c h` in the dtype of the hidden states."""
        return nn.functional.linear(hidden, resident(self.content_gate).to(hidden.dtype))

    def forward(
        self,
        hidden_states: Hidden,
        positions: Positions | None = None,
        *,
        site: int = 0,
        history: PrefixSums | None = None,
    ) -> Hidden:
        """Return `h + scale * g L`.

        Args:
            hidden_states: What a norm or a block put out.
            positions: Where the tokens stand; 0 .. T-1 if left out.
            site: Which scale to use where blocks share the bank.
            history: Sums over the cached tokens, for designs that read the past.
        """
        positions = positions_or_arange(positions, hidden_states)
        gate = self.gate_weights(hidden_states, positions, history)
        dtype, landmarks = hidden_states.dtype, self.landmarks * self.scale[site : site + 1]
        return hidden_states + self.dropout(gate.to(dtype) @ landmarks.to(dtype))


class PositionAdaptiveLandmark(LandmarkBank):
    """Landmarks gated by position bucket and content: `g_t = softmax(P[bucket(p_t)] + W_c h_t)`.

    `2 K d + B K + 1` parameters.
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

    def position_logits(self, positions: Positions) -> Float[Tensor, "#batch time landmarks"]:
        """Return `P[bucket(p)]`."""
        return self.position_gate[read_bucket(self.bucket_of_position, positions)]

    def gate_weights(
        self, hidden_states: Hidden, positions: Positions, history: PrefixSums | None = None
    ) -> GateWeights:
        """Return `softmax(P[bucket(p)] + W_c h)`."""
        logits = self.position_logits(positions) + self.content_logits(hidden_states)
        return torch.softmax(logits.float(), dim=-1)


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

    def bucket_weights(self, positions: Positions) -> Float[Tensor, "#batch time buckets"]:
        """Return `u`, the soft share of each bucket: never negative, summing to one.

        `q_i = sigmoid((p / P - b_i) / temperature)`, `u_i = q_i - q_{i+1}`, `q_0 = 1`, `q_B = 0`.
        """
        share = (positions / self.max_positions)[..., None]
        beyond = torch.sigmoid((share - self.relative_boundaries()) / self.temperature)
        padded = nn.functional.pad(beyond, (1, 0), value=1.0)
        return padded - nn.functional.pad(beyond, (0, 1))

    def position_logits(self, positions: Positions) -> Float[Tensor, "#batch time landmarks"]:
        """Return `u P`."""
        return self.bucket_weights(positions) @ self.position_gate.float()


class OriginalLandmark(LandmarkBank):
    """Landmarks gated by the causal mean of the document so far: `2 K d + 1` parameters.

    It sees the past only: no future token, no padding before the document.
    """

    def gate_weights(
        self, hidden_states: Hidden, positions: Positions, history: PrefixSums | None = None
    ) -> GateWeights:
        """Return `softmax(W_c mean(h_<=t))`."""
        logits = self.content_logits(causal_mean(hidden_states, positions, history))
        return torch.softmax(logits.float(), dim=-1)


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
        hidden_states: Hidden,
        positions: Positions | None = None,
        *,
        site: int = 0,
        history: PrefixSums | None = None,
    ) -> Hidden:
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
        sizes = hidden_size, num_landmarks, num_buckets, max_positions
        layers = whole_number("layers", layers)
        super().__init__(*sizes, bucket_spacing, scale, dropout, scales=layers)


class Control(nn.Module):
    """A module that treats every token alike, wherever it stands."""

    @abstractmethod
    def _changed(self, hidden: Hidden) -> Hidden: ...

    def forward(self, hidden_states: Hidden, positions: Positions | None = None) -> Hidden:
        """Return the changed hidden states; positions are accepted, as landmarks do, and unused."""
        require_tokens(hidden_states)
        return self._changed(hidden_states)


class Bias(Control):
    """`h + b`: `d` numbers."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(whole_number("hidden_size", hidden_size)))

    def _changed(self, hidden: Hidden) -> Hidden:
        return hidden + self.bias.to(hidden.dtype)


class Static(Control):
    """`h + scale * L`: what a single landmark is, since a softmax over one is one; `d + 1`."""

    def __init__(self, hidden_size: int, scale: float = 0.1) -> None:
        super().__init__()
        self.landmark = nn.Parameter(torch.randn(whole_number("hidden_size", hidden_size)) * 0.02)
        scale = real_number("landmark scale", scale, "finite and not negative")
        self.scale = nn.Parameter(torch.full((1,), float(scale)))

    def _changed(self, hidden: Hidden) -> Hidden:
        return hidden + (self.scale * self.landmark).to(hidden.dtype)


class LowRank(Control):
    """`h + U V h`, U zero at the start: `2 r d` numbers, the size of K = r landmarks."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        hidden_size, rank = whole_number("hidden_size", hidden_size), whole_number("rank", rank)
        self.down = nn.Linear(hidden_size, rank, bias=False)
        self.up = nn.Parameter(torch.zeros(hidden_size, rank))

    def _changed(self, hidden: Hidden) -> Hidden:
        dtype = hidden.dtype
        inner = nn.functional.linear(hidden, resident(self.down).to(dtype))
        return hidden + nn.functional.linear(inner, self.up.to(dtype))


class NormGain(Control):
    """`h * (1 + g)`: `d` numbers, a retrained gain of the final norm."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(whole_number("hidden_size", hidden_size)))

    def _changed(self, hidden: Hidden) -> Hidden:
        return hidden * (1 + self.gain).to(hidden.dtype)


def _sizes(settings: HyLoRADAFields) -> tuple[int, int, int]:
    """Return the numbers of landmarks, buckets and positions."""
    assert settings.max_positions is not None, "it is resolved before modules are built"
    return settings.num_landmarks, settings.num_position_buckets, settings.max_positions


def _strength(settings: HyLoRADAFields) -> tuple[float, float]:
    """Return the initial scale and the dropout."""
    return settings.landmark_scale, settings.landmark_dropout


control = partial(Design, control=True, fewest_landmarks=1)
for design in (
    Design(
        name="position_adaptive",
        words="landmarks gated by log position and content",
        module=PositionAdaptiveLandmark,
        build=lambda settings, hidden_size, layers: PositionAdaptiveLandmark(
            hidden_size, *_sizes(settings), settings.bucket_spacing, *_strength(settings)
        ),
        switch="scale",
    ),
    Design(
        name="learnable",
        words="landmarks gated by learned position buckets",
        module=LearnableBucketLandmark,
        build=lambda settings, hidden_size, layers: LearnableBucketLandmark(
            hidden_size,
            *_sizes(settings),
            settings.bucket_temperature,
            settings.bucket_temperature_unit,
            *_strength(settings),
        ),
        fewest_buckets=2,
        switch="scale",
    ),
    Design(
        name="original",
        words="landmarks gated by the mean of the text so far",
        module=OriginalLandmark,
        build=lambda settings, hidden_size, layers: OriginalLandmark(
            hidden_size, settings.num_landmarks, *_strength(settings)
        ),
        reads_the_past=True,
        switch="scale",
    ),
    Design(
        name="per_layer",
        words="half as many landmarks after every block",
        module=PerLayerLandmark,
        build=lambda settings, hidden_size, layers: PerLayerLandmark(
            layers,
            hidden_size,
            settings.num_landmarks // 2,
            settings.landmark_scale / 2,  # the banks of all blocks add up
            settings.landmark_dropout,
        ),
        after_every_block=True,
        reads_the_past=True,
        fewest_landmarks=4,
        switch="scale",
    ),
    Design(
        name="shared",
        words="one bank of landmarks after every block",
        module=SharedLandmark,
        build=lambda settings, hidden_size, layers: SharedLandmark(
            layers, hidden_size, *_sizes(settings), settings.bucket_spacing, *_strength(settings)
        ),
        after_every_block=True,
        switch="scale",
    ),
    control(
        name="bias",
        words="control: one vector after the final norm",
        module=Bias,
        build=lambda settings, hidden_size, layers: Bias(hidden_size),
        switch="bias",
    ),
    control(
        name="static",
        words="control: a single landmark",
        module=Static,
        build=lambda settings, hidden_size, layers: Static(hidden_size, settings.landmark_scale),
        switch="scale",
    ),
    control(
        name="low_rank",
        words="control: a low-rank map of the landmarks' size",
        module=LowRank,
        build=lambda settings, hidden_size, layers: LowRank(hidden_size, settings.num_landmarks),
        rate_multiplier=10.0,  # gains most at that rate, measured as for landmarks
        switch="up",
    ),
    control(
        name="norm_gain",
        words="control: a gain after the final norm",
        module=NormGain,
        build=lambda settings, hidden_size, layers: NormGain(hidden_size),
        switch="gain",
    ),
):
    DESIGNS.add(design)
