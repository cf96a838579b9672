"""Shifted sparse attention for training (S²-Attn of LongLoRA, Chen et al., 2024), in any model.

While a model trains, every token attends only inside its group; `shifted_groups` computes that. A
token sees a key when all three hold: the model's own mask allows it (causal, padding, sliding
window), both are in one group, and both are in one document. A position that is not its
predecessor's plus one starts a document, as elsewhere in transformers.

The decisions that the paper leaves open:

* In `eval` mode, and for sequences no longer than a group, attention is full.
* While training, keys and queries must be the same tokens: a cache that holds earlier tokens is
  refused (an empty one changes nothing).
* Sliding-window and chunked layers keep their window inside the groups. Models with ALiBi, logit
  soft-capping or attention sinks do not run on plain SDPA and are refused.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hylorada.adapters.shifted_groups import Span, shifted_attention, visible_pairs
from hylorada.errors import SpecError, UnsupportedModelError


@contextmanager
def use_shifted_attention(model: nn.Module, *, group_size: int) -> Iterator[None]:
    """Train with shifted sparse attention inside the `with` block, then restore the model's own.

    The switch sits in the configuration that the model, its adapters and its wrappers share, so
    it may be made before or after adapters are added. Inside the block `eval` mode gives full
    attention on SDPA.

    Args:
        model: A decoder-only transformers model, or a wrapper such as a `PeftModel` around one.
        group_size: Tokens in a group. LongLoRA uses a quarter of the training length; at or above
            the training length attention stays full.

    Raises:
        SpecError: If the group size is out of range.
        UnsupportedModelError: If the model's attention cannot be replaced.
    """
    if group_size < 2:
        raise SpecError(f"group_size must be at least 2 tokens; got {group_size}")
    decoder = _supported_decoder(model)
    own = decoder.config._attn_implementation
    # The size is part of the name, so models with different groups live side by side.
    name = f"hylorada_shifted_{group_size}"
    AttentionInterface.register(name, _ShiftedAttention(group_size))
    AttentionMaskInterface.register(name, earliest_visible_mask)
    decoder.set_attn_implementation(name)
    try:
        yield
    finally:
        decoder.set_attn_implementation(own)


def _supported_decoder(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside `model`, or say why it cannot be switched."""
    decoder = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if decoder is None:
        raise UnsupportedModelError(
            f"shifted attention needs a transformers model; got {type(model).__name__}"
        )
    config = decoder.config
    parts = config.sub_configs or getattr(config, "is_encoder_decoder", False)
    looks_elsewhere = getattr(config, "add_cross_attention", False)
    looks_ahead = not getattr(config, "is_causal", True)
    for need, broken in (
        ("a decoder alone: load its causal language model", parts),
        ("causal self-attention and no other", looks_elsewhere or looks_ahead),
        (
            "transformers' attention interface, which models with ALiBi do not use",
            not decoder._can_set_attn_implementation(),
        ),
        ("SDPA, which has no soft-capping and no attention sinks", not decoder._supports_sdpa),
        ("at least 2 heads, to shift one of them", config.num_attention_heads < 2),
    ):
        if broken:
            raise UnsupportedModelError(
                f"shifted attention needs {need}; got {type(decoder).__name__}"
            )
    return decoder


def earliest_visible_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    attention_mask: Bool[Tensor, "batch keys"] | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Int32[Tensor, "batch time"] | Bool[Tensor, "batch 1 queries cached"] | None:
    """Return the index of the first key that each token may see; none if it is always the first.

    Causal masks with documents, padding, windows and chunks all show a token one unbroken stretch
    of keys that ends with itself, so one number for each token replaces the square mask. Padding is
    a document of its own. Transformers calls this once for each kind of mask in a forward pass.
    Queries that meet a filled cache, and masks of any other form, get the ordinary square mask.
    """
    stretches = not others.get("use_vmap") and not others.get("allow_is_bidirectional_skip")
    fits = attention_mask is None or attention_mask.shape[1] == kv_length
    if not (stretches and fits and q_length == kv_length):
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            device=device,
            **others,
        )
    # A traced graph may not depend on what the mask holds.
    if attention_mask is not None and not torch.compiler.is_compiling() and attention_mask.all():
        attention_mask = None
    window = kv_length if local_size is None else local_size
    if attention_mask is None and allow_is_causal_skip and window >= kv_length:
        return None
    time = torch.arange(kv_length, device=device, dtype=torch.int32)
    rows, head = torch.arange(batch_size, device=device)[:, None], time[0]
    starts = ~mask_function(rows, head, time[None, 1:], time[None, :-1])
    if attention_mask is not None:
        starts = starts | (attention_mask[:, 1:] != attention_mask[:, :-1])
    earliest = torch.maximum(_last_start(starts), time - (window - 1))
    return earliest.expand(batch_size, kv_length)


def _last_start(starts: Bool[Tensor, "rows later"]) -> Int32[Tensor, "rows time"]:
    """Return where the document of each token begins, given which tokens after the first do."""
    later = torch.arange(1, starts.shape[1] + 1, device=starts.device, dtype=torch.int32)
    begins = torch.where(starts, later, 0).cummax(dim=1).values
    return pad(begins, (1, 0))


class _ShiftedAttention:
    """The attention function that transformers calls in every layer."""

    def __init__(self, group_size: int) -> None:
        self.group_size = group_size
        self._recent: dict[tuple[int, ...], tuple[list[weakref.ref[Tensor]], Tensor | None]] = {}

    def __call__(
        self,
        module: nn.Module,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys value_dim"],
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_ids: Tensor | None = None,
        **others: object,
    ) -> tuple[Float[Tensor, "batch queries heads value_dim"], None]:
        for feature in ("softcap", "s_aux", "position_bias"):
            if others.get(feature) is not None:
                name = type(module).__name__
                raise UnsupportedModelError(f"shifted attention lacks {feature!r}, asked by {name}")
        if not module.training:
            if attention_mask is not None and attention_mask.dtype == torch.int32:
                attention_mask = visible_pairs(attention_mask, Span(0, 1, query.shape[2]))
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, is_causal
            )
        _require_trainable(module, query, key, attention_mask, is_causal)
        time = query.shape[2]
        earliest = self._earliest(attention_mask, position_ids, time)
        attended = shifted_attention(
            query,
            key,
            value,
            # One group that holds the whole row, for all heads, is full attention.
            group_size=self.group_size if time > self.group_size else 2 * time,
            earliest=None if earliest is None else earliest.expand(query.shape[0], -1),
            dropout=dropout,
            scaling=scaling,
        )
        return attended, None

    def _earliest(
        self, mask: Tensor | None, position_ids: Tensor | None, time: int
    ) -> Int32[Tensor, "rows time"] | None:
        """Return the first key that each token may see, or none where no group is cut by it."""
        given = [tensor for tensor in (mask, position_ids) if tensor is not None]
        # A traced graph may not depend on what the tensors hold, so it always carries group masks.
        if torch.compiler.is_compiling() or any(tensor.is_inference() for tensor in given):
            return _combined(mask, position_ids, time)
        # All layers of a pass share these tensors: looking at them once keeps a GPU from waiting in
        # every layer. An id is unique while its tensor lives, a version counts in-place changes.
        name = tuple(number for tensor in given for number in (id(tensor), tensor._version))
        alive, earliest = self._recent.get(name, ([], None))
        if alive and all(tensor() is not None for tensor in alive):
            return earliest
        earliest = _combined(mask, position_ids, time)
        if earliest is not None and not _cuts_a_group(earliest, self.group_size):
            earliest = None
        if len(self._recent) >= 8:
            self._recent.clear()
        self._recent[name] = [weakref.ref(tensor) for tensor in given], earliest
        return earliest


def _require_trainable(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None
) -> None:
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise UnsupportedModelError(
            f"shifted attention needs causal attention; {type(module).__name__} looks ahead"
        )
    if key.shape[2] != query.shape[2]:
        raise SpecError(
            "shifted attention trains without a filled cache; got "
            f"{key.shape[2]} keys for {query.shape[2]} queries: call model.eval() to generate"
        )
    if mask is not None and mask.dtype != torch.int32:
        raise SpecError(
            "shifted attention trains with a mask of shape (batch, time), or position_ids that "
            f"restart; got one of shape {tuple(mask.shape)}"
        )


def _combined(
    mask: Tensor | None, position_ids: Tensor | None, time: int
) -> Int32[Tensor, "rows time"] | None:
    """Return the stricter of the mask's and the documents' first visible keys."""
    if position_ids is None:
        return mask
    if position_ids.ndim != 2 or position_ids.shape[1] != time:
        raise UnsupportedModelError(
            "shifted attention needs position_ids of shape (batch, time); got "
            f"{tuple(position_ids.shape)} for {time} tokens"
        )
    documents = _last_start(position_ids.diff(dim=1) != 1)
    return documents if mask is None else torch.maximum(documents, mask)


def _cuts_a_group(earliest: Int32[Tensor, "rows time"], group_size: int) -> bool:
    """Return whether some token may not see its whole group back to the group's start."""
    time = torch.arange(earliest.shape[1], device=earliest.device)
    straight, shift = time // group_size * group_size, group_size // 2
    shifted = ((time - shift) // group_size * group_size + shift).clamp(min=0)
    return bool((earliest > torch.minimum(straight, shifted)).any())
