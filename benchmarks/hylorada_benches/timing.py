"""Speeds as ratios: contestants interleaved in one process, in a new random order each round.

A round's time is compared with the reference's time in the same round, so that what slows the
machine for minutes falls out. Processor time stands beside wall time: it does not count the moments
in which another program had the core.

On a CPU a model is a few per cent faster or slower for as long as it lives, by where its weights
happen to lie in memory. More rounds do not mend that, so models are built anew every few rounds,
and intervals resample these places as well as rounds.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hylorada.errors import SpecError

CONFIDENCE = 0.95
RESAMPLES = 2000
ROUNDS_IN_A_PLACE = 5


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times to a reference, with its interval over rounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one contestant, one entry a round: by the clock, and of all cores together."""

    wall: list[float]
    processor: list[float]


def interleave(
    contestants: Mapping[str, Callable[[], None]], *, rounds: int, warmups: int, seed: int
) -> dict[str, list[float]]:
    """Return each contestant's seconds by the clock, one entry a round."""
    times = race(contestants, rounds=rounds, warmups=warmups, seed=seed)
    return {name: each.wall for name, each in times.items()}


def race(
    contestants: Mapping[str, Callable[[], None]], *, rounds: int, warmups: int, seed: int
) -> dict[str, Times]:
    """Return each contestant's times, one entry a round, all contestants in every round."""
    require_rounds(rounds)
    order = list(contestants)
    draws = np.random.default_rng(seed)
    times = {name: Times([], []) for name in order}
    for round_index in range(warmups + rounds):
        draws.shuffle(order)
        for name in order:
            wall, processor = _seconds(contestants[name])
            if round_index >= warmups:
                times[name].wall.append(wall)
                times[name].processor.append(processor)
    return times


def race_in_places(
    build: Callable[[], Mapping[str, Callable[[], None]]],
    *,
    rounds: int,
    places: int,
    warmups: int,
    seed: int,
) -> dict[str, Times]:
    """Return the times of contestants that are built anew for each of `places` parts of the rounds.

    Those of the place before are gone by then, if only the contestants held them.
    """
    require_rounds(rounds)
    times: dict[str, Times] = {}
    for place, part in enumerate(_parts(rounds, places)):
        found = race(build(), rounds=len(part), warmups=warmups, seed=seed + place)
        for name, each in found.items():
            kept = times.setdefault(name, Times([], []))
            kept.wall.extend(each.wall)
            kept.processor.extend(each.processor)
    return times


def places_for(rounds: int, device: str) -> int:
    """Return in how many places to measure: one on a GPU, where the place makes no difference."""
    return 1 if device != "cpu" else max(1, rounds // ROUNDS_IN_A_PLACE)


def ratios(
    seconds: Mapping[str, list[float]], reference: str, seed: int, *, places: int = 1
) -> dict[str, Ratio]:
    """Return the median over rounds of each contestant's time over the reference's in that round.

    The interval is a bootstrap over places and over the rounds in each, the same resampled rounds
    for all contestants.
    """
    base = np.array(seconds[reference])
    samples = _resampled(base.size, places, np.random.default_rng(seed))
    tail = 50 * (1 - CONFIDENCE)
    result = {}
    for name, values in seconds.items():
        quotients = np.array(values) / base
        medians = np.median(quotients[samples], axis=1)
        low, high = np.percentile(medians, [tail, 100 - tail])
        result[name] = Ratio(float(np.median(quotients)), float(low), float(high))
    return result


def _resampled(rounds: int, places: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Return rounds drawn with replacement from places drawn with replacement."""
    parts = _parts(rounds, places)
    starts, sizes = np.array([part[0] for part in parts]), np.array([part.size for part in parts])
    chosen = draws.integers(places, size=(RESAMPLES, places))
    shares = draws.random((RESAMPLES, places, sizes.max()))
    within = (shares * sizes[chosen][..., None]).astype(np.int64)
    return (starts[chosen][..., None] + within).reshape(RESAMPLES, -1)


def _parts(rounds: int, places: int) -> list[NDArray[np.int64]]:
    return np.array_split(np.arange(rounds), places)


def least_ratios(seconds: Mapping[str, list[float]], reference: str) -> dict[str, float]:
    """Return each contestant's shortest time over the reference's shortest.

    Other programs only ever add time, so with enough rounds this comes nearest to a machine alone.
    """
    return {name: min(values) / min(seconds[reference]) for name, values in seconds.items()}


def require_rounds(rounds: int) -> None:
    """Raise `SpecError` unless there is at least one round to measure."""
    if rounds < 1:
        raise SpecError(f"rounds must be at least 1; got {rounds}")


def _seconds(action: Callable[[], None]) -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start, used = time.perf_counter(), time.process_time()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - used
