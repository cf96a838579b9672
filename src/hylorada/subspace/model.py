"""`SubLoRAModel`: the PEFT method. Vector and gates live once, on the tuner."""

import math
from typing import Any, ClassVar, cast

import torch
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hylorada.adapters.config import check_rank
from hylorada.adapters.registration import register
from hylorada.adapters.tuner_state import StatefulTuner
from hylorada.errors import CheckpointError, SpecError, UnsupportedModelError
from hylorada.models.anatomy import attention_projections, find_decoder
from hylorada.models.bits import BitStream
from hylorada.names import known
from hylorada.subspace.allocation import Allocation
from hylorada.subspace.config import PEFT_TYPE, SubLoRAConfig
from hylorada.subspace.core import Subspace
from hylorada.subspace.layer import SubLoRALinear, is_fused
from hylorada.subspace.stacks import layer_of, layer_stacks


class SubLoRAModel(StatefulTuner):
    """Gives linear layers updates whose factors come from one vector through fixed projections."""

    prefix: str = "sublora_"
    state_name: ClassVar[str] = "sublora_subspace"
    tuner_layer_cls = SubLoRALinear
    target_module_mapping: ClassVar[dict[str, list[str]]] = {}
    uses_shared_state: bool = True  # PEFT then refuses to throw the tuner away

    sublora_subspace: nn.ModuleDict
    handles: list[RemovableHandle]
    adapted: dict[str, list[SubLoRALinear]]

    def __init__(self, model: nn.Module, config: Any, adapter_name: str, **kwargs: Any) -> None:
        # nn.Module.__init__ has not run yet, and these are not modules.
        object.__setattr__(self, "handles", [])
        super().__init__(model, config, adapter_name, **kwargs)

    def subspace(self, adapter_name: str = "default") -> Subspace:
        """Return what an adapter trains: its `vector` and, in learned mode, its `gates`."""
        spaces = self._spaces()
        return spaces[known(adapter_name, spaces, "adapter")]

    # Injection

    def _prepare_adapter_config(
        self, peft_config: SubLoRAConfig, model_config: dict[str, Any]
    ) -> SubLoRAConfig:
        if peft_config.target_modules is None:
            peft_config.target_modules = attention_projections(self.model)
        if peft_config.target_head and self._head_name() is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no head of its own to adapt; leave out lm_head"
            )
        return peft_config

    def _check_target_module_exists(self, peft_config: SubLoRAConfig, key: str) -> Any:
        if peft_config.target_head and key == self._head_name():
            return True
        return BaseTuner._check_target_module_exists(peft_config, key)

    def _create_and_replace(
        self,
        peft_config: SubLoRAConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **_: Any,
    ) -> None:
        layer = target
        if not isinstance(layer, SubLoRALinear):
            tied = current_key == self._head_name() and self._has_tied_head()
            layer = SubLoRALinear(target, current_key, self.sublora_subspace, is_tied=tied)
            layer.train(self.model.training)
            self._replace_module(parent, target_name, layer, target)
        layer.add(adapter_name, peft_config)

    def _add_state(self, adapter_name: str) -> None:
        config = self.peft_config[adapter_name]
        layers = self._layers_of(adapter_name)
        self._check_layers(config, layers)
        stacks = layer_stacks(self.model)
        targets = [
            target
            for layer in layers
            for target in layer.targets(adapter_name, layer_of(layer.key, stacks))
        ]
        allocation = Allocation(targets, config.allocation_spec())
        start = [first_factor(t.name, t.shape, t.factor, config) for t in allocation.layout]
        subspace = Subspace(allocation, start)
        fingerprint = subspace.fingerprint(f"scaling {config.scaling()}")
        if config.fingerprint not in (None, fingerprint):
            raise CheckpointError(
                f"the adapter was made for projections, an allocation or layers with fingerprint "
                f"{config.fingerprint}; these give {fingerprint}; load it with its own "
                "configuration and base model"
            )
        config.fingerprint = fingerprint
        self.sublora_subspace[adapter_name] = subspace.train(self.model.training)
        self._move_adapter_to_device_of_base_layer(adapter_name)

    def _check_layers(self, config: SubLoRAConfig, layers: list[SubLoRALinear]) -> None:
        for layer in layers:
            check_rank(config.r, layer.in_features, layer.out_features, layer.key)
        if config.fused_parts and not any(is_fused(layer.get_base_layer()) for layer in layers):
            raise SpecError(
                f"fused_parts {config.fused_parts!r} needs a layer that computes q, k and v side "
                "by side, such as GPT-2's c_attn, among the targets; set it to None"
            )

    # Passes: the factors are generated at the start of each, before any compiled block reads them

    def _attach(self) -> None:
        self._detach()
        self.adapted = {name: self._layers_of(name) for name in self._spaces()}
        owners = {id(owner): owner for owner in (self.model, self._decoder())}
        for owner in owners.values():
            self.handles.append(owner.register_forward_pre_hook(self._begin))

    def _detach(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _decoder(self) -> nn.Module:
        try:
            return find_decoder(self.model).module
        except UnsupportedModelError:
            return self.model

    def _begin(self, module: nn.Module, args: Any) -> None:
        for name in self.active_adapters:
            if name in self.sublora_subspace and self.subspace(name).prepare():
                for layer in self.adapted[name]:
                    layer.prepare(name)

    def _spaces(self) -> dict[str, Subspace]:
        return {name: cast(Subspace, state) for name, state in self._states().items()}

    # Storing

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)
        if adapter_name in self.sublora_subspace:
            self.sublora_subspace[adapter_name].float()

    # Merging

    def _check_merge_allowed(self) -> None:
        """Allow a tied head: its layer copies the weight before it adds to it."""

    def _unload_and_optionally_merge(
        self,
        merge: bool = True,
        progressbar: bool = True,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> nn.Module:
        if merge:
            self.merge_adapter(adapter_names, safe_merge)
        if any(layer.set_aside for layer in self._layers()):
            # The merged head has a weight of its own, and a saved model must say so.
            self.model.config.tie_word_embeddings = False
        return super()._unload_and_optionally_merge(merge=False, progressbar=progressbar)

    # Anatomy

    def _layers(self) -> list[SubLoRALinear]:
        return [module for module in self.model.modules() if isinstance(module, SubLoRALinear)]

    def _layers_of(self, adapter_name: str) -> list[SubLoRALinear]:
        return [layer for layer in self._layers() if adapter_name in layer.parts]

    def _head(self) -> nn.Module | None:
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        return head if isinstance(head, nn.Module) else None

    def _head_name(self) -> str | None:
        head = self._head()
        names = (name for name, module in self.model.named_modules() if module is head)
        return None if head is None else next(names, None)

    def _has_tied_head(self) -> bool:
        head = self._head()
        inner = head.get_base_layer() if isinstance(head, BaseTunerLayer) else head
        embeddings = self.model.get_input_embeddings()
        return inner is not None and inner.weight is embeddings.weight


def first_factor(name: str, shape: tuple[int, ...], factor: str, config: SubLoRAConfig) -> Tensor:
    """Return where a factor starts: B at zero, A uniform in ±1/√in as LoRA's, from the seed."""
    if factor == "B":
        return torch.zeros(shape)
    draws = BitStream(config.projection_seed, "start", name).uniform(*shape)
    return torch.from_numpy((2 * draws - 1) / math.sqrt(shape[1])).float()


register(PEFT_TYPE, SubLoRAConfig, SubLoRAModel)
