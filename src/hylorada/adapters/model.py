"""`HyLoRADAModel`: PEFT's LoRA tuner with landmarks, position bias and shared factors."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from peft.tuners.lora import LoraModel
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.config import PEFT_TYPE, HyLoRADAConfig, check_rank
from hylorada.adapters.dora import FastDora
from hylorada.adapters.lora import FastLora, LowRankUpdate
from hylorada.adapters.offloading import require_present
from hylorada.adapters.position_bias import PositionGain
from hylorada.adapters.positions import PositionContext
from hylorada.adapters.registration import register
from hylorada.adapters.shared import SharedState
from hylorada.adapters.sites import LandmarkSites
from hylorada.adapters.tuner_state import StatefulTuner
from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.models.anatomy import (
    Decoder,
    attention_projections,
    context_length,
    find_decoder,
    find_final_norm,
)
from hylorada.names import hint

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
            peft_config.target_modules = attention_projections(self.model)
            if not peft_config.target_modules:
                raise UnsupportedModelError(
                    f"{type(self.model).__name__} has no linear layers inside attention modules (a "
                    "recurrent model?); name target_modules, and set landmark_enabled=False and "
                    "position_bias=False if it knows no token positions"
                )
        peft_config = super()._prepare_adapter_config(peft_config, model_config)
        if peft_config.max_positions is None:
            peft_config.max_positions = context_length(self.model)
        if peft_config.landmark_enabled:
            name = peft_config.landmark_module or find_final_norm(self.model)
            modules = dict(self.model.named_modules())
            if name not in modules or not find_decoder(self.model).holds(name):
                raise SpecError(
                    f"landmark_module must name a module of the decoder; got {name!r}; "
                    f"{hint(name, modules)}leave it out to find the final norm"
                )
            peft_config.landmark_module = name
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

    def _add_state(self, adapter_name: str) -> None:
        config = self.peft_config[adapter_name]
        layers = dict(self.lora_layers(adapter_name))
        for name, layer in layers.items():
            require_present(layer.get_base_layer(), name)
            check_rank(layer.r[adapter_name], layer.in_features, layer.out_features, name)
        if config.keeps_state_on_the_tuner():
            decoder = find_decoder(self.model)
            if config.position_bias:
                self._require_inside(decoder, layers)
            state = SharedState(config, self.model, decoder, len(layers))
            state.take_factors(config.share_factors or "", adapter_name, layers, decoder)
            self.lora_shared[adapter_name] = state
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self._use_fast_paths(adapter_name, layers)
        self._follow_mode(adapter_name, layers)

    def _require_inside(self, decoder: Decoder, layers: Iterable[str]) -> None:
        for name in layers:
            if not decoder.holds(name):
                raise SpecError(
                    f"position_bias works inside the decoder, where tokens have positions; {name} "
                    "is outside: leave it out of target_modules, or set position_bias=False"
                )

    def shared_state(self, adapter_name: str) -> SharedState | None:
        """Return what the adapter trains beyond its LoRA layers, or None."""
        return dict(self._shared_states()).get(adapter_name)

    def lora_layers(self, adapter_name: str) -> Iterator[tuple[str, LoraLayer]]:
        """Yield the name and the LoRA layer of every module the adapter acts on."""
        for name, module in self.model.named_modules():
            if isinstance(module, LoraLayer) and adapter_name in module.r:
                yield name, module

    def _use_fast_paths(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        state = self.shared_state(adapter_name)
        bias = None if state is None else state.position_bias
        for index, (name, layer) in enumerate(layers.items()):
            fast = fast_variant(layer, adapter_name)
            if fast is not None:
                gain = None
                if bias is not None:
                    gain = PositionGain(bias, index, adapter_name, self.positions)
                layer.lora_variant[adapter_name] = fast(gain, state)
            elif bias is not None:
                raise SpecError(
                    f"position_bias works on linear layers with plain LoRA or DoRA; {name} is "
                    f"another kind ({type(layer).__name__}): set position_bias=False"
                )
            # The fast paths cast the small factors down; PEFT would cast the activations up.
            layer.cast_input_dtype_enabled = not all(
                isinstance(layer.lora_variant.get(adapter), LowRankUpdate) for adapter in layer.r
            )

    def _follow_mode(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        """Put new modules into the model's own mode: PEFT leaves their dropout active in eval."""
        mode = self.model.training
        for layer in layers.values():
            layer.train(mode)
        if adapter_name in self.lora_shared:
            self.lora_shared[adapter_name].train(mode)

    def _attach(self) -> None:
        self._detach()
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

    def _detach(self) -> None:
        self.positions.detach()
        self.sites.detach()

    # Switching

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        """Activate one or several adapters: LoRA layers, shared state and landmarks."""
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        self.sites.active = self.active_adapters

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

    def _shared_states(self) -> list[tuple[str, SharedState]]:
        return [(name, cast(SharedState, state)) for name, state in self._states().items()]

    # Storing

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)
        if adapter_name in self.lora_shared and autocast_adapter_dtype:
            self.lora_shared[adapter_name].float()

    @classmethod
    def _convert_state_dict_for_initial_model(
        cls, peft_model: Any, peft_config: Any, path: str, output_state_dict: Any, kwargs: Any
    ) -> Any:
        """Turn an adapter that began with a part of the weights into LoRA for the whole weights."""
        if peft_config.keeps_state_on_the_tuner() or peft_config.use_dora:
            raise SpecError(
                "path_initial_model_for_weight_conversion converts LoRA factors only, and there "
                "are landmarks, position bias, shared factors or DoRA's magnitudes; leave it out"
            )
        peft_config.init_lora_weights = True  # PEFT resets this for its own method only
        peft_config.save_pretrained(path)
        return super()._convert_state_dict_for_initial_model(
            peft_model, peft_config, path, output_state_dict, kwargs
        )

    # Merging

    def merge_adapter(
        self, adapter_names: list[str] | None = None, safe_merge: bool = False
    ) -> None:
        """Merge LoRA into the base weights, where that is all the adapter does."""
        self._refuse_to_merge_what_depends_on_positions(adapter_names)
        super().merge_adapter(adapter_names, safe_merge)

    def merge_and_unload(
        self,
        progressbar: bool = False,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> nn.Module:
        """Return the base model with LoRA merged into its weights, where that is all there is."""
        self._refuse_to_merge_what_depends_on_positions(adapter_names)
        model: nn.Module = super().merge_and_unload(progressbar, safe_merge, adapter_names)
        return model

    def _refuse_to_merge_what_depends_on_positions(self, adapter_names: list[str] | None) -> None:
        for name in adapter_names or self.active_adapters:
            state = self.shared_state(name)
            if state is not None and not state.is_inert():
                raise SpecError(
                    f"adapter {name!r} cannot be merged: its landmarks, control or position bias "
                    "are in no weight of the model; keep it unmerged, or remove it with unload()"
                )

    def add_weighted_adapter(
        self, adapters: list[str], weights: list[float], adapter_name: str, **kwargs: Any
    ) -> None:
        """Combine adapters by weight: defined where LoRA factors are all there is."""
        for name in adapters:
            if name in self.lora_shared or self.peft_config[name].use_dora:
                raise SpecError(
                    f"weighted adapters combine LoRA factors only; adapter {name!r} also has "
                    "landmarks, position bias, shared factors or DoRA's magnitudes"
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
