"""`HyLoRADAModel`: PEFT's LoRA tuner with landmarks, position bias and shared factors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.lora import LoraModel
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.config import PEFT_TYPE, HyLoRADAConfig
from hylorada.adapters.lora import FastDora, FastLora, LowRankUpdate, check_rank
from hylorada.adapters.positions import PositionContext, PositionGain
from hylorada.adapters.registration import StatefulTuner, register
from hylorada.adapters.shared import LandmarkSites, SharedFactor, SharedState
from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.models.anatomy import (
    attention_projections,
    context_length,
    find_decoder,
    find_final_norm,
    is_offloaded,
)
from hylorada.names import hint, known

LAYERS_WITH_VARIANTS = ("Linear", "Linear4bit", "Linear8bitLt")  # plain and bitsandbytes
FAST_PATHS = {NoneType: FastLora, DoraLinearVariant: FastDora}  # by PEFT's own variant


class HyLoRADAModel(StatefulTuner, LoraModel):
    """Injects PEFT's LoRA layers, gives them fast paths, and keeps the shared state."""

    prefix: str = "lora_"
    state_name: ClassVar[str] = "lora_shared"
    lora_shared: nn.ModuleDict

    def __init__(
        self, model: nn.Module, config: object, adapter_name: str, **kwargs: object
    ) -> None:
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
        self, peft_config: HyLoRADAConfig, model_config: dict[str, object]
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
        *args: object,
        **kwargs: object,
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
            if is_offloaded(layer.get_base_layer()):  # PEFT would leave its factors empty as well
                raise UnsupportedModelError(
                    f"a layer must be on a device when it is adapted; {name} is offloaded: adapt "
                    "the model first, then offload it"
                )
            check_rank(layer.r[adapter_name], layer.in_features, layer.out_features, name)
        if config.keeps_state_on_the_tuner():
            decoder = find_decoder(self.model)
            outside = [name for name in layers if not decoder.holds(name)]
            if config.position_bias and outside:
                raise SpecError(
                    "position_bias works inside the decoder, where tokens have positions; "
                    f"{outside[0]} is outside: leave it out of target_modules, or set "
                    "position_bias=False"
                )
            state = SharedState(config, self.model, decoder, len(layers))
            state.take_factors(config.share_factors or "", adapter_name, layers, decoder)
            self.lora_shared[adapter_name] = state
        self._move_adapter_to_device_of_base_layer(adapter_name)
        self._use_fast_paths(adapter_name, layers)
        # PEFT leaves the dropout of new modules active in evaluation mode.
        for module in (*layers.values(), self.shared_state(adapter_name)):
            if module is not None:
                module.train(self.model.training)

    def shared_state(self, adapter_name: str) -> SharedState | None:
        """Return what the adapter trains beyond its LoRA layers, or None."""
        return cast(SharedState | None, dict(self._states().items()).get(adapter_name))

    def lora_layers(self, adapter_name: str) -> Iterator[tuple[str, LoraLayer]]:
        """Yield the name and the LoRA layer of every module the adapter acts on."""
        for name, module in self.model.named_modules():
            if isinstance(module, LoraLayer) and adapter_name in module.r:
                yield name, module

    def _use_fast_paths(self, adapter_name: str, layers: dict[str, LoraLayer]) -> None:
        state = self.shared_state(adapter_name)
        bias = None if state is None else state.position_bias
        for index, (name, layer) in enumerate(layers.items()):
            kind = type(layer).__name__
            variant = type(layer.lora_variant.get(adapter_name))
            has_variants = kind in LAYERS_WITH_VARIANTS and not layer.lora_bias[adapter_name]
            fast = FAST_PATHS.get(variant) if has_variants else None
            if fast is not None:
                view = (index, adapter_name, self.positions)
                gain = None if bias is None else PositionGain(bias, *view)
                layer.lora_variant[adapter_name] = fast(gain, state)
            elif bias is not None:
                raise SpecError(
                    f"position_bias works on linear layers with plain LoRA or DoRA; {name} is "
                    f"another kind ({kind}): set position_bias=False"
                )
            # The fast paths cast the small factors down; PEFT would cast the activations up.
            layer.cast_input_dtype_enabled = not all(
                isinstance(layer.lora_variant.get(adapter), LowRankUpdate) for adapter in layer.r
            )

    def _attach(self) -> None:
        self._detach()
        states = {name: cast(SharedState, state) for name, state in self._states().items()}
        if not any(state.reads_positions for state in states.values()):
            return
        decoder = find_decoder(self.model)
        self.positions.attach(decoder)
        norms = {
            name: self.model.get_submodule(self.peft_config[name].landmark_module)
            for name, state in states.items()
            if state.landmarks is not None
        }
        self.sites.attach(states, norms, decoder)

    def _detach(self) -> None:
        self.positions.detach()

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

    # Storing

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)
        if adapter_name in self.lora_shared and autocast_adapter_dtype:
            self.lora_shared[adapter_name].float()

    @classmethod
    def _convert_state_dict_for_initial_model(
        cls, peft_model: object, peft_config: HyLoRADAConfig, path: str, *rest: object
    ) -> object:
        """Turn an adapter that began with a part of the weights into LoRA for the whole weights."""
        if peft_config.keeps_state_on_the_tuner() or peft_config.use_dora:
            raise SpecError(
                "path_initial_model_for_weight_conversion converts LoRA factors only, and there "
                "are landmarks, position bias, shared factors or DoRA's magnitudes; leave it out"
            )
        peft_config.init_lora_weights = True  # PEFT resets this for its own method only
        peft_config.save_pretrained(path)
        return super()._convert_state_dict_for_initial_model(peft_model, peft_config, path, *rest)

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
        self, adapters: list[str], weights: list[float], adapter_name: str, **kwargs: object
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


def export_lora(model: PeftModel, folder: str | Path, adapter_name: str = "default") -> None:
    """Write an adapter as PEFT's own LoRA (or DoRA) format, for users without this package.

    Shared factors are written out. Refused where LoRA cannot say what the adapter does: landmarks
    and position bias that act.
    """
    tuner = model.base_model
    if not isinstance(tuner, HyLoRADAModel):
        raise SpecError(f"export_lora takes a HyLoRADA model; got {type(tuner).__name__}")
    known(adapter_name, tuner.peft_config, "adapter")
    state = tuner.shared_state(adapter_name)
    if state is not None and not state.is_inert():
        raise SpecError(
            f"adapter {adapter_name!r} cannot become plain LoRA: its landmarks or position bias "
            "act; train with landmark_enabled=False and position_bias=False to export"
        )
    tensors = {
        name: tensor
        for name, tensor in get_peft_model_state_dict(model, adapter_name=adapter_name).items()
        if not name.startswith(f"base_model.{HyLoRADAModel.state_name}")
    }
    for name, layer in tuner.lora_layers(adapter_name):
        for factor in ("lora_A", "lora_B"):
            module = dict(getattr(layer, factor)).get(adapter_name)
            if isinstance(module, SharedFactor):
                tensors[f"base_model.model.{name}.{factor}.weight"] = module.weight
    copies = {  # row by row: safetensors takes no other strides, and an SVD leaves them
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    save_file(copies, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})
    config = tuner.peft_config[adapter_name]
    plain = {field.name: getattr(config, field.name) for field in fields(LoraConfig) if field.init}
    plain |= {"peft_type": "LORA", "inference_mode": True}
    LoraConfig(**plain).save_pretrained(folder)


register(PEFT_TYPE, HyLoRADAConfig, HyLoRADAModel)
