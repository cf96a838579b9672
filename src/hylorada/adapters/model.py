"""`HyLoRADAModel`: PEFT's LoRA tuner with landmarks, position bias and shared factors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from peft.tuners.lora import LoraModel
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.config import PEFT_TYPE, HyLoRADAConfig
from hylorada.adapters.dora import FastDora
from hylorada.adapters.lora import FastLora, LowRankUpdate
from hylorada.adapters.position_bias import PositionBias, PositionGain
from hylorada.adapters.positions import PositionContext
from hylorada.adapters.registration import register
from hylorada.adapters.shared import LandmarkSites, SharedState
from hylorada.adapters.sharing import SharedFactor, shared_key
from hylorada.adapters.tuner_state import StatefulTuner
from hylorada.errors import SpecError
from hylorada.models.anatomy import (
    Decoder,
    attention_projections,
    context_length,
    find_decoder,
    find_final_norm,
)

LAYERS_WITH_VARIANTS = ("Linear", "Linear4bit", "Linear8bitLt")  # plain and bitsandbytes


class HyLoRADAModel(StatefulTuner, LoraModel):
    """Injects PEFT's LoRA layers, gives them fast paths, and keeps the shared state."""

    prefix: str = "lora_"
    state_name: ClassVar[str] = "lora_shared"
    lora_shared: nn.ModuleDict

    def __init__(self, model: nn.Module, config: Any, adapter_name: str, **kwargs: Any) -> None:
        if isinstance(config, HyLoRADAConfig) and config.keeps_state_on_the_tuner():
            raise SpecError(
                "landmarks, position bias and shared factors live on the PEFT model, which "
                "inject_adapter_in_model throws away; use get_peft_model"
            )
        context = PositionContext()
        # nn.Module.__init__ has not run yet, and these are not modules.
        object.__setattr__(self, "positions", context)
        object.__setattr__(self, "sites", LandmarkSites(context))
        super().__init__(model, config, adapter_name, **kwargs)

    # Configuration

    def _prepare_adapter_config(
        self, peft_config: HyLoRADAConfig, model_config: dict[str, Any]
    ) -> HyLoRADAConfig:
        if peft_config.target_modules is None and not peft_config.target_parameters:
            peft_config.target_modules = attention_projections(self.model) or None
        peft_config = super()._prepare_adapter_config(peft_config, model_config)
        if peft_config.max_positions is None:
            peft_config.max_positions = context_length(self.model)
        if peft_config.landmark_enabled and peft_config.landmark_module is None:
            peft_config.landmark_module = find_final_norm(self.model)
        return peft_config

    def _create_and_replace(
        self,
        lora_config: HyLoRADAConfig,
        adapter_name: str,
        target: nn.Module,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        base = target.get_base_layer() if isinstance(target, LoraLayer) else target
        if isinstance(base, Conv1D):  # stores its weight transposed; PEFT would set this and warn
            lora_config.fan_in_fan_out = True
        super()._create_and_replace(lora_config, adapter_name, target, *args, **kwargs)

    # Injection

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        """Add an adapter: PEFT's LoRA layers first, then what belongs to the model as a whole.

        An adapter that is refused leaves the model as it was.
        """
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        if "lora_shared" not in self._modules:
            self.lora_shared = nn.ModuleDict()
        try:
            self._add_what_lora_lacks(adapter_name)
        except SpecError:
            self._withdraw(adapter_name)
            for parameter in trained:
                parameter.requires_grad_()
            raise

    def _add_what_lora_lacks(self, adapter_name: str) -> None:
        config = self.peft_config[adapter_name]
        layers = dict(self.lora_layers(adapter_name))
        self._check_ranks(adapter_name, layers)
        if config.keeps_state_on_the_tuner():
            decoder = find_decoder(self.model)
            state = SharedState(config, self.model, decoder)
            if config.position_bias:
                buckets, positions = config.position_bias_buckets, config.max_positions
                state.position_bias = PositionBias(len(layers), buckets, positions)
            self.lora_shared[adapter_name] = state
            self._share_factors(adapter_name, layers, decoder)
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self._use_fast_paths(adapter_name, layers)
        self._follow_mode(adapter_name, layers)
        self._attach()
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)

    def _withdraw(self, adapter_name: str) -> None:
        if list(self.peft_config) == [adapter_name]:
            self._unload_and_optionally_merge(merge=False, progressbar=False)
        else:
            self.delete_adapter(adapter_name)

    def shared_state(self, adapter_name: str) -> SharedState | None:
        """Return what the adapter trains beyond its LoRA layers, or None."""
        return dict(self._shared_states()).get(adapter_name)

    def lora_layers(self, adapter_name: str) -> Iterator[tuple[str, LoraLayer]]:
        """Yield the name and the LoRA layer of every module the adapter acts on."""
        for name, module in self.model.named_modules():
            if isinstance(module, LoraLayer) and adapter_name in module.r:
                yield name, module

    def _check_ranks(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        for name, layer in layers.items():
            smaller = min(layer.in_features, layer.out_features)
            if layer.r[adapter_name] > smaller:
                raise SpecError(
                    f"r must not exceed the smaller side, {smaller}, of {name}; "
                    f"got {layer.r[adapter_name]}"
                )

    def _share_factors(
        self, adapter_name: str, layers: dict[str, LoraLayer], decoder: Decoder
    ) -> None:
        which = self.peft_config[adapter_name].share_factors or ""
        state = self.shared_state(adapter_name)
        store = nn.ParameterDict() if state is None else state.factors
        for name, layer in layers.items():
            for letter, factors in (("A", layer.lora_A), ("B", layer.lora_B)):
                if letter in which and adapter_name in factors:  # an embedding has others
                    weight = factors[adapter_name].weight
                    key = shared_key(letter, name, weight, decoder)
                    if key not in store:
                        store[key] = nn.Parameter(weight.detach())
                    factors[adapter_name] = SharedFactor(store, key)

    def _use_fast_paths(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        bias = self._position_bias(adapter_name)
        for index, (name, layer) in enumerate(layers.items()):
            fast = fast_variant(layer, adapter_name)
            if fast is not None:
                gain = None
                if bias is not None:
                    gain = PositionGain(bias, index, adapter_name, self.positions)
                layer.lora_variant[adapter_name] = fast(gain)
            elif bias is not None:
                raise SpecError(
                    f"position_bias works on linear layers with plain LoRA or DoRA; {name} is "
                    f"another kind ({type(layer).__name__}): set position_bias=False"
                )
            # The fast paths cast the small factors down; PEFT would cast the activations up.
            layer.cast_input_dtype_enabled = not all(
                isinstance(layer.lora_variant.get(adapter), LowRankUpdate) for adapter in layer.r
            )

    def _position_bias(self, adapter_name: str) -> PositionBias | None:
        state = self.shared_state(adapter_name)
        return None if state is None else state.position_bias

    def _follow_mode(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        """Put new modules into the model's own mode: PEFT leaves their dropout active in eval."""
        mode = self.model.training
        for layer in layers.values():
            layer.train(mode)
        if adapter_name in self.lora_shared:
            self.lora_shared[adapter_name].train(mode)

    def _attach(self) -> None:
        configs = {n: c for n, c in self.peft_config.items() if n in self.lora_shared}
        if not any(c.landmark_enabled or c.position_bias for c in configs.values()):
            return
        decoder = find_decoder(self.model)
        self.positions.attach(decoder)
        norms = {
            name: self.model.get_submodule(config.landmark_module)
            for name, config in configs.items()
            if config.landmark_enabled
        }
        self.sites.attach(dict(self._shared_states()), norms, decoder)

    # Switching

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        """Activate one or several adapters, LoRA layers and shared state alike."""
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        active = [adapter_name] if isinstance(adapter_name, str) else list(adapter_name)
        self._activate_shared(active, inference_mode)

    def _activate_shared(self, active: list[str], inference_mode: bool) -> None:
        self.sites.active = active
        for name, state in self._shared_states():
            state.requires_grad_(name in active and not inference_mode)

    def set_requires_grad(self, adapter_names: str | list[str], requires_grad: bool = True) -> None:
        """Enable or disable gradients of the named adapters."""
        super().set_requires_grad(adapter_names, requires_grad)
        names = [adapter_names] if isinstance(adapter_names, str) else adapter_names
        for name, state in self._shared_states():
            if name in names:
                state.requires_grad_(requires_grad)

    def _enable_adapter_layers(self, enabled: bool = True) -> None:
        super()._enable_adapter_layers(enabled)
        self.sites.enabled = enabled

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        names = kwargs.get("adapter_names")
        if names is not None and isinstance(kwargs.get("num_beams"), int):
            names = [name for name in names for _ in range(kwargs["num_beams"])]
        self.positions.mixed_batch = names
        try:
            with super()._enable_peft_forward_hooks(*args, **kwargs):
                yield
        finally:
            self.positions.mixed_batch = None

    def delete_adapter(self, adapter_name: str) -> None:
        """Remove an adapter with all it trained."""
        super().delete_adapter(adapter_name)
        if adapter_name in self.lora_shared:
            del self.lora_shared[adapter_name]
        self.positions.detach()
        self.sites.detach()
        self._attach()
        self._activate_shared(self.active_adapters, inference_mode=False)  # as PEFT's layers do

    def _shared_states(self) -> list[tuple[str, SharedState]]:
        return [(name, cast(SharedState, state)) for name, state in self._states().items()]

    # Storing

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)
        if adapter_name in self.lora_shared and autocast_adapter_dtype:
            self.lora_shared[adapter_name].float()

    # Merging

    def merge_adapter(
        self, adapter_names: list[str] | None = None, safe_merge: bool = False
    ) -> None:
        """Merge LoRA into the base weights, where that is all the adapter does."""
        self._refuse_to_merge_what_depends_on_positions(adapter_names)
        super().merge_adapter(adapter_names, safe_merge)

    def _unload_and_optionally_merge(
        self,
        merge: bool = True,
        progressbar: bool = True,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> nn.Module:
        if merge:
            self._refuse_to_merge_what_depends_on_positions(adapter_names)
        model: nn.Module = super()._unload_and_optionally_merge(
            merge, progressbar, safe_merge, adapter_names
        )
        self.positions.detach()
        self.sites.detach()
        return model

    def _refuse_to_merge_what_depends_on_positions(self, adapter_names: list[str] | None) -> None:
        for name in adapter_names or self.active_adapters:
            state = self.shared_state(name)
            if state is not None and not state.is_inert():
                raise SpecError(
                    f"adapter {name!r} cannot be merged: landmarks and position bias depend on "
                    "the token's position; keep it unmerged, or remove it with unload()"
                )

    def add_weighted_adapter(
        self, adapters: list[str], weights: list[float], adapter_name: str, **kwargs: Any
    ) -> None:
        """Combine adapters by weight: defined where LoRA factors are all there is."""
        for name in adapters:
            if name in self.lora_shared:
                raise SpecError(
                    f"weighted adapters combine LoRA factors only; adapter {name!r} also has "
                    "landmarks, position bias or shared factors"
                )
        super().add_weighted_adapter(adapters, weights, adapter_name, **kwargs)
        # PEFT writes the scaling into the new factors and forgets that rsLoRA would apply another.
        self.peft_config[adapter_name].use_rslora = False
        for _, layer in self.lora_layers(adapter_name):
            layer.use_rslora[adapter_name] = False
            layer.scaling[adapter_name] = layer.lora_alpha[adapter_name] / layer.r[adapter_name]


def fast_variant(layer: LoraLayer, adapter_name: str) -> type[FastLora] | type[FastDora] | None:
    """Return the fast path for a layer, or None where PEFT's own forward has to serve."""
    if type(layer).__name__ not in LAYERS_WITH_VARIANTS or layer.lora_bias[adapter_name]:
        return None
    variant = layer.lora_variant.get(adapter_name)
    if variant is None:
        return FastLora
    return FastDora if type(variant) is DoraLinearVariant else None


register(PEFT_TYPE, HyLoRADAConfig, HyLoRADAModel)
