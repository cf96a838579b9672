"""Coordinates to symbols of a codebook: by fixed rules, or by a search for the fewest bits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float, Int, Int32

from hylorada.compression.coder import adaptive_bits
from hylorada.errors import SpecError
from hylorada.specs.evaluation import MAX_LEVELS, CompressionSpec
from hylorada.units import Bits

DEFAULT_LEVELS = 11
# A step is a positive, finite float16 with only the 5 leading bits of its fraction.
DROPPED_BITS = 5
SHORT_STEPS = 31 << 10 - DROPPED_BITS
FLOAT16_MAX = 65504.0

MARGIN = 1e-6
LLOYD_ROUNDS = 1000
STEPS_TRIED = 64

Vector = Float[np.ndarray, " dim"]
Levels = Float[np.ndarray, " levels"]


# Codebooks


@dataclass(frozen=True, slots=True)
class Codebook:
    """The value of each level, in float32.

    Attributes:
        values: Float16 numbers, or multiples of one step.
        step: The step of a one-scale codebook, whose middle level is 0; None for a list.
    """

    values: Levels
    step: float | None = None

    @property
    def levels(self) -> int:
        """Return the number of values."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Symbols and what they stand for."""

    symbols: Int32[np.ndarray, " dim"]
    codebook: Codebook

    @property
    def values(self) -> Vector:
        """Return the float32 coordinates that a decoder returns."""
        return self.codebook.values[self.symbols]

    @property
    def counts(self) -> list[int]:
        """Return how often each level occurs."""
        return list(map(int, np.bincount(self.symbols, minlength=self.codebook.levels)))


def listed_codebook(values: Levels) -> Codebook:
    """Return a codebook of any values, rounded to float16: 16 bits each in a message."""
    require_levels(len(values))
    if not np.abs(values).max() <= FLOAT16_MAX:
        raise SpecError(
            f"codebook values must lie within ±{FLOAT16_MAX:.0f}, the range of float16; "
            f"got {np.abs(values).max():g}"
        )
    return Codebook(values.astype(np.float16).astype(np.float32))


def scaled_codebook(step: float, largest: int) -> Codebook:
    """Return -largest·step … largest·step, with the nearest step that a message can hold."""
    require_levels(2 * largest + 1)
    short = short_step(step)
    # An integer of 7 bits times a fraction of 6 bits: exact in float32.
    return Codebook(np.arange(-largest, largest + 1).astype(np.float32) * np.float32(short), short)


def step_index(step: float) -> int:
    """Return the index, from 1 to `SHORT_STEPS` - 1, of the nearest step."""
    if not 0 < step <= FLOAT16_MAX:
        raise SpecError(f"step must be positive and at most {FLOAT16_MAX:.0f}; got {step:g}")
    half = int(np.float16(step).view(np.uint16))
    rounded = (half + (1 << DROPPED_BITS - 1)) >> DROPPED_BITS
    return min(max(rounded, 1), SHORT_STEPS - 1)


def step_from_index(index: int) -> float:
    """Return the step with this index: a float16 whose last 5 bits are zero."""
    return float(np.uint16(index << DROPPED_BITS).view(np.float16))


def short_step(step: float) -> float:
    """Return the nearest step that a message can hold, at most 1.6 % away."""
    return step_from_index(step_index(step))


def require_levels(levels: int, *, one_scale: bool = False) -> None:
    """Raise `SpecError` unless a message, or its one-scale codebook, can hold so many levels."""
    if not 1 <= levels <= MAX_LEVELS:
        raise SpecError(f"levels must lie between 1 and {MAX_LEVELS}; got {levels}")
    if one_scale and levels % 2 == 0:
        raise SpecError(f"a one-scale codebook takes an odd number of levels; got {levels}")


# By fixed rules


def uniform(vector: Vector, levels: int = DEFAULT_LEVELS) -> Quantised:
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


def kmeans(vector: Vector, levels: int = DEFAULT_LEVELS) -> Quantised:
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
    """Return the nearest multiples of a step that a message can hold, clipped to ±largest steps.

    Each bin begins later by `dead_zone` of a step, up to a half: more zeros and fewer bits for
    more error.
    """
    values = finite(vector)
    require_dead_zone(dead_zone)
    codebook = scaled_codebook(step, largest)
    assert codebook.step is not None
    sizes = np.floor(np.abs(values) / codebook.step + 0.5 - dead_zone)
    multiples = np.sign(values) * np.minimum(sizes, largest)
    return Quantised((multiples + largest).astype(np.int32), codebook)


def fitted(vector: Vector, levels: int = DEFAULT_LEVELS) -> Quantised:
    """Return multiples of the step that gives the least squared error with so many levels."""
    values = finite(vector)
    require_levels(levels, one_scale=True)
    largest = levels // 2
    farthest = float(np.abs(values).max(initial=0.0))
    if largest == 0 or farthest == 0.0:
        return symmetric(vector, 1.0, largest)
    steps = farthest / largest * np.geomspace(0.02, 1.0, STEPS_TRIED)
    found = (symmetric(vector, float(step), largest) for step in steps)
    return min(found, key=lambda quantised: float(np.sum((quantised.values - values) ** 2)))


def exact(vector: Vector) -> Quantised | None:
    """Return a float32 vector as symbols without changing any value, or None if it has too many.

    A vector that training has quantised is found to be multiples of one step, or a list of at
    most 255 float16 numbers.
    """
    values = np.unique(finite(vector).astype(np.float32))
    if len(values) > MAX_LEVELS:
        return None
    gaps = np.diff(np.unique(np.append(values, np.float32(0))))
    step = short_step(float(gaps.min())) if len(gaps) else 1.0
    largest = round(float(np.abs(values).max(initial=0.0)) / step)
    if 2 * largest + 1 <= MAX_LEVELS:
        found = symmetric(vector, step, largest)
        if np.array_equal(found.values, vector):
            return found
    codebook = listed_codebook(values)
    if not np.array_equal(codebook.values, values):
        return None
    return Quantised(np.searchsorted(values, vector).astype(np.int32), codebook)


def finite(vector: Vector) -> Vector:
    """Return the vector in float64; raise `SpecError` where it holds infinity or no number."""
    if not np.isfinite(vector).all():
        raise SpecError("coordinates must be finite; the vector holds infinities or NaN")
    return vector.astype(np.float64)


def require_dead_zone(share: float) -> None:
    """Raise `SpecError` unless bins begin later by a share of a step that leaves each one room."""
    if not 0.0 <= share <= 0.5:
        raise SpecError(f"dead_zone must lie between 0 and 0.5; got {share:g}")


def _means(values: Vector, symbols: Int[np.ndarray, " dim"], empty: Levels) -> Levels:
    """Return the mean of each level's values; where there are none, what `empty` says."""
    counts = np.bincount(symbols, minlength=len(empty))
    sums = np.bincount(symbols, weights=values, minlength=len(empty))
    return np.where(counts > 0, sums / np.maximum(counts, 1), empty)


def _nearest(values: Vector, centres: Levels) -> Int[np.ndarray, " dim"]:
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, values)


def quantise(vector: Vector, spec: CompressionSpec) -> Quantised:
    """Return the symbols of a vector in the way that is asked for."""
    rules = {"uniform": uniform, "kmeans": kmeans, "symmetric": fitted}
    if spec.method in rules:
        return rules[spec.method](vector, spec.levels or DEFAULT_LEVELS)
    found, most = exact(vector), spec.levels or MAX_LEVELS
    if found is not None and found.codebook.levels <= most:
        return found
    return least_bits(vector, spec.distortion, levels=most).quantised


# By search: a candidate is a one-step codebook and symbols that minimise `error + price · bits`. A
# coordinate moves to a likelier symbol, most often to zero, where that saves more than it loses.
# All that distinguishes candidates is written in the message, which thereby pays for the choice.

STEPS = tuple(float(step) for step in np.geomspace(0.25, 3.0, 48))
PRICES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
ROUNDS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to write a vector.

    Attributes:
        bits: Bits of the symbols by formula; a message adds about 20.
        distortion: Share of the vector's squared length that is lost.
    """

    quantised: Quantised
    bits: Bits
    distortion: float


def candidates(
    vector: Vector,
    *,
    levels: int = MAX_LEVELS,
    steps: Sequence[float] = STEPS,
    prices: Sequence[float] = PRICES,
) -> list[Candidate]:
    """Return those candidates that no other one beats in both bits and distortion, by bits.

    A codebook has an odd number of at most `levels` levels. Steps are in units of the vector's root
    mean square; a price is the squared error worth a bit, in units of the squared step.
    """
    values = finite(vector)
    require_levels(levels)
    spread = float(np.sqrt(values @ values / max(1, len(values))))
    found = [symmetric(vector, 1.0, 0)]
    if spread > 0.0:
        largest, pairs = (levels - 1) // 2, product(steps, prices)
        found = [_priced(values, step * spread, price, largest) for step, price in pairs]
    tried = (
        Candidate(one, adaptive_bits(one.counts, symmetric=True), lost_share(one, values))
        for one in found
    )
    kept: list[Candidate] = []
    for candidate in sorted(tried, key=lambda one: (one.bits, one.distortion)):
        if not kept or candidate.distortion < kept[-1].distortion:
            kept.append(candidate)
    return kept


def least_bits(vector: Vector, distortion: float, *, levels: int = MAX_LEVELS) -> Candidate:
    """Return the candidate with the fewest bits among those that lose at most `distortion`."""
    found = candidates(vector, levels=levels)
    fine = [candidate for candidate in found if candidate.distortion <= distortion]
    if not fine:
        raise SpecError(
            f"distortion must be at least {found[-1].distortion:.4g}, the least that {levels} "
            f"levels reach; got {distortion:g}"
        )
    return fine[0]


def _priced(values: Vector, step: float, price: float, largest: int) -> Quantised:
    """Return the symbols that minimise squared error plus the price of their bits.

    Each coordinate takes the nearest multiple, the next one towards zero, or zero. The step is then
    fitted to the multiples by least squares.
    """
    sizes, step = np.abs(values), short_step(step)
    chosen = nearest = _nearest_multiple(sizes, step, largest)
    for _ in range(ROUNDS if price > 0 else 0):
        options = np.stack([nearest, np.maximum(nearest - 1, 0), np.zeros_like(nearest)])
        # The bits of each size under the frequencies of these; any but zero has a sign.
        weights = np.bincount(chosen, minlength=int(chosen.max()) + 2) + 0.5
        bits = -np.log2(weights / weights.sum())
        bits[1:] += 1.0
        # A refit may make room for larger multiples than have been seen.
        bits = np.append(bits, np.full(MAX_LEVELS, bits[-1]))
        costs = (sizes - options * step) ** 2 + price * step**2 * bits[options]
        before, chosen = chosen, np.take_along_axis(options, costs.argmin(axis=0)[None], axis=0)[0]
        if np.array_equal(before, chosen):
            break
        if (energy := int(chosen @ chosen)) > 0:
            step = short_step(float(sizes @ chosen) / energy)
        nearest = _nearest_multiple(sizes, step, largest)
    used = int(chosen.max())
    symbols = np.where(values < 0, used - chosen, used + chosen).astype(np.int32)
    return Quantised(symbols, scaled_codebook(step, used))


def _nearest_multiple(sizes: Vector, step: float, largest: int) -> Int[np.ndarray, " dim"]:
    return np.minimum(np.rint(sizes / step), largest).astype(np.int64)


def lost_share(quantised: Quantised, vector: Vector) -> float:
    """Return the share of a vector's squared length that its symbols lose."""
    values = vector.astype(np.float64)
    whole, lost = float(values @ values), float(np.sum((quantised.values - values) ** 2))
    return lost / whole if whole > 0 else 0.0
