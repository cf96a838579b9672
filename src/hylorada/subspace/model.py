"""SubLoRA in PEFT: vector and gates live once, on the tuner, and the layers read their factors."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.lora import check_rank, plus_update, rows
from hylorada.adapters.registration import StatefulTuner, register
from hylorada.errors import CheckpointError, SpecError, UnsupportedModelError
from hylorada.models.anatomy import attention_projections, find_decoder
from hylorada.names import known
from hylorada.seeds import BitStream
from hylorada.subspace.allocation import Allocation, Target, layer_of, layer_stacks
from hylorada.subspace.config import PEFT_TYPE, SubLoRAConfig
from hylorada.subspace.core import Subspace

FUSED = "qkv"


@dataclass(frozen=True, slots=True)
class Part:
    """Output rows with factors of their own: all of them, or the third that is q, k or v."""

    down: str
    up: str
    rank: int
    first_row: int
    rows: int


class SubLoRALinear(nn.Module, BaseTunerLayer):
    """`W x + s B A drop(x)` with A and B read from the adapter's subspace."""

    adapter_layer_names: tuple[str, ...] = ()  # what trains lives once, on the tuner
    other_param_names: tuple[str, ...] = ("parts", "scaling", "prepared", "sublora_dropout")

    subspaces: nn.ModuleDict
    # From PEFT, which has no types.
    get_base_layer: Callable[[], Any]
    active_adapters: list[str]
    disable_adapters: bool
    merged: bool

    def __init__(
        self, base_layer: nn.Module, key: str, subspaces: nn.ModuleDict, *, is_tied: bool
    ) -> None:
        super().__init__()
        self.base_layer, self.key, self.is_tied = base_layer, key, is_tied
        # Past nn.Module's bookkeeping: registered here, every layer would own the vector.
        object.__setattr__(self, "subspaces", subspaces)
        self.in_features, self.out_features = sides(self.get_base_layer())
        self.parts: dict[str, tuple[Part, ...]] = {}
        self.scaling: dict[str, float] = {}
        self.sublora_dropout = nn.ModuleDict()
        self.merged_adapters: list[str] = []
        self.prepared: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.set_aside: list[nn.Parameter] = []  # a tied weight while a merged copy stands in
        self._disable_adapters = False
        self._active_adapter: str | list[str] = []

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"prepared": {}}

    def add(self, adapter: str, config: SubLoRAConfig) -> None:
        """Let an adapter act on this layer."""
        stems = {self.key: (0, self.out_features)}
        if config.fused_parts is not None and is_fused(self.get_base_layer()):
            third = self.out_features // len(FUSED)
            cuts = {letter: (place * third, third) for place, letter in enumerate(FUSED)}
            stems = {f"{self.key}.{q}": cut for q, cut in cuts.items() if q in config.fused_parts}
        self.parts[adapter] = tuple(
            Part(f"{stem}.A", f"{stem}.B", config.r, *cut) for stem, cut in stems.items()
        )
        self.scaling[adapter] = config.scaling()
        drop = nn.Dropout(config.lora_dropout) if config.lora_dropout > 0 else nn.Identity()
        self.sublora_dropout[adapter] = drop.train(self.training)

    def targets(self, adapter: str, layer: str) -> Iterator[Target]:
        """Yield the factors that the adapter generates for this layer."""
        for part in self.parts[adapter]:
            yield Target(part.down, (part.rank, self.in_features), "A", layer)
            yield Target(part.up, (part.rows, part.rank), "B", layer)

    def factors(
        self, adapter: str, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "rank in_dim"], Float[Tensor, "out_dim rank"]]:
        """Return A and B; those of several parts are stacked, with zeros between them."""
        parts = self.parts[adapter]
        if torch.compiler.is_compiling():
            pairs = [(down.to(dtype), up.to(dtype)) for down, up in self.prepared[adapter]]
        else:
            pairs = self.pairs(adapter, dtype)
        if len(parts) == 1 and parts[0].rows == self.out_features:
            return pairs[0]
        rank = parts[0].rank
        stacked = pairs[0][1].new_zeros(self.out_features, rank * len(parts))
        for number, (part, (_, up)) in enumerate(zip(parts, pairs, strict=True)):
            own = slice(part.first_row, part.first_row + part.rows)
            stacked[own, number * rank : (number + 1) * rank] = up
        return torch.cat([down for down, _ in pairs]), stacked

    def pairs(self, adapter: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return A and B of each part."""
        tensors = cast(Subspace, self.subspaces[adapter]).tensors(dtype)
        return [(tensors[part.down], tensors[part.up]) for part in self.parts[adapter]]

    def prepare(self, adapter: str) -> None:
        """Lay the factors of a pass beside the layer: compiled blocks of all layers are then one.

        A graph that looks its factors up by the layer's name would serve that layer only.
        """
        self.prepared[adapter] = self.pairs(adapter, compute_dtype(self.get_base_layer()))

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Return the layer's output with the updates of the active adapters."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        result: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return result
        for adapter in self.active_adapters:
            if adapter in self.parts:
                # The coordinates have one place; a model may be spread over several devices.
                down, up = (one.to(result.device) for one in self.factors(adapter, result.dtype))
                dropped = self.sublora_dropout[adapter](x.to(result.dtype))
                low = nn.functional.linear(rows(dropped), down)
                result = plus_update(result, low, up, self.scaling[adapter])
        return result

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the layer's parameters and, while they carry gradients, the generated factors.

        Who differentiates this layer alone, as a loss computed in pieces does with the head, asks
        it for what trains in it. A model's parameters are collected another way.
        """
        yield from super().parameters(recurse)
        if torch.is_grad_enabled() and not (self.disable_adapters or self.merged):
            dtype = compute_dtype(self.get_base_layer())
            acting = [adapter for adapter in self.active_adapters if adapter in self.parts]
            factors = chain(*(pair for name in acting for pair in self.pairs(name, dtype)))
            # Not parameters, but what stands for them.
            yield from (cast(nn.Parameter, one) for one in factors if one.requires_grad)

    # Merging

    @torch.no_grad()
    def get_delta_weight(self, adapter: str) -> Tensor:
        """Return the update in the layout of the layer's weight."""
        base = self.get_base_layer()
        down, up = self.factors(adapter, torch.float32)
        delta = (up @ down) * self.scaling[adapter]
        return (delta.t() if isinstance(base, Conv1D) else delta).to(base.weight.device)

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        """Return whether plain LoRA can express the update: it is one."""
        return True

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the updates to the weight; a weight shared with the embeddings is copied first."""
        base = self.get_base_layer()
        for adapter in check_adapters_to_merge(self, adapter_names):
            if adapter not in self.parts:
                continue
            if not base.weight.is_floating_point():
                raise SpecError(
                    f"only plain weights can be merged into; {self.key} is quantised "
                    f"({type(base).__name__}): load the model unquantised to merge"
                )
            delta = self.get_delta_weight(adapter)
            if safe_merge and not bool(delta.isfinite().all()):
                raise SpecError(f"adapter {adapter!r} has updates that are no numbers; not merged")
            if self.is_tied and not self.set_aside:
                self.set_aside.append(base.weight)
                base.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
            base.weight.data += delta.to(base.weight.dtype)
            self.merged_adapters.append(adapter)

    def unmerge(self) -> None:
        """Take the updates out of the weight; a shared weight is put back."""
        base = self.get_base_layer()
        while self.merged_adapters:
            adapter = self.merged_adapters.pop()
            if not self.set_aside:
                base.weight.data -= self.get_delta_weight(adapter).to(base.weight.dtype)
        if self.set_aside:
            base.weight = self.set_aside.pop()

    def _get_available_adapters(self) -> set[str]:
        return set(self.parts)

    def __repr__(self) -> str:
        return f"sublora.{super().__repr__()}"


def is_fused(base: nn.Module) -> bool:
    """Return whether a layer computes q, k and v side by side, as GPT-2's c_attn does."""
    return isinstance(base, Conv1D) and base.nf == len(FUSED) * base.weight.shape[0]


def sides(base: nn.Module) -> tuple[int, int]:
    """Return the input and output width of a linear layer, plain, quantised or GPT-2's."""
    if isinstance(base, Conv1D):
        return int(base.weight.shape[0]), int(base.weight.shape[1])
    width, height = getattr(base, "in_features", None), getattr(base, "out_features", None)
    if width is None or height is None:
        raise SpecError(
            f"SubLoRA adapts linear layers; got {type(base).__name__}; name others in "
            "target_modules, or leave it out with exclude_modules"
        )
    return int(width), int(height)


def compute_dtype(base: nn.Module) -> torch.dtype:
    """Return the dtype a layer's output will have."""
    weight = getattr(base, "weight", None)
    if weight is None:  # some quantised layers keep theirs under another name
        weight = next(base.buffers())
    if torch.is_autocast_enabled(weight.device.type):
        return torch.get_autocast_dtype(weight.device.type)
    return weight.dtype if weight.is_floating_point() else torch.float32


class SubLoRAModel(StatefulTuner):
    """Gives linear layers updates whose factors come from one vector through fixed projections."""

    prefix: str = "sublora_"
    state_name: ClassVar[str] = "sublora_subspace"
    tuner_layer_cls = SubLoRALinear
    target_module_mapping: ClassVar[dict[str, list[str]]] = {}
    uses_shared_state: bool = True  # PEFT then refuses to throw the tuner away

    sublora_subspace: nn.ModuleDict
    handles: tuple[RemovableHandle, ...] = ()
    adapted: dict[str, list[SubLoRALinear]]

    def subspace(self, adapter_name: str = "default") -> Subspace:
        """Return what an adapter trains: its `vector` and, in learned mode, its `gates`."""
        states = self._states()
        return cast(Subspace, states[known(adapter_name, list(states), "adapter")])

    # Injection

    def _prepare_adapter_config(
        self, peft_config: SubLoRAConfig, model_config: dict[str, object]
    ) -> SubLoRAConfig:
        if peft_config.target_modules is None:
            peft_config.target_modules = attention_projections(self.model)
        if peft_config.target_head and self._head_name() is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no head of its own to adapt; leave out lm_head"
            )
        return peft_config

    def _check_target_module_exists(self, peft_config: SubLoRAConfig, key: str) -> object:
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
        **_: object,
    ) -> None:
        layer = target
        if not isinstance(layer, SubLoRALinear):
            tied = False
            if current_key == self._head_name():
                inner = target.get_base_layer() if isinstance(target, BaseTunerLayer) else target
                tied = inner.weight is self.model.get_input_embeddings().weight
            layer = SubLoRALinear(target, current_key, self.sublora_subspace, is_tied=tied)
            layer.train(self.model.training)
            self._replace_module(parent, target_name, layer, target)
        layer.add(adapter_name, peft_config)

    def _add_state(self, adapter_name: str) -> None:
        config = self.peft_config[adapter_name]
        layers = self._layers_of(adapter_name)
        for layer in layers:
            check_rank(config.r, layer.in_features, layer.out_features, layer.key)
        if config.fused_parts and not any(is_fused(layer.get_base_layer()) for layer in layers):
            raise SpecError(
                f"fused_parts {config.fused_parts!r} needs a layer that computes q, k and v side "
                "by side, such as GPT-2's c_attn, among the targets; set it to None"
            )
        stacks = layer_stacks(self.model)
        targets = (one.targets(adapter_name, layer_of(one.key, stacks)) for one in layers)
        allocation = Allocation(list(chain(*targets)), config)
        start = [first_factor(target, config.projection_seed) for target in allocation.layout]
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

    # Passes: the factors are generated at the start of each, before any compiled block reads them

    def _attach(self) -> None:
        self._detach()
        self.adapted = {name: self._layers_of(name) for name in self._states()}
        owners: dict[nn.Module, None] = {self.model: None}
        with suppress(UnsupportedModelError):
            owners[find_decoder(self.model).module] = None
        self.handles = tuple(owner.register_forward_pre_hook(self._begin) for owner in owners)

    def _detach(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = ()

    def _begin(self, module: nn.Module, args: object) -> None:
        for name in self.active_adapters:
            if name in self.sublora_subspace and self.subspace(name).prepare():
                for layer in self.adapted[name]:
                    layer.prepare(name)

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
        layers = (one for one in self.model.modules() if isinstance(one, SubLoRALinear))
        if any(layer.set_aside for layer in layers):
            # The merged head has a weight of its own, and a saved model must say so.
            self.model.config.tie_word_embeddings = False
        return super()._unload_and_optionally_merge(merge=False, progressbar=progressbar)

    def _layers_of(self, adapter_name: str) -> list[SubLoRALinear]:
        layers = (one for one in self.model.modules() if isinstance(one, SubLoRALinear))
        return [layer for layer in layers if adapter_name in layer.parts]

    def _head_name(self) -> str | None:
        head = getattr(self.model, "get_output_embeddings", lambda: None)()
        return next((name for name, one in self.model.named_modules() if one is head), None)


def first_factor(target: Target, seed: int) -> Tensor:
    """Return where a factor starts: B at zero, A uniform in ±1/√in as LoRA's, from the seed."""
    if target.factor == "B":
        return torch.zeros(target.shape)
    draws = BitStream(seed, "start", target.name).uniform(*target.shape)
    return torch.from_numpy((2 * draws - 1) / math.sqrt(target.shape[1])).float()


register(PEFT_TYPE, SubLoRAConfig, SubLoRAModel)


def find_subspace(model: nn.Module) -> Subspace | None:
    """Return the subspace of the active adapter or of an `IDModule`; None where there is none."""
    if isinstance(model, PeftModel) and isinstance(model.base_model, SubLoRAModel):
        return model.base_model.subspace(model.active_adapter)
    found = [part for part in model.modules() if isinstance(part, Subspace)]
    return found[0] if len(found) == 1 else None
