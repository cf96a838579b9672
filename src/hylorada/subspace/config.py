"""`SubLoRAConfig`: the PEFT configuration of SubLoRA."""

from dataclasses import dataclass
from math import sqrt

from peft import PeftConfig

from hylorada.adapters.registration import add_peft_type
from hylorada.errors import SpecError
from hylorada.names import known
from hylorada.specs import setting
from hylorada.specs.adapters import SubLoRAFields
from hylorada.subspace.projections import PROJECTIONS

PEFT_TYPE = add_peft_type("SUBLORA")
HEAD = "lm_head"
Modules = list[str] | set[str] | str | None


@dataclass
class SubLoRAConfig(SubLoRAFields, PeftConfig):
    """LoRA in a random subspace: the factors are `θ0 + P w`, and only w trains.

    `target_modules=None` means every projection of every attention module. The head is named
    `lm_head` among the targets, or by `target_head=True`; where it shares its weight with the
    embeddings, they stay as they are.
    """

    target_modules: Modules = setting(None, "Modules to adapt, as in LoraConfig.")
    exclude_modules: Modules = setting(None, "Modules not to adapt, as in LoraConfig.")
    target_head: bool = setting(False, "Whether the language-model head is adapted too.")
    layers_to_transform: list[int] | int | None = setting(
        None, "Layers to adapt, as in LoraConfig."
    )
    layers_pattern: list[str] | str | None = setting(
        None, "Name of the list of layers, as in LoraConfig."
    )
    modules_to_save: list[str] | None = setting(
        None, "Modules to train as a whole and save with the adapter."
    )
    fingerprint: str | None = setting(
        None, "Filled in: hash of all that turns the vector into weights."
    )

    def __post_init__(self) -> None:
        """Check every field, and set the head apart from the other targets."""
        super().__post_init__()
        self.peft_type = PEFT_TYPE
        self.check()
        known(self.projection, PROJECTIONS, "projection")
        if isinstance(self.target_modules, str) and self.layers_to_transform is not None:
            raise SpecError(
                "layers_to_transform works with a list of target_modules; got a pattern, "
                f"{self.target_modules!r}: write the layers into it"
            )
        if self.target_modules is not None and not isinstance(self.target_modules, str):
            # PEFT would write the whole embedding into the file of an adapter that names the head.
            self.target_head = self.target_head or HEAD in self.target_modules
            self.target_modules = set(self.target_modules) - {HEAD}

    def scaling(self) -> float:
        """Return s in `W x + s B A x`."""
        return float(self.lora_alpha / (sqrt(self.r) if self.use_rslora else self.r))
