"""Factors shared across layers, kept once on the tuner.

Tying `lora_A` modules between layers does not survive: PEFT re-creates parameters when it casts or
loads them, saves a copy for every layer, and FSDP refuses a parameter with two owners.
"""

import re

from jaxtyping import Float
from torch import Tensor, nn

from hylorada.models.anatomy import Decoder


class SharedFactor(nn.Module):
    """Stands in for a layer's `lora_A` or `lora_B`; the weight lives in the shared store."""

    bias = None
    store: nn.ParameterDict

    def __init__(self, store: nn.ParameterDict, key: str) -> None:
        super().__init__()
        # Past nn.Module's bookkeeping: registered here, the weight would be owned by every layer.
        object.__setattr__(self, "store", store)
        self.key = key

    @property
    def weight(self) -> Tensor:
        """Return the one shared weight."""
        return self.store[self.key]

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        """Apply the shared weight as a linear map."""
        return nn.functional.linear(x, self.weight)


def shared_key(factor: str, module_name: str, weight: Tensor, decoder: Decoder) -> str:
    """Return the key of the factor that equal modules of all layers share."""
    layer = decoder.layer_of(module_name)
    place = module_name if layer is None else re.sub(rf"\.{layer}\.", ".*.", module_name, count=1)
    shape = "x".join(map(str, weight.shape))
    return f"{factor}|{place}|{shape}".replace(".", "/")  # a ParameterDict key has no dots
