"""Shifted sparse attention the slow way: one dense mask that says who may see whom."""

import torch
from torch import Tensor


def allowed(
    time: int,
    *,
    group_size: int,
    shifted: bool,
    documents: list[int] | None = None,
    window: int | None = None,
) -> Tensor:
    """Return, for each pair (query, key) of one row, whether the query may see the key."""
    shift = group_size // 2 if shifted else 0
    group = [(token - shift) // group_size for token in range(time)]
    mask = torch.zeros(time, time, dtype=torch.bool)
    for query in range(time):
        for key in range(time):
            mask[query, key] = (
                key <= query
                and group[key] == group[query]
                and (documents is None or documents[key] == documents[query])
                and (window is None or query - key < window)
            )
    return mask


def shifted_heads(heads: int, kv_heads: int) -> list[bool]:
    """Return, for each query head, whether its groups are shifted."""
    if kv_heads == 1:
        return [head >= heads - heads // 2 for head in range(heads)]
    per_kv_head = heads // kv_heads
    return [head // per_kv_head >= kv_heads - kv_heads // 2 for head in range(heads)]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group_size: int,
    documents: list[list[int]] | None = None,
    window: int | None = None,
    scaling: float | None = None,
) -> Tensor:
    """Return attention of shape (batch, time, heads, dim), one row and one head after the other."""
    batch, heads, time, head_dim = query.shape
    scaling = head_dim**-0.5 if scaling is None else scaling
    per_kv_head = heads // key.shape[1]
    rows = []
    for row in range(batch):
        outputs = []
        for head, shifted in enumerate(shifted_heads(heads, key.shape[1])):
            mask = allowed(
                time,
                group_size=group_size,
                shifted=shifted,
                documents=None if documents is None else documents[row],
                window=window,
            )
            scores = scaling * query[row, head] @ key[row, head // per_kv_head].T
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
            outputs.append(weights @ value[row, head // per_kv_head])
        rows.append(torch.stack(outputs, dim=1))
    return torch.stack(rows)
