"""Attention inside groups of tokens, half of the heads shifted by half a group.

Through the shift information crosses the borders from layer to layer; the shifted groups at both
ends are simply shorter, nothing wraps around. Grouped-query attention shifts whole key-value heads,
the smaller half when their number is odd. A single key-value head serves both halves, and half of
its query heads are shifted.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


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

    Args:
        query: Queries, with rotary positions already applied, as the keys.
        key: Keys.
        value: Values.
        group_size: Tokens in a group.
        earliest: Index of the first key that each token may see; none means the start of the row.
        dropout: Probability of dropping an attention weight.
        scaling: Factor on the scores; none means one over the root of `head_dim`.
    """
    halves = [
        _grouped_attention(
            *states,
            spans=_spans(query.shape[2], group_size, shift),
            earliest=earliest,
            dropout=dropout,
            scaling=scaling,
        )
        for states, shift in zip(_head_halves(query, key, value), (0, group_size // 2), strict=True)
    ]
    return torch.cat(halves, dim=2)


class Span(NamedTuple):
    """`groups` neighbouring groups of `length` tokens, the first at token `begin`."""

    begin: int
    groups: int
    length: int


def _spans(time: int, group_size: int, shift: int) -> list[Span]:
    first = min(shift, time)
    groups, rest = divmod(time - first, group_size)
    spans = (Span(0, 1, first), Span(first, groups, group_size), Span(time - rest, 1, rest))
    return [span for span in spans if span.groups > 0 and span.length > 0]


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


def _grouped_attention(
    query: Float[Tensor, "batch heads time head_dim"],
    key: Float[Tensor, "batch kv_heads time head_dim"],
    value: Float[Tensor, "batch kv_heads time value_dim"],
    *,
    spans: list[Span],
    earliest: Int[Tensor, "batch time"] | None,
    dropout: float,
    scaling: float | None,
) -> Float[Tensor, "batch time heads value_dim"]:
    # Splitting, unlike slicing, is undone by one concatenation in the backward pass. Transformers
    # keeps time before the heads in memory, so that folding one row, or whole rows, is a view.
    parts = [
        states.transpose(1, 2).split([span.groups * span.length for span in spans], dim=1)
        for states in (query, key, value)
    ]
    attended = [
        _attend_span(
            *(part.reshape(-1, span.length, *part.shape[2:]).transpose(1, 2) for part in states),
            visible=None if earliest is None else visible_pairs(earliest, span),
            dropout=dropout,
            scaling=scaling,
        ).reshape(query.shape[0], -1, query.shape[1], value.shape[3])
        for span, *states in zip(spans, *parts, strict=True)
    ]
    return torch.cat(attended, dim=1)


def visible_pairs(
    earliest: Int[Tensor, "batch time"], span: Span
) -> Bool[Tensor, "groups 1 length length"]:
    """Return who may see whom inside each of the span's groups."""
    within = torch.arange(span.length, device=earliest.device)
    starts = span.begin + span.length * torch.arange(span.groups, device=earliest.device)
    cut = earliest[:, span.begin : span.begin + span.groups * span.length]
    first = (cut.reshape(-1, span.groups, span.length) - starts[:, None]).flatten(0, 1)
    return ((within >= first[..., None]) & (within <= within[:, None]))[:, None]


def _attend_span(
    query: Float[Tensor, "groups heads length head_dim"],
    key: Float[Tensor, "groups kv_heads length head_dim"],
    value: Float[Tensor, "groups kv_heads length value_dim"],
    *,
    visible: Bool[Tensor, "groups 1 length length"] | None,
    dropout: float,
    scaling: float | None,
) -> Float[Tensor, "groups length heads value_dim"]:
    repeats = query.shape[1] // key.shape[1]
    # The fast GPU kernels share key heads only where no mask is given.
    if visible is not None and repeats > 1:
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible,
        dropout_p=dropout,
        is_causal=visible is None,
        scale=scaling,
        enable_gqa=visible is None and repeats > 1,
    )
    return attended.transpose(1, 2)
