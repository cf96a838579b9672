"""`HyLoRADAConfig`: PEFT's LoRA configuration and what HyLoRADA adds to it."""

from dataclasses import dataclass, field
from math import inf

from peft import LoraConfig

from hylorada.adapters.buckets import SPACINGS
from hylorada.adapters.controls import CONTROLS
from hylorada.adapters.landmarks import check_temperature
from hylorada.adapters.registration import add_peft_type
from hylorada.errors import SpecError
from hylorada.names import require_one_of

PEFT_TYPE = add_peft_type("HYLORADA")
DESIGNS = ("position_adaptive", "learnable", "original", "per_layer", "shared", *CONTROLS)


@dataclass
class HyLoRADAConfig(LoraConfig):
    """Rank-stabilised LoRA with a position bias and position-adaptive landmarks.

    Every field of `LoraConfig` works as in PEFT. `target_modules=None` means every projection of
    every attention module.
    """

    r: int = field(default=8, metadata={"help": "Rank of the LoRA factors."})
    lora_alpha: float = field(default=16, metadata={"help": "Numerator of the LoRA scaling."})
    lora_dropout: float = field(
        default=0.05, metadata={"help": "Dropout on the input of the LoRA branch."}
    )
    use_rslora: bool = field(
        default=True, metadata={"help": "Scale by alpha / sqrt(r) instead of alpha / r."}
    )

    landmark_enabled: bool = field(
        default=True, metadata={"help": "Add the module that landmark_design names."}
    )
    landmark_design: str = field(
        default="position_adaptive",
        metadata={
            "help": "Landmarks: position_adaptive, learnable, original, per_layer, shared. "
            "Controls at the same place: bias, static, low_rank, norm_gain."
        },
    )
    num_landmarks: int = field(
        default=8, metadata={"help": "Landmarks K; the rank of the low_rank control."}
    )
    num_position_buckets: int = field(default=32, metadata={"help": "Rows B of the position gate."})
    bucket_spacing: str = field(
        default="log", metadata={"help": "How positions become buckets: log or uniform."}
    )
    max_positions: int | None = field(
        default=None,
        metadata={"help": "Context trained on, in tokens; None: the model's own context length."},
    )
    bucket_temperature: float = field(
        default=0.1, metadata={"help": "Softness of the learnable buckets."}
    )
    bucket_temperature_unit: str = field(
        default="context",
        metadata={
            "help": "Whether bucket_temperature is a share of the context or of a bucket's width."
        },
    )
    landmark_scale: float = field(
        default=0.1, metadata={"help": "Initial scale; 0 leaves the model unchanged at the start."}
    )
    landmark_dropout: float = field(
        default=0.0, metadata={"help": "Dropout on the landmark mixture."}
    )
    landmark_module: str | None = field(
        default=None,
        metadata={
            "help": "Full name of the final norm; None: found in the model and recorded here."
        },
    )
    position_bias: bool = field(
        default=True, metadata={"help": "Scale each LoRA update by the token's position."}
    )
    position_bias_buckets: int = field(
        default=64, metadata={"help": "Entries of the position bias table."}
    )
    share_factors: str | None = field(
        default=None,
        metadata={"help": "LoRA factors shared by equal modules of all layers: A, B or AB."},
    )

    def __post_init__(self) -> None:
        """Check every field that PEFT does not."""
        super().__post_init__()
        self.peft_type = PEFT_TYPE
        check_lora(self.r, self.lora_alpha, self.lora_dropout)
        if self.max_positions is not None and self.max_positions < 1:
            raise SpecError(f"max_positions must be at least 1 token; got {self.max_positions}")
        if self.position_bias and self.position_bias_buckets < 1:
            raise SpecError(
                f"position_bias_buckets must be at least 1; got {self.position_bias_buckets}"
            )
        if self.share_factors not in (None, "A", "B", "AB"):
            raise SpecError(
                f"share_factors must be None, 'A', 'B' or 'AB'; got {self.share_factors!r}"
            )
        if self.landmark_enabled:
            self._check_landmarks()

    def keeps_state_on_the_tuner(self) -> bool:
        """Return whether anything is trained beyond PEFT's own LoRA layers."""
        return self.landmark_enabled or self.position_bias or self.share_factors is not None

    def _check_landmarks(self) -> None:
        require_one_of("landmark_design", self.landmark_design, DESIGNS)
        least = 1 if self.landmark_design in CONTROLS else 2  # a softmax over one never trains
        if self.landmark_design == "per_layer":  # which halves them
            least = 4
        if self.num_landmarks < least:
            raise SpecError(
                f"num_landmarks must be at least {least} for {self.landmark_design!r}; "
                f"got {self.num_landmarks}: raise it, or set landmark_enabled=False"
            )
        fewest_buckets = 2 if self.landmark_design == "learnable" else 1
        if self.num_position_buckets < fewest_buckets:
            raise SpecError(
                f"num_position_buckets must be at least {fewest_buckets} for landmark_design="
                f"{self.landmark_design!r}; got {self.num_position_buckets}"
            )
        require_one_of("bucket_spacing", self.bucket_spacing, SPACINGS)
        check_temperature(self.bucket_temperature, self.bucket_temperature_unit)
        if not 0 <= self.landmark_scale < inf:
            raise SpecError(
                f"landmark_scale must be finite and not negative; got {self.landmark_scale}"
            )
        if not 0.0 <= self.landmark_dropout < 1.0:
            raise SpecError(f"landmark_dropout must be in [0, 1); got {self.landmark_dropout}")


def check_rank(rank: int, in_dim: int, out_dim: int, name: str) -> None:
    """Refuse a rank above the smaller side of the layer of this name."""
    smaller = min(in_dim, out_dim)
    if rank > smaller:
        raise SpecError(f"r must not exceed the smaller side, {smaller}, of {name}; got {rank}")


def check_lora(rank: int, alpha: float | int, dropout: float | int) -> None:
    """Refuse a rank, alpha or dropout that no LoRA layer can have."""
    if rank < 1:
        raise SpecError(f"r must be at least 1; got {rank}")
    if not 0 < alpha < inf:
        raise SpecError(f"lora_alpha must be positive and finite; got {alpha}")
    if not 0.0 <= dropout < 1.0:
        raise SpecError(f"lora_dropout must be in [0, 1); got {dropout}")
