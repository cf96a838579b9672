"""Next-token loss in pieces, so that the logits of a long sequence never exist all at once.

The loss of a piece and its gradient are computed together and the piece's logits are dropped:
memory grows with time × hidden size instead of time × vocabulary, and nothing is computed twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Float, Int, Num
from peft import PeftModel
from torch import FloatTensor, Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import CausalLMOutputWithPast

from hylorada.errors import UnsupportedModelError
from hylorada.models.anatomy import split

IGNORED = -100

Head = Callable[[Tensor], Tensor]
SummedLoss = Callable[[Tensor, Tensor], Tensor]


class _PiecewiseCrossEntropy(torch.autograd.Function):
    """Sum of token losses whose gradients are made beside it and wait for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        labels: Tensor,
        head: Head,
        summed: SummedLoss,
        piece: int,
        *weights: Tensor,
    ) -> Tensor:
        wanted = [w for w, needed in zip(weights, ctx.needs_input_grad[5:], strict=True) if needed]
        wants_states = ctx.needs_input_grad[0]
        total = torch.zeros((), dtype=_accurate(states.dtype), device=states.device)
        state_gradient = torch.empty_like(states) if wants_states else None
        sums = [torch.zeros_like(weight, dtype=_accurate(weight.dtype)) for weight in wanted]
        for start in range(0, states.shape[0], piece):
            part = slice(start, start + piece)
            with torch.set_grad_enabled(wants_states or bool(wanted)):
                rows = states[part].detach().requires_grad_(wants_states)
                loss = summed(head(rows), labels[part])
            total += loss.detach()
            sources = [rows, *wanted] if wants_states else wanted
            gradients = list(torch.autograd.grad(loss, sources)) if sources else []
            if state_gradient is not None:
                state_gradient[part] = gradients.pop(0)
            for running, gradient in zip(sums, gradients, strict=True):
                running += gradient
        kept = [running.to(weight.dtype) for running, weight in zip(sums, wanted, strict=True)]
        ctx.save_for_backward(*([] if state_gradient is None else [state_gradient]), *kept)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        return tuple(next(saved) * upstream if needed else None for needed in ctx.needs_input_grad)


def chunked_cross_entropy(
    states: Float[Tensor, "batch time dim"],
    labels: Int[Tensor, "batch time"],
    head: Head,
    *,
    weights: tuple[Tensor, ...] = (),
    items: Num[Tensor, ""] | int | None = None,
    chunk_tokens: int = 1024,
    compiled: bool = False,
) -> Float[Tensor, ""]:
    """Return the loss of predicting `labels[t + 1]` from `states[t]`, in nats per token.

    The head makes the logits of `chunk_tokens` states at a time. `weights` are the trainable
    tensors inside it, which receive gradients too. Labels of -100 count for nothing. The sum is
    divided by `items`, a count over all batches of a step; without it by the valid labels here.
    `compiled` makes cast, loss and gradient one pass over the logits.
    """
    shifted = nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:].reshape(-1)
    flat = states.reshape(-1, states.shape[-1])
    apply = cast(Callable[..., Tensor], _PiecewiseCrossEntropy.apply)
    summed = _compiled_loss() if compiled else summed_loss
    total = apply(flat, shifted, head, summed, chunk_tokens, *weights)
    count = (shifted != IGNORED).sum() if items is None else items
    return total / count


@contextmanager
def chunked_loss(
    model: nn.Module, chunk_tokens: int = 1024, *, compiled: bool = False
) -> Iterator[None]:
    """Make `model(..., labels=...)` compute its loss in chunks, without logits, inside the block.

    The change is made on the causal language model inside a PEFT or distributed wrapper, so hooks,
    checkpointing and gradient reduction see the call they expect. A model that cannot be split into
    decoder and head is refused.
    """
    inner: Any = getattr(model, "module", model)
    causal_lm = inner.get_base_model() if isinstance(inner, PeftModel) else inner
    parts = split(causal_lm)
    if parts is None:
        raise UnsupportedModelError(
            "the chunked loss needs a causal language model whose logits its head can make from "
            f"its decoder's hidden states; got {type(causal_lm).__name__}; "
            "set chunk_tokens to 0 for the model's own loss"
        )
    original = causal_lm.forward

    def forward(
        *args: Any, labels: Tensor | None = None, num_items_in_batch: Any = None, **inputs: Any
    ) -> Any:
        if labels is None:
            return original(*args, **inputs)
        for decided in ("return_dict", "use_cache"):
            inputs.pop(decided, None)
        weights = causal_lm.get_output_embeddings().parameters()
        states = parts.decoder(*args, **inputs, use_cache=False, return_dict=True).last_hidden_state
        loss = chunked_cross_entropy(
            states,
            labels.to(states.device),
            parts.head,
            weights=tuple(weight for weight in weights if weight.requires_grad),
            items=num_items_in_batch,
            chunk_tokens=chunk_tokens,
            compiled=compiled,
        )
        return CausalLMOutputWithPast(loss=cast(FloatTensor, loss))

    own = causal_lm.__dict__.get("forward")
    causal_lm.forward = forward
    try:
        yield
    finally:
        del causal_lm.forward
        if own is not None:
            causal_lm.forward = own


def summed_loss(
    logits: Float[Tensor, "count vocab"], labels: Int[Tensor, " count"]
) -> Float[Tensor, ""]:
    """Return the sum of the losses of all rows, in nats, computed in float32 at least."""
    logits = logits.to(_accurate(logits.dtype))
    return nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


@cache
def _compiled_loss() -> SummedLoss:
    return cast(SummedLoss, torch.compile(summed_loss))


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
