"""The step and the symbols that lose least for their bits.

A candidate is a one-scale codebook and symbols that minimise `error + price · bits`: a coordinate
moves to a likelier symbol, most often to zero, where that saves more than it loses. All that
distinguishes candidates is written in the message, which thereby pays for the choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from hylorada.compression.codebooks import (
    MAX_LEVELS,
    Quantised,
    Vector,
    require_levels,
    scaled_codebook,
    short_step,
)
from hylorada.compression.estimates import adaptive_bits
from hylorada.compression.quantise import finite, symmetric
from hylorada.errors import SpecError
from hylorada.units import Bits

STEPS = tuple(float(step) for step in np.geomspace(0.25, 3.0, 48))
PRICES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
ROUNDS = 6

Sensitivity = Float[np.ndarray, " dim"]
Multiples = Int[np.ndarray, " dim"]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to write a vector.

    Attributes:
        quantised: Symbols and codebook.
        bits: Bits of the symbols by formula; a message adds about 20.
        distortion: Share of the vector's squared length that is lost, weighted by sensitivity.
    """

    quantised: Quantised
    bits: Bits
    distortion: float


def candidates(
    vector: Vector,
    sensitivity: Sensitivity | None = None,
    *,
    levels: int = MAX_LEVELS,
    steps: Sequence[float] = STEPS,
    prices: Sequence[float] = PRICES,
) -> list[Candidate]:
    """Return those candidates that no other one beats in both bits and distortion, by bits.

    Args:
        vector: What is quantised.
        sensitivity: Curvature of the loss along each coordinate; None takes them as equal.
        levels: At most so many levels; a codebook has an odd number of them.
        steps: Steps tried, in units of the root mean square of the vector.
        prices: Squared error worth a bit, in units of the squared step.
    """
    values = finite(vector)
    require_levels(levels)
    largest = (levels - 1) // 2
    weights = _relative(sensitivity, len(values))
    spread = float(np.sqrt(weights @ values**2 / max(1.0, weights.sum())))
    if spread == 0.0:
        return [_candidate(symmetric(vector, 1.0, 0), values, weights)]
    found = [
        _candidate(_priced(values, weights, step * spread, price, largest), values, weights)
        for step in steps
        for price in prices
    ]
    return _undominated(found)


def least_bits(
    vector: Vector,
    distortion: float,
    sensitivity: Sensitivity | None = None,
    *,
    levels: int = MAX_LEVELS,
) -> Candidate:
    """Return the candidate with the fewest bits among those that lose at most `distortion`."""
    found = candidates(vector, sensitivity, levels=levels)
    fine = [candidate for candidate in found if candidate.distortion <= distortion]
    if not fine:
        least = min(candidate.distortion for candidate in found)
        raise SpecError(
            f"distortion must be at least {least:.4g}, the least that {levels} levels reach; "
            f"got {distortion:g}"
        )
    return fine[0]


def _relative(sensitivity: Sensitivity | None, count: int) -> Sensitivity:
    """Return sensitivities with mean 1."""
    if sensitivity is None:
        return np.ones(count)
    weights = finite(sensitivity)
    if len(weights) != count or weights.min(initial=0.0) < 0 or not weights.any():
        raise SpecError(
            f"sensitivity must hold {count} numbers, none negative and some positive; "
            f"got {len(weights)}"
        )
    return weights / weights.mean()


def _priced(
    values: Vector, weights: Sensitivity, step: float, price: float, largest: int
) -> Quantised:
    """Return the symbols that minimise weighted squared error plus the price of their bits.

    Each coordinate takes the nearest multiple, the next one towards zero, or zero.
    """
    sizes = np.abs(values)
    step = short_step(step)
    chosen = nearest = _nearest(sizes, step, largest)
    for _ in range(ROUNDS if price > 0 else 0):
        options = np.stack([nearest, np.maximum(nearest - 1, 0), np.zeros_like(nearest)])
        costs = weights * (sizes - options * step) ** 2 + price * step**2 * _bits(chosen)[options]
        before, chosen = chosen, np.take_along_axis(options, costs.argmin(axis=0)[None], axis=0)[0]
        if np.array_equal(before, chosen):
            break
        step = _refitted(sizes, weights, chosen, step)
        nearest = _nearest(sizes, step, largest)
    used = int(chosen.max())
    symbols = np.where(values < 0, used - chosen, used + chosen).astype(np.int32)
    return Quantised(symbols, scaled_codebook(step, used))


def _nearest(sizes: Vector, step: float, largest: int) -> Multiples:
    return np.minimum(np.rint(sizes / step), largest).astype(np.int64)


def _bits(multiples: Multiples) -> Float[np.ndarray, " levels"]:
    """Return the bits of each size under the frequencies of these; any but zero has a sign."""
    weights = np.bincount(multiples, minlength=int(multiples.max()) + 2) + 0.5
    bits = -np.log2(weights / weights.sum())
    bits[1:] += 1.0
    # A refit may make room for larger multiples than have been seen.
    return np.concatenate([bits, np.full(MAX_LEVELS, bits[-1])])


def _refitted(sizes: Vector, weights: Sensitivity, multiples: Multiples, step: float) -> float:
    """Return the step that fits the multiples best by least squares, as a message can hold it."""
    energy = float(weights @ multiples**2)
    return short_step(float((weights * sizes) @ multiples) / energy) if energy > 0 else step


def _candidate(quantised: Quantised, values: Vector, weights: Sensitivity) -> Candidate:
    whole = float(weights @ values**2)
    lost = float(weights @ (quantised.values - values) ** 2)
    bits = adaptive_bits(quantised.counts, symmetric=True)
    return Candidate(quantised, bits, lost / whole if whole > 0 else 0.0)


def _undominated(found: list[Candidate]) -> list[Candidate]:
    ordered = sorted(found, key=lambda candidate: (candidate.bits, candidate.distortion))
    kept = ordered[:1]
    for candidate in ordered[1:]:
        if candidate.distortion < kept[-1].distortion:
            kept.append(candidate)
    return kept
