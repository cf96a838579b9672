"""`SubLoRAConfig`: LoRA whose factors are generated from one trained vector."""

from dataclasses import dataclass, field
from math import sqrt

from peft import PeftConfig

from hylorada.adapters.config import check_lora
from hylorada.adapters.registration import add_peft_type
from hylorada.errors import SpecError
from hylorada.subspace.allocation import AllocationSpec

PEFT_TYPE = add_peft_type("SUBLORA")
HEAD = "lm_head"


@dataclass
class SubLoRAConfig(PeftConfig):
    """LoRA in a random subspace: the factors are `θ0 + P w`, and only w trains.

    `target_modules=None` means every projection of every attention module. The head is named
    `lm_head` among the targets, or by `target_head=True`; where it shares its weight with the
    embeddings, they stay as they are.
    """

    r: int = field(default=4, metadata={"help": "Rank of the generated factors."})
    lora_alpha: float = field(default=32.0, metadata={"help": "Numerator of the LoRA scaling."})
    lora_dropout: float = field(
        default=0.0, metadata={"help": "Dropout on the input of the LoRA branch."}
    )
    use_rslora: bool = field(
        default=False, metadata={"help": "Scale by alpha / sqrt(r) instead of alpha / r."}
    )
    target_modules: list[str] | set[str] | str | None = field(
        default=None, metadata={"help": "Modules to adapt, as in LoraConfig."}
    )
    exclude_modules: list[str] | set[str] | str | None = field(
        default=None, metadata={"help": "Modules not to adapt, as in LoraConfig."}
    )
    target_head: bool = field(
        default=False, metadata={"help": "Whether the language-model head is adapted too."}
    )
    fused_parts: str | None = field(
        default=None,
        metadata={
            "help": "For GPT-2's fused c_attn: which of q, k and v are adapted, each with factors "
            "of its own, such as 'qv'; None adapts the fused layer as one."
        },
    )
    layers_to_transform: list[int] | int | None = field(
        default=None, metadata={"help": "Layers to adapt, as in LoraConfig."}
    )
    layers_pattern: list[str] | str | None = field(
        default=None, metadata={"help": "Name of the list of layers, as in LoraConfig."}
    )
    modules_to_save: list[str] | None = field(
        default=None, metadata={"help": "Modules to train as a whole and save with the adapter."}
    )

    intrinsic_dim: int = field(default=1000, metadata={"help": "Trained coordinates d."})
    allocation_mode: str = field(
        default="uniform", metadata={"help": "How A and B share them: uniform, fixed or learned."}
    )
    allocation_ratio: float = field(
        default=0.5, metadata={"help": "B's share of the coordinates in fixed mode."}
    )
    gate_sharpness: float = field(
        default=10.0, metadata={"help": "C of the soft mask in learned mode."}
    )
    gate_sharpness_start: float | None = field(
        default=None, metadata={"help": "C at the start of training; None keeps it."}
    )
    relative_sharpness: bool = field(
        default=False, metadata={"help": "Count C per layer's slice instead of per coordinate."}
    )
    projection: str = field(
        default="grouped",
        metadata={"help": "Projection: dense, sparse, kron_qr, fastfood or grouped."},
    )
    projection_seed: int = field(
        default=137, metadata={"help": "Seed of the projections and of the frozen start of A."}
    )
    fingerprint: str | None = field(
        default=None,
        metadata={"help": "Filled in: hash of all that turns the vector into weights."},
    )

    def __post_init__(self) -> None:
        """Check every field, and set the head apart from the other targets."""
        super().__post_init__()
        self.peft_type = PEFT_TYPE
        check_lora(self.r, self.lora_alpha, self.lora_dropout)
        self._check_targets()
        self.allocation_spec()
        if self.target_modules is not None and not isinstance(self.target_modules, str):
            # PEFT would write the whole embedding into the file of an adapter that names the head.
            self.target_head = self.target_head or HEAD in self.target_modules
            self.target_modules = set(self.target_modules) - {HEAD}

    def allocation_spec(self) -> AllocationSpec:
        """Return how the coordinates move the factors."""
        return AllocationSpec(
            dim=self.intrinsic_dim,
            mode=self.allocation_mode,
            ratio=self.allocation_ratio,
            sharpness=self.gate_sharpness,
            sharpness_start=self.gate_sharpness_start,
            relative_sharpness=self.relative_sharpness,
            projection=self.projection,
            seed=self.projection_seed,
        )

    def scaling(self) -> float:
        """Return s in `W x + s B A x`."""
        return float(self.lora_alpha / (sqrt(self.r) if self.use_rslora else self.r))

    def _check_targets(self) -> None:
        parts = self.fused_parts
        if parts is not None and (
            not parts or set(parts) - set("qkv") or len(set(parts)) != len(parts)
        ):
            raise SpecError(f"fused_parts must be letters of 'qkv', each once; got {parts!r}")
        if isinstance(self.target_modules, str) and self.layers_to_transform is not None:
            raise SpecError(
                "layers_to_transform works with a list of target_modules; got a pattern, "
                f"{self.target_modules!r}: write the layers into it"
            )
