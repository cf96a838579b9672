"""What the coder costs: symbols a second, bits beside the ideal, and beside the published way."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.table import Table

from hylorada.compression.coder import (
    AdaptiveModel,
    decode,
    encode,
    entropy_bits,
    ideal_bits,
    prefix_free_bits,
    published_bits,
)
from hylorada.compression.message import Message
from hylorada.compression.quantise import Quantised, fitted, least_bits, uniform
from hylorada_benches.surroundings import machine
from hylorada_benches.timing import require_rounds

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
DIMENSIONS = (200, 1_000, 5_000, 10_000)
LEVELS = 11
SEED = 0


def measure(
    *,
    rounds: int,
    counts: Sequence[int] = COUNTS,
    dimensions: Sequence[int] = DIMENSIONS,
) -> dict[str, Any]:
    """Return speeds and lengths for several numbers of symbols, and lengths of whole messages."""
    require_rounds(rounds)
    return {
        "what": "coder",
        "levels": LEVELS,
        "rounds": rounds,
        "machine": machine() | {"python": platform.python_version()},
        "speeds": [_speed(count, rounds) for count in counts],
        "lengths": [_lengths(dimension) for dimension in dimensions],
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of speeds and one of lengths."""
    table = Table(title=f"Coder: {result['levels']} levels, adaptive", title_justify="left")
    for heading in ("symbols", "encoded a second", "decoded a second", "bits", "ideal", "excess"):
        table.add_column(heading, justify="right")
    for row in result["speeds"]:
        table.add_row(
            f"{row['count']:,}",
            f"{row['encoded_per_second']:,.0f}",
            f"{row['decoded_per_second']:,.0f}",
            f"{row['bits']:,}",
            f"{row['ideal_bits']:,.0f}",
            f"{row['bits'] / row['ideal_bits'] - 1:.2%}",
        )
    yield table
    table = Table(title="Bits of a standard normal vector", title_justify="left")
    for heading in ("d", "published", "same values", "same error", "error"):
        table.add_column(heading, justify="right")
    for row in result["lengths"]:
        table.add_row(
            f"{row['dim']:,}",
            f"{row['published_bits']:,.0f}",
            f"{row['same_values_bits']:,}",
            f"{row['same_error_bits']:,}",
            f"{row['distortion']:.2%}",
        )
    yield table


def _vector(count: int) -> Float[np.ndarray, " dim"]:
    return np.random.default_rng([SEED, count]).normal(size=count)


def _speed(count: int, rounds: int) -> dict[str, Any]:
    symbols = fitted(_vector(count), LEVELS).symbols
    model = AdaptiveModel(LEVELS, symmetric=True)
    message = encode(symbols, model)
    assert np.array_equal(decode(message, model, count), symbols)
    encoding = _median_seconds(lambda: encode(symbols, model), rounds)
    decoding = _median_seconds(lambda: decode(message, model, count), rounds)
    return {
        "count": count,
        "encoded_per_second": count / encoding,
        "decoded_per_second": count / decoding,
        "bits": 8 * len(message),
        "ideal_bits": ideal_bits(symbols, model),
        "entropy_bits": entropy_bits(np.bincount(symbols, minlength=LEVELS).tolist()),
    }


def _lengths(dimension: int) -> dict[str, Any]:
    """Return the published length of a vector, ours of the same values, and of the same error."""
    vector = _vector(dimension)
    bins = uniform(vector, LEVELS)
    distortion = float(np.sum((bins.values - vector) ** 2) / np.sum(vector**2))
    closest = least_bits(vector, distortion)
    return {
        "dim": dimension,
        "distortion": distortion,
        "published_bits": prefix_free_bits(published_bits(bins.counts)),
        "same_values_bits": _message_bits(bins),
        "same_error_bits": _message_bits(closest.quantised),
        "same_error_levels": closest.quantised.codebook.levels,
    }


def _message_bits(quantised: Quantised) -> int:
    return Message(configuration={}, quantised=quantised).counted_bits


def _median_seconds(action: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
