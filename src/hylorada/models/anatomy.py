"""Where things are in a causal language model, found from its module tree, not from names."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D
from transformers.utils.generic import ModelOutput

from hylorada.errors import UnsupportedModelError

WIDENED = "widened_context"
# A widened context comes first: under dynamic scaling the other names keep the original length.
CONTEXT_NAMES = (WIDENED, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
EMBEDDING = re.compile("emb|input", re.IGNORECASE)  # in the name of a norm behind embeddings
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
        return _joined(self.name, self.layers_name, str(index))

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
            if isinstance(child, nn.ModuleList) and len(child) and [*child[0].children()]:
                found.append(Decoder(name, owner, attribute, child))
                inside.append(_joined(name, attribute) + ".")
    if not found:
        raise UnsupportedModelError(
            f"the model needs a stack of blocks (an nn.ModuleList); {type(model).__name__} has none"
        )
    return max(
        found,
        key=lambda one: (len(one.layers), sum(p.numel() for p in one.layers.parameters())),
    )


def find_final_norm(model: nn.Module) -> str:
    """Return the full name of the norm between the last block and the language-model head."""
    decoder = find_decoder(model)
    norms = [
        name
        for name, child in decoder.module.named_children()
        if "norm" in type(_unwrapped(child)).__name__.lower() and not EMBEDDING.search(name)
    ]
    if not norms:
        raise UnsupportedModelError(
            f"no final norm beside the blocks of {type(decoder.module).__name__}; "
            "name the module to adapt in landmark_module, or set landmark_enabled=False"
        )
    return _joined(decoder.name, norms[-1])


def attention_projections(model: nn.Module) -> set[str]:
    """Return the names, within a block, of the linear layers inside attention modules.

    A layer that PEFT has wrapped counts as what it wraps.
    """
    return {
        name
        for block in find_decoder(model).layers
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


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _named_modules(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a tree and their names; what PEFT has wrapped has no parts."""
    inner = _unwrapped(module)
    yield name, inner
    if inner is module:
        for part, child in module.named_children():
            yield from _named_modules(child, _joined(name, part))


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the model's own module inside PEFT's layers and wrappers.

    They are known by what they offer: importing PEFT here would import the adapters, and those
    this file.
    """
    ask = getattr(module, "get_base_layer", None)
    inner: nn.Module = getattr(module, "original_module", module) if ask is None else ask()
    return inner if inner is module else _unwrapped(inner)


def resident(module: nn.Module, name: str = "weight") -> Tensor:
    """Return a module's tensor, fetched for the moment if it is offloaded."""
    tensor: Tensor = getattr(module, name)
    if not (tensor.is_meta and is_offloaded(module, name)):
        return tensor
    hook = vars(module)["_hf_hook"]
    hook.pre_forward(module)
    tensor = getattr(module, name)
    hook.post_forward(module, None)  # puts another tensor in its place
    return tensor


def is_offloaded(module: nn.Module, name: str = "weight") -> bool:
    """Return whether accelerate keeps a module's tensor elsewhere."""
    tensor = getattr(module, name, None)
    return isinstance(tensor, Tensor) and tensor.is_meta and "_hf_hook" in vars(module)


PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A decoder and the head that turns its hidden states into the model's own logits."""

    decoder: nn.Module
    head: Callable[[Float[Tensor, "count dim"]], Float[Tensor, "count vocab"]]
    vocabulary: int


def underlying_causal_lm(model: nn.Module) -> nn.Module:
    """Return the causal language model inside a PEFT wrapper, adapters still in place."""
    from peft import PeftModel  # imports our adapters, which import this module

    if not isinstance(model, PeftModel):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise UnsupportedModelError(
            "prompt-learning adapters put virtual tokens before the text, which moves every "
            f"position; got {type(model.active_peft_config).__name__}; use a LoRA-like adapter"
        )
    inner = model.get_base_model()
    assert isinstance(inner, nn.Module)
    return inner


def decoder_inputs(module: nn.Module, input_ids: Int[Tensor, "batch time"]) -> dict[str, object]:
    """Return the keyword arguments this module's forward declares, without a cache.

    A full mask is given, because some models take a final end-of-text for padding and complain.
    """
    known = {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "use_cache": False,
    }
    parameters = inspect.signature(module.forward).parameters
    return {
        name: value for name, value in known.items() if name in parameters or value is input_ids
    }


@torch.no_grad()
def split(model: nn.Module) -> SplitModel | None:
    """Return decoder and head if together they reproduce the model's logits, else `None`.

    Reproduction is checked on a few tokens rather than assumed, so that an architecture which asks
    more of its decoder than hidden states is found out before it gives wrong numbers.
    """
    causal_lm = underlying_causal_lm(model)
    ask = getattr(causal_lm, "get_decoder", None)
    decoder = None if ask is None else ask()
    path = next((name for name, part in causal_lm.named_modules() if part is decoder), "")
    if not isinstance(decoder, nn.Module) or not path:
        return None
    probe = torch.arange(PROBE_TOKENS, device=device_of(model))[None] % 2
    with evaluating(causal_lm):
        output = decoder(**decoder_inputs(decoder, probe))
        if "last_hidden_state" not in output:
            return None
        head = partial(_own_logits, causal_lm, path, type(output))
        try:
            pieces = head(output.last_hidden_state[0])
        except (AttributeError, TypeError, ValueError, RuntimeError):
            # Such a wrapper asks more of its decoder than hidden states: it cannot be split.
            return None
        whole = causal_lm(**decoder_inputs(causal_lm, probe)).logits[0]
    if torch.finfo(whole.dtype).bits >= 32:
        agree = torch.allclose(pieces, whole, rtol=1e-3, atol=1e-4)
    else:  # such heads may pick another kernel for another shape; a wrong head is off by more
        error, size = (pieces.float() - whole.float()).abs().max(), whole.float().abs().max()
        agree = bool(error <= 0.02 * size)
    return SplitModel(decoder, head, whole.shape[-1]) if agree else None


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's first parameter lives; the CPU for a model without any."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block, and give every module its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _own_logits(
    causal_lm: nn.Module, path: str, output: type[ModelOutput], states: Float[Tensor, "count dim"]
) -> Float[Tensor, "count vocab"]:
    """Call the model's own forward on hidden states that were computed before."""
    computed = output(last_hidden_state=states[None])
    ready = nn.Module()  # stands where the decoder was
    vars(ready)["forward"] = lambda *_, **__: computed
    shell = _with_replaced(causal_lm, path.split("."), ready)
    placeholder = torch.zeros((1, states.shape[0]), dtype=torch.long, device=states.device)
    # The class's forward, because an instance may carry one bound to the live model.
    logits: Tensor = type(shell).forward(shell, **decoder_inputs(shell, placeholder)).logits
    return logits[0]


def _with_replaced(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    """Return a shallow copy of `module` in which only the part at `path` differs."""
    name, *rest = path
    child = _with_replaced(module.get_submodule(name), rest, replacement) if rest else replacement
    shell = copy.copy(module)
    shell.__dict__["_modules"] = {**module._modules, name: child}
    return shell
