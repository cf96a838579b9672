"""What an adapter trains beyond its LoRA layers: landmarks, position bias, shared factors.

It belongs to the model as a whole, so it lives once, on the tuner, and hooks bring it to its place.
Tying `lora_A` modules between layers would not survive: PEFT re-creates parameters when it casts or
loads them, saves a copy for every layer, and FSDP refuses a parameter with two owners.
"""

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from torch import Tensor, nn

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.adapters.designs import DESIGNS, Design
from hylorada.adapters.positions import PositionBias, PositionContext, PrefixSums
from hylorada.errors import UnsupportedModelError
from hylorada.models.anatomy import Decoder, hidden_size, resident


class SharedState(nn.Module):
    """The part of one adapter that no single layer owns."""

    def __init__(
        self, config: HyLoRADAConfig, model: nn.Module, decoder: Decoder, adapted: int
    ) -> None:
        super().__init__()
        self.design_name = config.landmark_design  # a Design may hold what pickle cannot
        self.width = hidden_size(model)
        self.landmarks: nn.Module | None = None
        self.position_bias: PositionBias | None = None
        self.reads_positions = config.landmark_enabled or config.position_bias
        self.reads_the_past = False
        if config.landmark_enabled:
            self.landmarks = self.design.build(config, self.width, len(decoder.layers))
            self.reads_the_past = self.design.reads_the_past
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

    @property
    def design(self) -> Design:
        """Return the design of the landmarks."""
        return DESIGNS[self.design_name]

    def is_inert(self) -> bool:
        """Return whether the landmarks and the position bias change nothing."""
        if self.landmarks is not None and self.design.acts(self.landmarks):
            return False
        return self.position_bias is None or not self.position_bias.table.any()


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


class LandmarkSites:
    """The hooks that apply every active adapter's landmarks: after a norm, or after each block."""

    def __init__(self, context: PositionContext) -> None:
        self.context = context
        self.enabled = True
        self.active: list[str] = []
        self.states: dict[str, SharedState] = {}
        self.model_layers = 0
        self.norms = 0

    def attach(
        self, states: dict[str, SharedState], norms: dict[str, nn.Module], decoder: Decoder
    ) -> None:
        """Listen to the final norm of each adapter in `norms`, or to the blocks in its place.

        The hooks are removed with those of the context, which is attached before.
        """
        self.states, self.model_layers, self.norms = states, len(decoder.layers), 0
        for adapter, norm in norms.items():
            if states[adapter].design.after_every_block:
                self.context.handles += [
                    block.register_forward_hook(partial(self._after_block, adapter, index))
                    for index, block in enumerate(decoder.layers)
                ]
            else:
                hook = partial(self._after_norm, adapter)
                self.context.handles.append(norm.register_forward_hook(hook))
                self.norms += 1

    def _after_norm(self, adapter: str, module: nn.Module, args: object, output: object) -> Tensor:
        width = self.states[adapter].width
        if not isinstance(output, Tensor) or output.shape[-1] != width:
            raise UnsupportedModelError(
                f"landmark_module must return hidden states {width} wide; "
                f"{type(module).__name__} does not: leave it out to find the final norm"
            )
        if self.context.norm_calls == self.norms:
            raise UnsupportedModelError(
                "this model uses its final norm more than once in a pass; name another module in "
                "landmark_module or set landmark_enabled=False"
            )
        self.context.norm_calls += 1
        return self._apply(adapter, None, output)

    def _after_block(
        self, adapter: str, site: int, module: nn.Module, args: object, output: object
    ) -> object:
        if isinstance(output, tuple):
            return (self._apply(adapter, site, output[0]), *output[1:])
        assert isinstance(output, Tensor), "a block returns hidden states, alone or first"
        return self._apply(adapter, site, output)

    def _apply(self, adapter: str, site: int | None, hidden: Tensor) -> Tensor:
        rows = self.context.rows(adapter)
        serves = adapter in self.active if rows is None else bool(rows)
        if not (self.enabled and serves):
            return hidden
        state = self.states[adapter]
        assert state.landmarks is not None, "only adapters with landmarks are listened for"
        # Blocks may lie on several devices, a shared bank on one.
        home = next(state.landmarks.parameters()).device
        home = hidden.device if home.type == "meta" else home  # offloaded, and fetched by the call
        positions = self.context.require(hidden).to(home)
        extra: dict[str, object] = {} if site is None else {"site": site}
        if state.reads_the_past and self.context.cache is not None:
            owner = (adapter, site)
            extra["history"] = PrefixSums.of(self.context.cache, owner, self.model_layers)
        changed = state.landmarks(hidden.to(home), positions, **extra).to(hidden.device)
        if rows is None:
            return changed
        # The whole batch went in, so that a history keeps the rows that beam search reorders.
        index = torch.tensor(rows, device=hidden.device)
        return hidden.index_copy(0, index, changed[index])
