"""The values that symbols stand for: exactly those that a message can hold."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32

from hylorada.errors import SpecError

MAX_LEVELS = 255
# A step is a positive, finite float16 with only the 5 leading bits of its fraction.
DROPPED_BITS = 5
SHORT_STEPS = 31 << 10 - DROPPED_BITS
FLOAT16_MAX = 65504.0

Vector = Float[np.ndarray, " dim"]
Symbols = Int32[np.ndarray, " dim"]


@dataclass(frozen=True, slots=True)
class Codebook:
    """The value of each level, in float32.

    Attributes:
        values: Float16 numbers, or multiples of one step.
        step: The step of a one-scale codebook, whose middle level is 0; None for a list.
    """

    values: Float[np.ndarray, " levels"]
    step: float | None = None

    @property
    def levels(self) -> int:
        """Return the number of values."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Symbols and what they stand for."""

    symbols: Symbols
    codebook: Codebook

    @property
    def values(self) -> Vector:
        """Return the float32 coordinates that a decoder returns."""
        return self.codebook.values[self.symbols]

    @property
    def counts(self) -> list[int]:
        """Return how often each level occurs."""
        counts: list[int] = np.bincount(self.symbols, minlength=self.codebook.levels).tolist()
        return counts


def listed_codebook(values: Float[np.ndarray, " levels"]) -> Codebook:
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
    if largest < 0:
        raise SpecError(f"largest must not be negative; got {largest}")
    require_levels(2 * largest + 1)
    short = short_step(step)
    # An integer of 7 bits times a fraction of 6 bits: exact in float32.
    return Codebook(np.arange(-largest, largest + 1).astype(np.float32) * np.float32(short), short)


def short_step(step: float) -> float:
    """Return the nearest step that a message can hold, at most 1.6 % away."""
    return step_from_index(step_index(step))


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


def require_levels(levels: int) -> None:
    """Raise `SpecError` unless a message can hold so many levels."""
    if not 1 <= levels <= MAX_LEVELS:
        raise SpecError(f"levels must lie between 1 and {MAX_LEVELS}; got {levels}")


def require_odd_levels(levels: int) -> None:
    """Raise `SpecError` unless a one-scale codebook can have so many levels."""
    require_levels(levels)
    if levels % 2 == 0:
        raise SpecError(f"a one-scale codebook takes an odd number of levels; got {levels}")
