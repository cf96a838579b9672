"""Split a causal language model into decoder and head, so that logits can be made in pieces.

A head may do more than multiply by a matrix: Gemma caps its logits, Cohere and Granite scale them.
Instead of repeating any of that, the model's own forward is run on a shallow copy of the model
whose decoder hands over hidden states that are already there. The live model is never touched.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from peft import PeftModel
from torch import Tensor, nn

from hylorada.errors import UnsupportedModelError

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A decoder and the head that turns its hidden states into the model's own logits."""

    decoder: nn.Module
    head: Callable[[Float[Tensor, "count dim"]], Float[Tensor, "count vocab"]]
    vocabulary: int


def underlying_causal_lm(model: nn.Module) -> nn.Module:
    """Return the causal language model inside a PEFT wrapper, adapters still in place."""
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


def decoder_inputs(
    module: nn.Module,
    input_ids: Int[Tensor, "batch time"],
    attention_mask: Bool[Tensor, "batch time"] | None = None,
    position_ids: Int[Tensor, "batch time"] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments this module's forward declares, without a cache.

    Without mask and positions a full mask is given, because some models take a final end-of-text
    for padding and complain. With positions none is made up: transformers tells packed documents
    apart by their positions only where there is no mask.
    """
    parameters = inspect.signature(module.forward).parameters
    inputs: dict[str, Any] = {"input_ids": input_ids}
    if attention_mask is None and position_ids is None:
        attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask is not None and "attention_mask" in parameters:
        inputs["attention_mask"] = attention_mask.long()
    if position_ids is not None and "position_ids" in parameters:
        inputs["position_ids"] = position_ids
    if "use_cache" in parameters:
        inputs["use_cache"] = False
    return inputs


@torch.no_grad()
def split(model: nn.Module) -> SplitModel | None:
    """Return decoder and head if together they reproduce the model's logits, else `None`.

    Reproduction is checked on a few tokens rather than assumed, so that an architecture which asks
    more of its decoder than hidden states is found out before it gives wrong numbers.
    """
    causal_lm = underlying_causal_lm(model)
    find_decoder = getattr(causal_lm, "get_decoder", None)
    decoder = None if find_decoder is None else find_decoder()
    path = next((name for name, part in causal_lm.named_modules() if part is decoder), "")
    if not isinstance(decoder, nn.Module) or not path:
        return None
    probe = torch.arange(PROBE_TOKENS, device=device_of(model))[None] % 2
    with evaluating(causal_lm):
        output = decoder(**decoder_inputs(decoder, probe))
        if "last_hidden_state" not in output:
            return None
        head = _Head(causal_lm, path, output)
        try:
            pieces = head(output.last_hidden_state[0])
        except (AttributeError, TypeError, ValueError, RuntimeError):
            # Such a wrapper asks more of its decoder than hidden states: it cannot be split.
            return None
        whole = causal_lm(**decoder_inputs(causal_lm, probe)).logits[0]
    return SplitModel(decoder, head, whole.shape[-1]) if _agree(pieces, whole) else None


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


def _agree(pieces: Tensor, whole: Tensor) -> bool:
    if torch.finfo(whole.dtype).bits >= 32:
        return torch.allclose(pieces, whole, rtol=1e-3, atol=1e-4)
    # Half-precision heads may pick another kernel for another shape; a wrong head is off by more.
    error, size = (pieces.float() - whole.float()).abs().max(), whole.float().abs().max()
    return bool(error <= 0.02 * size)


class _Ready(nn.Module):
    """Stands where the decoder was and returns the output it is given."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output


class _Head:
    """Calls the model's own forward on hidden states that were computed before."""

    def __init__(self, causal_lm: nn.Module, path: str, template: Any) -> None:
        self._causal_lm = causal_lm
        self._path = path.split(".")
        self._output_type = type(template)

    def __call__(self, states: Float[Tensor, "count dim"]) -> Float[Tensor, "count vocab"]:
        output = self._output_type(last_hidden_state=states[None])
        shell = _with_replaced(self._causal_lm, self._path, _Ready(output))
        placeholder = torch.zeros((1, states.shape[0]), dtype=torch.long, device=states.device)
        # The class's forward, because an instance may carry one bound to the live model.
        inputs = decoder_inputs(shell, placeholder)
        logits: Tensor = type(shell).forward(shell, **inputs).logits
        return logits[0]


def _with_replaced(module: nn.Module, path: list[str], replacement: nn.Module) -> nn.Module:
    """Return a shallow copy of `module` in which only the part at `path` differs."""
    name, *rest = path
    child = replacement
    if rest:
        inner = module._modules[name]
        assert inner is not None
        child = _with_replaced(inner, rest, replacement)
    shell = copy.copy(module)
    shell.__dict__["_modules"] = {**module._modules, name: child}
    return shell
