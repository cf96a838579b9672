"""The linear layer that adds the generated update: it owns no parameters of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.lora import plus_update, rows
from hylorada.errors import SpecError
from hylorada.subspace.allocation import Target
from hylorada.subspace.config import SubLoRAConfig

FUSED = "qkv"


@dataclass(frozen=True, slots=True)
class Part:
    """Output rows with factors of their own: all of them, or the third that is q, k or v."""

    name: str
    first_row: int
    rows: int


class SubLoRALinear(nn.Module, BaseTunerLayer):
    """`W x + s B A drop(x)` with A and B read from the adapter's subspace."""

    adapter_layer_names: tuple[str, ...] = ()  # what trains lives once, on the tuner
    other_param_names: tuple[str, ...] = ("parts", "scaling", "rank", "prepared", "sublora_dropout")

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
        self.base_layer = base_layer
        self.key = key
        self.is_tied = is_tied
        # Past nn.Module's bookkeeping: registered here, every layer would own the vector.
        object.__setattr__(self, "subspaces", subspaces)
        self.in_features, self.out_features = sides(self.get_base_layer())
        self.parts: dict[str, tuple[Part, ...]] = {}
        self.scaling: dict[str, float] = {}
        self.rank: dict[str, int] = {}
        self.sublora_dropout = nn.ModuleDict()
        self.merged_adapters: list[str] = []
        self.prepared: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.set_aside: list[nn.Parameter] = []  # a tied weight while a merged copy stands in
        self._disable_adapters = False
        self._active_adapter: str | list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"prepared": {}}

    def add(self, adapter: str, config: SubLoRAConfig) -> None:
        """Let an adapter act on this layer."""
        self.parts[adapter] = self._parts(config)
        self.scaling[adapter] = config.scaling()
        self.rank[adapter] = config.r
        drop = nn.Dropout(config.lora_dropout) if config.lora_dropout > 0 else nn.Identity()
        self.sublora_dropout[adapter] = drop.train(self.training)

    def targets(self, adapter: str, layer: str) -> Iterator[Target]:
        """Yield the factors that the adapter generates for this layer."""
        rank = self.rank[adapter]
        for part in self.parts[adapter]:
            down, up = self._names(part)
            yield Target(name=down, shape=(rank, self.in_features), factor="A", layer=layer)
            yield Target(name=up, shape=(part.rows, rank), factor="B", layer=layer)

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
        rank, width = self.rank[adapter], self.rank[adapter] * len(parts)
        blocks, filled = [], 0
        for number, (part, (_, up)) in enumerate(zip(parts, pairs, strict=True)):
            blocks.append(up.new_zeros(part.first_row - filled, width))
            left = number * rank
            blocks.append(nn.functional.pad(up, (left, width - rank - left)))
            filled = part.first_row + part.rows
        blocks.append(blocks[0].new_zeros(self.out_features - filled, width))
        return torch.cat([down for down, _ in pairs]), torch.cat(blocks)

    def pairs(self, adapter: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return A and B of each part."""
        subspace: Any = self.subspaces[adapter]
        tensors = subspace.tensors(dtype)
        names = (self._names(part) for part in self.parts[adapter])
        return [(tensors[down], tensors[up]) for down, up in names]

    def prepare(self, adapter: str) -> None:
        """Lay the factors of a pass beside the layer: compiled blocks of all layers are then one.

        A graph that looks its factors up by the layer's name would serve that layer only.
        """
        self.prepared[adapter] = self.pairs(adapter, compute_dtype(self.get_base_layer()))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output with the updates of the active adapters."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        result: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return result
        for adapter in self.active_adapters:
            if adapter in self.parts:
                result = self._updated(adapter, x, result)
        return result

    def _updated(self, adapter: str, x: Tensor, result: Tensor) -> Tensor:
        # The coordinates have one place; a model may be spread over several devices.
        down, up = (factor.to(result.device) for factor in self.factors(adapter, result.dtype))
        x = self.sublora_dropout[adapter](x.to(result.dtype))
        low = nn.functional.linear(rows(x), down)
        return plus_update(result, low, up, self.scaling[adapter])

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yield the layer's parameters and, while they carry gradients, the generated factors.

        Who differentiates this layer alone, as a loss computed in pieces does with the head, asks
        it for what trains in it. A model's parameters are collected another way.
        """
        yield from super().parameters(recurse)
        if torch.is_grad_enabled() and not (self.disable_adapters or self.merged):
            for adapter in self.active_adapters:
                if adapter in self.parts:
                    yield from self._trainable_factors(adapter)

    def _trainable_factors(self, adapter: str) -> Iterator[Any]:
        for pair in self.pairs(adapter, compute_dtype(self.get_base_layer())):
            yield from (factor for factor in pair if factor.requires_grad)

    # Merging

    @torch.no_grad()
    def get_delta_weight(self, adapter: str) -> Tensor:
        """Return the update in the layout of the layer's weight."""
        weight = self.get_base_layer().weight
        down, up = self.factors(adapter, torch.float32)
        delta = (up @ down) * self.scaling[adapter]
        return (delta.t() if isinstance(self.get_base_layer(), Conv1D) else delta).to(weight.device)

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

    def _names(self, part: Part) -> tuple[str, str]:
        stem = f"{self.key}.{part.name}" if part.name else self.key
        return f"{stem}.A", f"{stem}.B"

    def _parts(self, config: SubLoRAConfig) -> tuple[Part, ...]:
        if config.fused_parts is None or not is_fused(self.get_base_layer()):
            return (Part("", 0, self.out_features),)
        third = self.out_features // len(FUSED)
        return tuple(
            Part(letter, place * third, third)
            for place, letter in enumerate(FUSED)
            if letter in config.fused_parts
        )

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
