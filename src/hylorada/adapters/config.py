"""`HyLoRADAConfig`: PEFT's LoRA configuration and what HyLoRADA adds to it."""

from dataclasses import dataclass, field
from functools import partial

from peft import LoraConfig

from hylorada.adapters.designs import DESIGNS
from hylorada.adapters.registration import add_peft_type
from hylorada.errors import SpecError
from hylorada.names import plain, real_number, require_one_of, whole_number
from hylorada.specs.adapters import HyLoRADAFields

PEFT_TYPE = add_peft_type("HYLORADA")
STARTS_TO_SHARE = (True, False, "gaussian")  # others take a part out of each layer's weight


@dataclass
class HyLoRADAConfig(HyLoRADAFields, LoraConfig):
    """Rank-stabilised LoRA with a position bias and position-adaptive landmarks.

    Every field of `LoraConfig` works as in PEFT; ours are in `HyLoRADAFields`.
    `target_modules=None` means every projection of every attention module.
    """

    # PEFT's metadata marks it as a variant of LoRA.
    use_dora: bool = field(
        default=HyLoRADAFields.use_dora,
        metadata=LoraConfig.__dataclass_fields__["use_dora"].metadata,
    )

    def __post_init__(self) -> None:
        """Check every field that PEFT does not, before PEFT reads any."""
        self.check()
        alpha = partial(real_number, rule="positive and finite")
        for name, check in (("rank_pattern", whole_number), ("alpha_pattern", alpha)):
            pattern = plain(name, getattr(self, name) or {}, dict)
            checked = {key: check(f"{name}[{key!r}]", value) for key, value in pattern.items()}
            setattr(self, name, checked)
        start = self.init_lora_weights
        if self.share_factors is not None and start not in STARTS_TO_SHARE:
            raise SpecError(
                f"share_factors={self.share_factors!r} needs a start fitted to no layer's weight; "
                f"got init_lora_weights={start!r}: set it to True, False or 'gaussian'"
            )
        if start == "eva" and (self.position_bias or self.use_dora):
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

    def _check_landmarks(self) -> None:
        require_one_of("landmark_design", self.landmark_design, DESIGNS)
        design = DESIGNS[self.landmark_design]
        fewest = {
            "num_landmarks": design.fewest_landmarks,
            "num_position_buckets": design.fewest_buckets,
        }
        for name, least in fewest.items():
            if getattr(self, name) < least:
                raise SpecError(
                    f"{name} must be at least {least} for landmark_design={design.name!r}; got "
                    f"{getattr(self, name)}; raise it, or set landmark_enabled=False"
                )
