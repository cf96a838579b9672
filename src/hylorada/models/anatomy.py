"""Where things are in a causal language model, found from its module tree, not from names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from hylorada.errors import UnsupportedModelError

WIDENED = "widened_context"
# A widened context comes first: under dynamic scaling the other names keep the original length.
CONTEXT_NAMES = (
    WIDENED,
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)
ENDLESS_CONTEXT = 2048  # for models that declare no context length (ALiBi); what BLOOM trained on


@dataclass(frozen=True, slots=True)
class Decoder:
    """The module that owns the stack of blocks, and that stack."""

    name: str
    module: nn.Module
    layers_name: str
    layers: nn.ModuleList

    def block_name(self, index: int) -> str:
        """Return the full name of a block."""
        return ".".join(filter(None, (self.name, self.layers_name, str(index))))

    def holds(self, module_name: str) -> bool:
        """Return whether a module lies inside the decoder."""
        return not self.name or module_name.startswith(f"{self.name}.")

    def layer_of(self, module_name: str) -> int | None:
        """Return the index of the block a module lies in, or None outside the stack."""
        stack = self.block_name(0).removesuffix("0")
        if not module_name.startswith(stack):
            return None
        return int(module_name.removeprefix(stack).partition(".")[0])


def find_decoder(model: nn.Module) -> Decoder:
    """Return the longest outermost list of blocks: inner lists are experts, not layers."""
    found: list[Decoder] = []
    inside: list[str] = []
    for name, owner in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        for attribute, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) and not _is_leaf(child[0]):
                found.append(Decoder(name, owner, attribute, child))
                inside.append(".".join(filter(None, (name, attribute))) + ".")
    if not found:
        raise UnsupportedModelError(
            f"the model needs a stack of blocks (an nn.ModuleList); {type(model).__name__} has none"
        )
    return max(found, key=lambda decoder: (len(decoder.layers), _size(decoder.layers)))


def find_final_norm(model: nn.Module) -> str:
    """Return the full name of the norm between the last block and the language-model head."""
    decoder = find_decoder(model)
    before: list[str] = []
    after: list[str] = []
    side = before
    for name, child in decoder.module.named_children():
        if name == decoder.layers_name:
            side = after
        elif "norm" in type(_unwrapped(child)).__name__.lower() and not _follows_embedding(name):
            side.append(name)
    candidates = after or before
    if not candidates:
        raise UnsupportedModelError(
            f"no final norm beside the blocks of {type(decoder.module).__name__}; "
            "name the module to adapt in landmark_module, or set landmark_enabled=False"
        )
    return ".".join(filter(None, (decoder.name, candidates[-1])))


def attention_projections(model: nn.Module) -> set[str]:
    """Return the names, within a block, of the linear layers inside attention modules.

    A layer that PEFT has wrapped counts as what it wraps.
    """
    decoder = find_decoder(model)
    return {
        name
        for block in decoder.layers
        for name, module in _named_modules(block)
        if is_linear(module) and any("attn" in p or "attention" in p for p in name.split(".")[:-1])
    }


def hidden_size(model: nn.Module) -> int:
    """Return the width of the residual stream."""
    return int(_text_config(model).hidden_size)


def context_length(model: nn.Module) -> int:
    """Return the context the model was built for, in tokens."""
    config = _text_config(model)
    declared = (getattr(config, name, None) for name in CONTEXT_NAMES)
    return next((int(length) for length in declared if length), ENDLESS_CONTEXT)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer: plain, quantised or GPT-2's transposed one."""
    return isinstance(module, Conv1D) or (
        hasattr(module, "in_features") and hasattr(module, "out_features")
    )


def _text_config(model: nn.Module) -> PreTrainedConfig:
    config = getattr(model, "config", None)
    if config is None:
        raise UnsupportedModelError(
            f"the model needs a transformers config; {type(model).__name__} has none"
        )
    text: PreTrainedConfig = config.get_text_config()
    return text


def _named_modules(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a tree and their names; what PEFT has wrapped has no parts."""
    inner = _unwrapped(module)
    yield name, inner
    if inner is module:
        for part, child in module.named_children():
            yield from _named_modules(child, ".".join(filter(None, (name, part))))


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the model's own module inside PEFT's layers and wrappers.

    They are known by what they offer: importing PEFT here would import the adapters, and those
    this file.
    """
    inner: Any = module
    if hasattr(module, "get_base_layer"):
        inner = cast(Any, module).get_base_layer()
    elif hasattr(module, "original_module"):
        inner = module.original_module
    assert isinstance(inner, nn.Module), "PEFT wraps modules only"
    return inner if inner is module else _unwrapped(inner)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _follows_embedding(name: str) -> bool:
    return "emb" in name.lower() or "input" in name.lower()
