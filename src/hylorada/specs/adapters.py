"""The settings of each method: PEFT's configurations and the adapter section of a run share them.

`HyLoRADAConfig` and `SubLoRAConfig` inherit these fields, so that a default is written once.
Nothing here needs PyTorch; what depends on the model is checked where the adapter is built.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args, get_type_hints

from hylorada.errors import SpecError
from hylorada.names import known, plain, real_number, require_one_of, whole_number
from hylorada.specs import check, setting

SPACINGS = ("log", "uniform")
TEMPERATURE_UNITS = ("context", "bucket")
ALLOCATION_MODES = ("uniform", "fixed", "learned")


@dataclass
class LoRAFields:
    """What every LoRA-like method of ours sets."""

    r: int = setting(8, "Rank of the LoRA factors.")
    lora_alpha: float = setting(16.0, "Numerator of the LoRA scaling.")
    lora_dropout: float = setting(0.05, "Share of the LoRA branch's inputs that dropout zeroes.")
    use_rslora: bool = setting(True, "Scale by α/√r instead of α/r.")
    use_dora: bool = setting(False, "Train magnitudes apart from directions (DoRA).")

    def check(self) -> None:
        """Refuse values that no LoRA layer can have."""
        _check_types(self, LoRAFields)
        check_lora(self.r, self.lora_alpha, self.lora_dropout)


@dataclass
class HyLoRADAFields(LoRAFields):
    """What HyLoRADA adds to LoRA."""

    landmark_enabled: bool = setting(True, "Add the module that landmark_design names.")
    landmark_design: str = setting(
        "position_adaptive", "Design or control, by name; hylorada list designs shows them."
    )
    num_landmarks: int = setting(8, "Landmarks K; the rank of the low_rank control.")
    num_position_buckets: int = setting(32, "Rows B of the position gate.")
    bucket_spacing: str = setting("log", "How positions become buckets: log or uniform.")
    max_positions: int | None = setting(
        None, "Tokens of context that the buckets cover; None takes the context trained on."
    )
    bucket_temperature: float = setting(0.1, "Softness of the learnable buckets.")
    bucket_temperature_unit: str = setting(
        "context", "Unit of that softness: the context, or the width of a bucket."
    )
    landmark_scale: float = setting(0.1, "Initial scale; 0 starts from the unchanged model.")
    landmark_dropout: float = setting(0.0, "Share of the landmark mixture that dropout zeroes.")
    landmark_module: str | None = setting(
        None, "Full name of the final norm; None finds it in the model."
    )
    position_bias: bool = setting(True, "Scale each LoRA update by the token's position.")
    position_bias_buckets: int = setting(64, "Entries of the position bias table.")
    share_factors: str | None = setting(
        None, "LoRA factors that equal modules of all layers share: A, B or AB."
    )

    def check(self) -> None:
        """Refuse values that break a rule, whatever the model."""
        _check_types(self, HyLoRADAFields)
        super().check()
        if self.max_positions is not None:
            whole_number("max_positions", self.max_positions, "None takes the model's own context")
        if self.position_bias:
            buckets = self.position_bias_buckets
            whole_number("position_bias_buckets", buckets, "position_bias=False needs none")
        if self.share_factors not in (None, "A", "B", "AB"):
            raise SpecError(
                f"share_factors must be None, 'A', 'B' or 'AB'; got {self.share_factors!r}"
            )
        if self.landmark_enabled:
            require_one_of("bucket_spacing", self.bucket_spacing, SPACINGS)
            check_temperature(self.bucket_temperature, self.bucket_temperature_unit)
            scale, dropout = self.landmark_scale, self.landmark_dropout
            real_number("landmark_scale", scale, "finite and not negative", "0 starts unchanged")
            real_number("landmark_dropout", dropout, "in [0, 1)", "0 turns it off")


@dataclass
class SubspaceFields:
    """How a few coordinates move many tensors: they train, the tensors are `θ0 + P w`."""

    intrinsic_dim: int = setting(1000, "Trained coordinates d.", least=1)
    allocation_mode: str = setting(
        "uniform",
        "How A and B share them: uniform moves both by all, fixed divides them by a ratio, learned "
        "divides each layer's by a trained gate.",
        among=ALLOCATION_MODES,
    )
    allocation_ratio: float = setting(0.5, "B's share of the coordinates in fixed mode.")
    gate_sharpness: float = setting(
        10.0, "C of the soft mask σ(C(γd − i)) in learned mode.", rule="positive and finite"
    )
    gate_sharpness_start: float | None = setting(
        None,
        "C at the start of training, annealed to gate_sharpness; None keeps it.",
        rule="positive and finite",
    )
    relative_sharpness: bool = setting(False, "Count C per layer's slice, not per coordinate.")
    projection: str = setting(
        "grouped", "Random projection, by name; hylorada list projections shows them."
    )
    projection_seed: int = setting(
        137, "Seed of the projections and of the frozen start of A.", least=0
    )

    def check(self) -> None:
        """Refuse values that break a rule, whatever the model."""
        check(self, SubspaceFields)
        if not 0.0 < self.allocation_ratio < 1.0:
            raise SpecError(
                "allocation_ratio is B's share, strictly between 0 and 1; "
                f"got {self.allocation_ratio}"
            )
        if self.allocation_mode == "fixed":
            self.split()

    def split(self) -> tuple[int, int]:
        """Return (d_A, d_B): the ratio is B's share, so 1000 at 0.2 gives (800, 200)."""
        # A decimal like 0.29 lies just below its name; 100 times it is meant to be 29.
        d_b = int(self.intrinsic_dim * self.allocation_ratio + 1e-9)
        if not 0 < d_b < self.intrinsic_dim:
            raise SpecError(
                "allocation_ratio must leave a coordinate to A and one to B; "
                f"{self.allocation_ratio} of {self.intrinsic_dim} gives B {d_b}; raise "
                "intrinsic_dim"
            )
        return self.intrinsic_dim - d_b, d_b


@dataclass
class SubLoRAFields(SubspaceFields):
    """LoRA factors generated from one short vector."""

    r: int = setting(4, "Rank of the generated factors.")
    lora_alpha: float = setting(32.0, "Numerator of the LoRA scaling.")
    lora_dropout: float = setting(0.0, "Share of the LoRA branch's inputs that dropout zeroes.")
    use_rslora: bool = setting(False, "Scale by α/√r instead of α/r.")
    fused_parts: str | None = setting(
        None,
        "For GPT-2's fused c_attn: which of q, k and v are adapted, each with factors of its own, "
        "such as 'qv'; None adapts the fused layer as one.",
    )

    def check(self) -> None:
        """Refuse values that break a rule, whatever the model."""
        super().check()
        check_lora(self.r, self.lora_alpha, self.lora_dropout)
        parts = self.fused_parts
        if parts is not None and (
            not parts or set(parts) - set("qkv") or len(set(parts)) != len(parts)
        ):
            raise SpecError(f"fused_parts must be letters of 'qkv', each once; got {parts!r}")


@dataclass(kw_only=True)
class AdapterSection:
    """The adapter section of a run: a method's own fields, and what a run decides beside them."""

    method: ClassVar[str] = "none"
    words: ClassVar[str] = "No adapter: the frozen model is evaluated."

    train_norms: bool = setting(False, "Also train every norm as a whole.")
    train_embeddings: bool = setting(
        False, "Also train the embeddings, and a head with weights of its own."
    )

    def __post_init__(self) -> None:
        """Check every field."""
        self.check()

    def check(self) -> None:
        """Refuse values that break a rule of the method; none has no rules."""

    @property
    def rebuilds_modules(self) -> bool:
        """Return whether whole modules of the model are trained beside the adapter."""
        return self.train_norms or self.train_embeddings

    def settings(self) -> dict[str, object]:
        """Return the method and every field by name, as YAML holds them."""
        return {"method": self.method} | {one.name: getattr(self, one.name) for one in fields(self)}

    def peft_fields(self) -> dict[str, Any]:
        """Return the fields that the method's PEFT configuration takes."""
        ours = {one.name for one in fields(AdapterSection)} | {"method"}
        return {name: value for name, value in self.settings().items() if name not in ours}


@dataclass(kw_only=True)
class _TargetedSection(AdapterSection):
    """A method that adapts modules by name."""

    target_modules: list[str] | None = setting(
        None, "Modules to adapt, by the ends of their names; None takes all of attention."
    )


@dataclass(kw_only=True)
class LoRASection(LoRAFields, _TargetedSection):
    """Our LoRA without additions: the same targets and arithmetic as HyLoRADA's."""

    method: ClassVar[str] = "lora"
    words: ClassVar[str] = "Rank-stabilised LoRA, with DoRA if asked for."


@dataclass(kw_only=True)
class HyLoRADASection(HyLoRADAFields, _TargetedSection):
    """HyLoRADA: LoRA, landmarks and a position bias."""

    method: ClassVar[str] = "hylorada"
    words: ClassVar[str] = "LoRA with landmarks and a position bias."


@dataclass(kw_only=True)
class SubLoRASection(SubLoRAFields, _TargetedSection):
    """SubLoRA: LoRA generated from a short vector."""

    method: ClassVar[str] = "sublora"
    words: ClassVar[str] = "LoRA generated from one short vector, which compresses to a file."


METHODS: dict[str, type[AdapterSection]] = {
    section.method: section
    for section in (HyLoRADASection, LoRASection, SubLoRASection, AdapterSection)
}


def adapter_section(method: str, **values: Any) -> AdapterSection:
    """Return the section of a method with these values; the others have the method's defaults."""
    build = METHODS[known(method, METHODS, "method")]
    names = [spec.name for spec in fields(build)]
    for name in values:
        if name not in names:
            known(name, names, f"setting of method {method!r}:")
    return build(**values)


def check_lora(rank: object, alpha: object, dropout: object) -> None:
    """Refuse a rank, alpha or dropout that no LoRA layer can have."""
    whole_number("r", rank)
    real_number("lora_alpha", alpha, "positive and finite")
    real_number("lora_dropout", dropout, "in [0, 1)", "0 turns it off")


def check_temperature(temperature: float, unit: str) -> None:
    """Raise SpecError unless the softness of learnable buckets is usable."""
    real_number("bucket temperature", temperature, "positive and finite")
    require_one_of("bucket temperature unit", unit, TEMPERATURE_UNITS)


def _check_types(values: object, declared: type) -> None:
    """Refuse values of another type than declared; numpy's scalars become Python's."""
    hints = get_type_hints(declared)
    for spec in fields(declared):
        kind, *optional = get_args(hints[spec.name]) or (hints[spec.name],)
        value = getattr(values, spec.name)
        if value is not None or not optional:
            setattr(values, spec.name, plain(spec.name, value, kind))
