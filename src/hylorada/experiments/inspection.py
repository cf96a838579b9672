"""What a trained adapter looks like inside: its boundaries, its gates, and whether it peeks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.history import causal_mean
from hylorada.adapters.landmarks import (
    LandmarkBank,
    LearnableBucketLandmark,
    OriginalLandmark,
    PositionAdaptiveLandmark,
    positions_or_arange,
)
from hylorada.models.heads import device_of, evaluating
from hylorada.text.store import TokenStore

GATE_BUCKETS = 8
GATE_WINDOWS = 8
TOKENS_AT_A_TIME = 2048


def learned_boundaries(model: nn.Module) -> list[float] | None:
    """Return the learned bucket boundaries in tokens, or None where none are learned."""
    for module in model.modules():
        if isinstance(module, LearnableBucketLandmark):
            found: list[float] = module.get_learned_boundaries().cpu().tolist()
            return found
    return None


def gates(model: nn.Module, tokens: Int[Tensor, "batch time"]) -> dict[str, Any] | None:
    """Return the mean weight of each landmark by bucket of position, or None without landmarks.

    A design with several places of action is averaged over them.
    """
    if not any(isinstance(module, LandmarkBank) for module in model.modules()):
        return None
    seen: list[Float[Tensor, "time landmarks"]] = []
    with torch.no_grad(), evaluating(model), _observed(model, seen):
        for rows in tokens.to(device_of(model)).split(max(1, TOKENS_AT_A_TIME // tokens.shape[1])):
            model(input_ids=rows)
    by_position = torch.stack(seen).mean(dim=0)
    edges = np.linspace(0, len(by_position), min(GATE_BUCKETS, len(by_position)) + 1)
    edges = edges.round().astype(int)
    places = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    return {
        "rows": [f"{start}–{end - 1}" for start, end in places],
        "columns": [f"landmark {number + 1}" for number in range(by_position.shape[1])],
        "weights": [by_position[start:end].mean(dim=0).tolist() for start, end in places],
    }


def future_leak(model: nn.Module, tokens: Int[Tensor, "1 time"]) -> dict[str, float]:
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
    return {
        "largest_change": float((before - after).abs().max()),
        "largest_logit": float(before.abs().max()),
    }


def first_windows(store: TokenStore, length: int, count: int) -> Int[Tensor, "batch time"]:
    """Return the first windows of a corpus, fewer where it is shorter."""
    found = max(1, min(count, len(store.tokens) // length))
    stream = np.asarray(store.tokens[: found * length]).astype(np.int64)
    return torch.from_numpy(stream).reshape(found, -1)


@contextmanager
def _observed(model: nn.Module, seen: list[Float[Tensor, "time landmarks"]]) -> Iterator[None]:
    """Note the gates of every landmark bank, averaged over the batch, while the block runs."""

    def note(bank: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(bank, LandmarkBank)
        hidden = args[0]
        positions = positions_or_arange(args[1] if len(args) > 1 else None, hidden)
        seen.append(_gate(bank, hidden, positions).mean(dim=0).cpu())

    handles = [
        module.register_forward_pre_hook(note, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, LandmarkBank)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gate(
    bank: LandmarkBank, hidden: Float[Tensor, "batch time dim"], positions: Int[Tensor, "#b time"]
) -> Float[Tensor, "batch time landmarks"]:
    if isinstance(bank, PositionAdaptiveLandmark):
        logits = bank.position_logits(positions) + bank.content_logits(hidden)
    else:
        assert isinstance(bank, OriginalLandmark)
        logits = bank.content_logits(causal_mean(hidden, positions, None))
    return torch.softmax(logits.float(), dim=-1)
