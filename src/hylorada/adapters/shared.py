"""What an adapter trains beyond its LoRA layers: landmarks, position bias, shared factors.

It belongs to the model as a whole, so it lives once, on the tuner, and hooks bring it to its place.
Tying `lora_A` modules between layers would not survive: PEFT re-creates parameters when it casts or
loads them, saves a copy for every layer, and FSDP refuses a parameter with two owners.
"""

from collections.abc import Mapping

from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.adapters.designs import build_landmarks
from hylorada.adapters.offloading import resident
from hylorada.adapters.position_bias import PositionBias
from hylorada.models.anatomy import Decoder, hidden_size


class SharedState(nn.Module):
    """The part of one adapter that no single layer owns."""

    def __init__(
        self, config: HyLoRADAConfig, model: nn.Module, decoder: Decoder, adapted: int
    ) -> None:
        super().__init__()
        self.design = config.landmark_design if config.landmark_enabled else None
        self.width = hidden_size(model)
        self.landmarks: nn.Module | None = None
        self.position_bias: PositionBias | None = None
        if config.landmark_enabled:
            self.landmarks = build_landmarks(config, self.width, len(decoder.layers))
        self.factors = nn.ParameterDict()
        if config.position_bias:
            assert config.max_positions is not None, "it is resolved before modules are built"
            buckets, positions = config.position_bias_buckets, config.max_positions
            self.position_bias = PositionBias(adapted, buckets, positions)

    def take_factors(
        self, letters: str, adapter_name: str, layers: Mapping[str, LoraLayer], decoder: Decoder
    ) -> None:
        """Move the factors A, B or both of all layers here, one for equal modules of all blocks."""
        for name, layer in layers.items():
            for letter, factors in (("A", layer.lora_A), ("B", layer.lora_B)):
                if letter in letters and adapter_name in factors:  # an embedding has others
                    weight = factors[adapter_name].weight
                    key = shared_key(letter, name, weight, decoder)
                    if key not in self.factors:
                        self.factors[key] = nn.Parameter(weight.detach())
                    factors[adapter_name] = SharedFactor(self.factors, key)

    def is_inert(self) -> bool:
        """Return whether the landmarks and the position bias change nothing."""
        return not (self._changes_hidden_states() or self._changes_updates())

    def _changes_hidden_states(self) -> bool:
        """Return whether the landmark module acts: its output scale or offset is not zero."""
        last = {"bias": "bias", "low_rank": "up", "norm_gain": "gain"}
        if self.landmarks is None:
            return False
        name = last.get(str(self.design), "scale")
        return any(
            bool(parameter.any())
            for full_name, parameter in self.landmarks.named_parameters()
            if full_name.rpartition(".")[2] == name
        )

    def _changes_updates(self) -> bool:
        return self.position_bias is not None and bool(self.position_bias.table.any())


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
        return resident(self.store, self.key)

    def forward(self, x: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        """Apply the shared weight as a linear map."""
        return nn.functional.linear(x, self.weight)


def shared_key(factor: str, module_name: str, weight: Tensor, decoder: Decoder) -> str:
    """Return the key of the factor that equal modules of all layers share."""
    layer, place = decoder.layer_of(module_name), module_name
    if layer is not None:
        block = decoder.block_name(layer)
        place = f"{block.removesuffix(str(layer))}*{module_name.removeprefix(block)}"
    shape = "x".join(map(str, weight.shape))
    return f"{factor}|{place}|{shape}".replace(".", "/")  # a ParameterDict key has no dots
