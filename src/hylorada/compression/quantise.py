"""Coordinates to few values: nothing is drawn, so the same vector always gives the same symbols."""

import numpy as np
from jaxtyping import Float, Int

from hylorada.compression.codebooks import (
    MAX_LEVELS,
    Quantised,
    Vector,
    listed_codebook,
    require_levels,
    require_odd_levels,
    scaled_codebook,
    short_step,
)
from hylorada.errors import SpecError

MARGIN = 1e-6
LLOYD_ROUNDS = 1000
STEPS_TRIED = 64

Levels = Float[np.ndarray, " levels"]


def uniform(vector: Vector, levels: int = 11) -> Quantised:
    """Return the symbols of equal bins between ±max|w|; each stands for the mean of its bin.

    An empty bin stands for its left edge. This is the published procedure, kept to compare with.
    """
    values = finite(vector)
    require_levels(levels)
    largest = float(np.abs(values).max(initial=0.0)) + MARGIN
    edges = np.linspace(-largest, largest, levels + 1)
    symbols = np.digitize(values, edges) - 1
    codebook = listed_codebook(_means(values, symbols, edges[:-1]))
    return Quantised(symbols.astype(np.int32), codebook)


def kmeans(vector: Vector, levels: int = 11) -> Quantised:
    """Return the symbols of the nearest of `levels` centres that locally minimise squared error.

    Lloyd's rounds start from quantiles of the vector, so no seed is needed.
    """
    values = finite(vector)
    require_levels(levels)
    if not len(values):
        return Quantised(np.zeros(0, np.int32), listed_codebook(np.zeros(levels)))
    centres = np.quantile(values, (np.arange(levels) + 0.5) / levels)
    for _ in range(LLOYD_ROUNDS):
        moved = np.sort(_means(values, _nearest(values, centres), centres))
        if np.array_equal(moved, centres):
            break
        centres = moved
    codebook = listed_codebook(centres)
    symbols = _nearest(values, codebook.values.astype(np.float64))
    return Quantised(symbols.astype(np.int32), codebook)


def symmetric(vector: Vector, step: float, largest: int, dead_zone: float = 0.0) -> Quantised:
    """Return the nearest multiples of one step, from -largest to largest steps.

    Args:
        vector: What is quantised.
        step: Distance of two values; the nearest that a message can hold is taken.
        largest: Largest multiple; what lies beyond is clipped.
        dead_zone: By how much of a step, up to a half, each bin begins later: more zeros and
            fewer bits for more error.
    """
    values = finite(vector)
    require_dead_zone(dead_zone)
    codebook = scaled_codebook(step, largest)
    assert codebook.step is not None
    sizes = np.floor(np.abs(values) / codebook.step + 0.5 - dead_zone)
    multiples = np.sign(values) * np.minimum(sizes, largest)
    return Quantised((multiples + largest).astype(np.int32), codebook)


def fitted(vector: Vector, levels: int = 11) -> Quantised:
    """Return multiples of the step that gives the least squared error with so many levels."""
    values = finite(vector)
    require_odd_levels(levels)
    largest = levels // 2
    farthest = float(np.abs(values).max(initial=0.0))
    if largest == 0 or farthest == 0.0:
        return symmetric(vector, 1.0, largest)
    steps = farthest / largest * np.geomspace(0.02, 1.0, STEPS_TRIED)
    found = (symmetric(vector, float(step), largest) for step in steps)
    return min(found, key=lambda quantised: float(np.sum((quantised.values - values) ** 2)))


def exact(vector: Float[np.ndarray, " dim"]) -> Quantised | None:
    """Return a float32 vector as symbols without changing any value, or None if it has too many.

    A vector that training has quantised is found to be multiples of one step, or a list of at
    most 255 float16 numbers.
    """
    values = np.unique(finite(vector).astype(np.float32))
    if len(values) > MAX_LEVELS:
        return None
    return _multiples(vector, values) or _listed(vector, values)


def finite(vector: Vector) -> Vector:
    """Return the vector in float64; raise `SpecError` where it holds infinity or no number."""
    if not np.isfinite(vector).all():
        raise SpecError("coordinates must be finite; the vector holds infinities or NaN")
    return vector.astype(np.float64)


def require_dead_zone(share: float) -> None:
    """Raise `SpecError` unless bins begin later by a share of a step that leaves each one room."""
    if not 0.0 <= share <= 0.5:
        raise SpecError(f"dead_zone must lie between 0 and 0.5; got {share:g}")


def _multiples(vector: Vector, values: Levels) -> Quantised | None:
    gaps = np.diff(np.unique(np.append(values, np.float32(0))))
    step = short_step(float(gaps.min())) if len(gaps) else 1.0
    largest = round(float(np.abs(values).max(initial=0.0)) / step)
    if 2 * largest + 1 > MAX_LEVELS:
        return None
    found = symmetric(vector, step, largest)
    return found if np.array_equal(found.values, vector) else None


def _listed(vector: Vector, values: Levels) -> Quantised | None:
    codebook = listed_codebook(values)
    if not np.array_equal(codebook.values, values):
        return None
    return Quantised(np.searchsorted(values, vector).astype(np.int32), codebook)


def _means(values: Vector, symbols: Int[np.ndarray, " dim"], empty: Levels) -> Levels:
    """Return the mean of each level's values; where there are none, what `empty` says."""
    counts = np.bincount(symbols, minlength=len(empty))
    sums = np.bincount(symbols, weights=values, minlength=len(empty))
    return np.where(counts > 0, sums / np.maximum(counts, 1), empty)


def _nearest(values: Vector, centres: Levels) -> Int[np.ndarray, " dim"]:
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, values)
