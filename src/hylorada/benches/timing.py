"""Speeds as ratios: contestants interleaved in one process, in a new random order each round."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from hylorada.errors import SpecError

CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times to a reference, with its interval over rounds."""

    value: float
    low: float
    high: float


def interleave(
    contestants: Mapping[str, Callable[[], None]], *, rounds: int, warmups: int, seed: int
) -> dict[str, list[float]]:
    """Return each contestant's seconds, one entry a round, all contestants in every round."""
    require_rounds(rounds)
    order = list(contestants)
    draws = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for round_index in range(warmups + rounds):
        draws.shuffle(order)
        for name in order:
            elapsed = _seconds(contestants[name])
            if round_index >= warmups:
                seconds[name].append(elapsed)
    return seconds


def ratios(seconds: Mapping[str, list[float]], reference: str, seed: int) -> dict[str, Ratio]:
    """Return each contestant's median time over the reference's, with a bootstrap over rounds."""
    draws = np.random.default_rng(seed)
    rounds = len(seconds[reference])
    samples = draws.integers(rounds, size=(RESAMPLES, rounds))
    base = np.median(np.array(seconds[reference])[samples], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    result = {}
    for name, values in seconds.items():
        quotients = np.median(np.array(values)[samples], axis=1) / base
        low, high = np.percentile(quotients, [tail, 100 - tail])
        value = statistics.median(values) / statistics.median(seconds[reference])
        result[name] = Ratio(value, float(low), float(high))
    return result


def require_rounds(rounds: int) -> None:
    """Raise `SpecError` unless there is at least one round to measure."""
    if rounds < 1:
        raise SpecError(f"rounds must be at least 1; got {rounds}")


def _seconds(action: Callable[[], None]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
