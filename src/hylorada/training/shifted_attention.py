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
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hylorada.errors import SpecError, UnsupportedModelError


def shifted_attention(
    query: Float[Tensor, "batch heads time head_dim"],
    key: Float[Tensor, "batch kv_heads time head_dim"],
    value: Float[Tensor, "batch kv_heads time value_dim"],
    *,
    group_size: int,
    earliest: Int[Tensor, "batch time"] | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
) -> Float[Tensor, "batch time heads value_dim"]:
    """Return causal attention inside groups, those of the second half of the heads shifted.

    Queries and keys come with rotary positions already applied. `earliest` is the index of the
    first key that each token may see; none means the start of the row. `scaling` is the factor on
    the scores; none means one over the root of `head_dim`.
    """
    batch, time, value_dim = query.shape[0], query.shape[2], value.shape[3]
    halves = []
    for states, shift in zip(_head_halves(query, key, value), (0, group_size // 2), strict=True):
        first = min(shift, time)
        groups, rest = divmod(time - first, group_size)
        cuts = (Span(0, 1, first), Span(first, groups, group_size), Span(time - rest, 1, rest))
        spans = [span for span in cuts if span.groups > 0 and span.length > 0]
        sizes = [span.groups * span.length for span in spans]
        # Splitting, unlike slicing, is undone by one concatenation in the backward pass.
        # Transformers keeps time before the heads in memory, so that folding is a view.
        parts = zip(*(state.transpose(1, 2).split(sizes, dim=1) for state in states), strict=True)
        attended = []
        for span, own in zip(spans, parts, strict=True):
            queries, keys, values = (
                part.reshape(-1, span.length, *part.shape[2:]).transpose(1, 2) for part in own
            )
            visible = None if earliest is None else visible_pairs(earliest, span)
            repeats = queries.shape[1] // keys.shape[1]
            # The fast GPU kernels share key heads only where no mask is given.
            if visible is not None and repeats > 1:
                keys, values = (part.repeat_interleave(repeats, dim=1) for part in (keys, values))
            weighted = scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=visible,
                dropout_p=dropout,
                is_causal=visible is None,
                scale=scaling,
                enable_gqa=visible is None and repeats > 1,
            )
            folded = weighted.transpose(1, 2)
            attended.append(folded.reshape(batch, -1, states[0].shape[1], value_dim))
        halves.append(torch.cat(attended, dim=1))
    return torch.cat(halves, dim=2)


class Span(NamedTuple):
    """`groups` neighbouring groups of `length` tokens, the first at token `begin`."""

    begin: int
    groups: int
    length: int


def _head_halves(query: Tensor, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the states of the straight heads, then those of the shifted heads."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 1:
        shifted, keys, values = heads // 2, (key, key), (value, value)
    else:
        sizes = (kv_heads - kv_heads // 2, kv_heads // 2)
        shifted = sizes[1] * (heads // kv_heads)
        keys, values = key.split(sizes, dim=1), value.split(sizes, dim=1)
    yield from zip(query.split((heads - shifted, shifted), dim=1), keys, values, strict=True)


def visible_pairs(
    earliest: Int[Tensor, "batch time"], span: Span
) -> Bool[Tensor, "groups 1 length length"]:
    """Return who may see whom inside each of the span's groups."""
    within = torch.arange(span.length, device=earliest.device)
    starts = span.begin + span.length * torch.arange(span.groups, device=earliest.device)
    cut = earliest[:, span.begin : span.begin + span.groups * span.length]
    first = (cut.reshape(-1, span.groups, span.length) - starts[:, None]).flatten(0, 1)
    return ((within >= first[..., None]) & (within <= within[:, None]))[:, None]


@contextmanager
def use_shifted_attention(model: nn.Module, *, group_size: int) -> Iterator[None]:
    """Train with shifted sparse attention inside the `with` block, then restore the model's own.

    The switch sits in the configuration that a decoder-only model, its adapters and its wrappers
    share, so it may be made before or after adapters are added. Inside the block `eval` mode gives
    full attention on SDPA. LongLoRA's groups have a quarter of the training length; at or above
    that length attention stays full.
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
        if earliest is not None:
            # It matters only where some token may not see back to the start of both its groups.
            steps = torch.arange(time, device=earliest.device)
            straight, shift = steps // self.group_size * self.group_size, self.group_size // 2
            shifted = (steps - shift) // self.group_size * self.group_size + shift
            if not (earliest > torch.minimum(straight, shifted.clamp(min=0))).any():
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
