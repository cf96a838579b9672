"""What a trained adapter looks like inside: its boundaries, its gates, and whether it peeks."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.designs import Gated
from hylorada.adapters.landmarks import LearnableBucketLandmark, positions_or_arange
from hylorada.models.anatomy import device_of, evaluating
from hylorada.records.runs import FutureLeak, Table
from hylorada.text.tokens import TokenStore

GATE_BUCKETS = 8
GATE_WINDOWS = 8
TOKENS_AT_A_TIME = 2048


def learned_boundaries(model: nn.Module) -> list[float] | None:
    """Return the learned bucket boundaries in tokens, or None where none are learned."""
    banks = (part for part in model.modules() if isinstance(part, LearnableBucketLandmark))
    bank = next(banks, None)
    return None if bank is None else bank.get_learned_boundaries().cpu().tolist()


def gates(model: nn.Module, tokens: Int[Tensor, "batch time"]) -> Table | None:
    """Return the mean weight of each landmark by bucket of position, or None without landmarks.

    A design with several places of action is averaged over them.
    """
    banks = [module for module in model.modules() if isinstance(module, Gated)]
    if not banks:
        return None
    seen: list[Float[Tensor, "time landmarks"]] = []

    def note(bank: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(bank, Gated)
        positions = positions_or_arange(args[1] if len(args) > 1 else None, args[0])
        seen.append(bank.gate_weights(args[0], positions).mean(dim=0).cpu())

    handles = [bank.register_forward_pre_hook(note) for bank in banks]
    try:
        with torch.no_grad(), evaluating(model):
            at_once = max(1, TOKENS_AT_A_TIME // tokens.shape[1])
            for rows in tokens.to(device_of(model)).split(at_once):
                model(input_ids=rows)
    finally:
        for handle in handles:
            handle.remove()
    by_position = torch.stack(seen).mean(dim=0)
    edges = np.linspace(0, len(by_position), min(GATE_BUCKETS, len(by_position)) + 1)
    buckets = list(pairwise(edges.round().astype(int).tolist()))
    return Table(
        rows=[f"{start}–{end - 1}" for start, end in buckets],
        columns=[f"landmark {number + 1}" for number in range(by_position.shape[1])],
        weights=[by_position[start:end].mean(dim=0).tolist() for start, end in buckets],
    )


def future_leak(model: nn.Module, tokens: Int[Tensor, "1 time"]) -> FutureLeak:
    """Return how far logits move when only later tokens change, and their own largest size.

    The second half of the row is replaced; every logit of the first half must stay.
    """
    tokens = tokens.to(device_of(model))
    half = tokens.shape[1] // 2
    changed = tokens.clone()
    changed[:, half:] = tokens.flip(1)[:, half:].roll(1, dims=1)
    with torch.no_grad(), evaluating(model):
        before, after = (
            model(input_ids=rows).logits[:, :half].float() for rows in (tokens, changed)
        )
    return FutureLeak(
        largest_change=float((before - after).abs().max()),
        largest_logit=float(before.abs().max()),
    )


def first_windows(store: TokenStore, length: int, count: int) -> Int[Tensor, "batch time"]:
    """Return the first windows of a corpus, fewer where it is shorter."""
    found = max(1, min(count, len(store.tokens) // length))
    stream = np.asarray(store.tokens[: found * length]).astype(np.int64)
    return torch.from_numpy(stream).reshape(found, -1)
