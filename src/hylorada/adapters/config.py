"""`HyLoRADAConfig`: PEFT's LoRA configuration and what HyLoRADA adds to it."""

from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from peft import LoraConfig

from hylorada.adapters.buckets import SPACINGS
from hylorada.adapters.controls import CONTROLS
from hylorada.adapters.landmarks import check_temperature
from hylorada.adapters.registration import add_peft_type
from hylorada.errors import SpecError
from hylorada.names import plain, real_number, require_one_of, whole_number

PEFT_TYPE = add_peft_type("HYLORADA")
STARTS_TO_SHARE = (True, False, "gaussian")  # others take a part out of each layer's weight
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
        """Check every field that PEFT does not, before PEFT reads any."""
        self._check_types()
        check_lora(self.r, self.lora_alpha, self.lora_dropout)
        self._check_patterns()
        if self.max_positions is not None:
            whole_number("max_positions", self.max_positions, "None takes the model's own context")
        if self.position_bias:
            buckets = self.position_bias_buckets
            whole_number("position_bias_buckets", buckets, "position_bias=False needs none")
        self._check_sharing()
        if self.init_lora_weights == "eva" and (self.position_bias or self.use_dora):
            raise SpecError(
                "init_lora_weights='eva' gives plain layers new ranks, and drops some; set "
                "position_bias=False and use_dora=False"
            )
        if self.landmark_enabled:
            self._check_landmarks()
        super().__post_init__()
        self.peft_type = PEFT_TYPE

    def keeps_state_on_the_tuner(self) -> bool:
        """Return whether anything is trained beyond PEFT's own LoRA layers."""
        return self.landmark_enabled or self.position_bias or self.share_factors is not None

    def _check_types(self) -> None:
        for name, annotation in (HyLoRADAConfig.__annotations__ | {"use_dora": bool}).items():
            kind, *optional = get_args(annotation) or (annotation,)
            value = getattr(self, name)
            if value is not None or not optional:
                setattr(self, name, plain(name, value, kind))

    def _check_patterns(self) -> None:
        alpha = partial(real_number, rule="positive and finite")
        for name, check in (("rank_pattern", whole_number), ("alpha_pattern", alpha)):
            pattern = plain(name, getattr(self, name) or {}, dict)
            checked = {key: check(f"{name}[{key!r}]", value) for key, value in pattern.items()}
            setattr(self, name, checked)

    def _check_sharing(self) -> None:
        shared, start = self.share_factors, self.init_lora_weights
        if shared not in (None, "A", "B", "AB"):
            raise SpecError(f"share_factors must be None, 'A', 'B' or 'AB'; got {shared!r}")
        if shared is not None and start not in STARTS_TO_SHARE:
            raise SpecError(
                f"share_factors={shared!r} needs a start fitted to no layer's weight; got "
                f"init_lora_weights={start!r}: set it to True, False or 'gaussian'"
            )

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
                f"{self.landmark_design!r}; got {self.num_position_buckets}; raise it"
            )
        require_one_of("bucket_spacing", self.bucket_spacing, SPACINGS)
        check_temperature(self.bucket_temperature, self.bucket_temperature_unit)
        scale, dropout = self.landmark_scale, self.landmark_dropout
        real_number("landmark_scale", scale, "finite and not negative", "0 starts without effect")
        real_number("landmark_dropout", dropout, "in [0, 1)", "0 turns it off")


def check_rank(rank: int, in_dim: int, out_dim: int, name: str) -> None:
    """Refuse a rank above the smaller side of the layer of this name."""
    smaller = min(in_dim, out_dim)
    if rank > smaller:
        rule = f"r must not exceed the smaller side, {smaller}, of {name}"
        raise SpecError(f"{rule}; got {rank}; lower it")


def check_lora(rank: object, alpha: object, dropout: object) -> None:
    """Refuse a rank, alpha or dropout that no LoRA layer can have."""
    whole_number("r", rank)
    real_number("lora_alpha", alpha, "positive and finite")
    real_number("lora_dropout", dropout, "in [0, 1)", "0 turns it off")
