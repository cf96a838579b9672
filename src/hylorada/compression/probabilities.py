"""How likely each symbol is, in integers, so that bytes depend on no library's rounding.

A probability model is not the coder: it turns the counts so far into integer weights, and says for
how many symbols they stay.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer

from hylorada.errors import SpecError

PRECISION = 24
TOTAL = 1 << PRECISION
LARGEST_ALPHABET = 1 << 12
# A weight times TOTAL must fit into 63 bits.
MAX_WEIGHT_SUM = 1 << (62 - PRECISION)

Frequencies = Int[np.ndarray, " levels"]


@dataclass(frozen=True, slots=True)
class StaticModel:
    """The same weights for every symbol; they must be known to the decoder."""

    table: Frequencies

    def __post_init__(self) -> None:
        """Check that there are weights."""
        require_alphabet(len(self.table))
        if self.table.min() < 0 or not 0 < self.table.sum() <= MAX_WEIGHT_SUM:
            raise SpecError(
                "weights must not be negative and must sum to between 1 and "
                f"{MAX_WEIGHT_SUM:,}; got a sum of {self.table.sum():,}"
            )

    @property
    def levels(self) -> int:
        """Return the size of the alphabet."""
        return len(self.table)

    def block(self, coded: int) -> int:
        """Return a number beyond every message: nothing is learned on the way."""
        return 1 << 62

    def weights(self, counts: Frequencies) -> Frequencies:
        """Return the table."""
        return self.table


@dataclass(frozen=True, slots=True)
class AdaptiveModel:
    """Krichevsky–Trofimov estimates from the symbols before, so that nothing is sent ahead.

    Counts are brought up to date after every block of an eighth of what was coded. That costs
    about a tenth of the learning cost of updating after each symbol, and a million symbols need
    110 tables instead of a million.

    Attributes:
        levels: Size of the alphabet.
        symmetric: Levels at equal distance from the middle are equally likely: half as many
            numbers to learn. Takes an odd number of levels.
    """

    levels: int
    symmetric: bool = False

    def __post_init__(self) -> None:
        """Check the alphabet."""
        require_alphabet(self.levels)
        if self.symmetric and self.levels % 2 == 0:
            raise SpecError(f"a symmetric model takes an odd number of levels; got {self.levels}")

    def block(self, coded: int) -> int:
        """Return the number of symbols until the counts are next brought up to date."""
        return 1 + coded // 8

    def weights(self, counts: Frequencies) -> Frequencies:
        """Return four times the count and a half of each level, or of each level's magnitude."""
        if not self.symmetric:
            return 4 * counts + 2
        weights = 2 * (counts + counts[::-1]) + 1  # a magnitude's share for each of two signs
        middle = self.levels // 2
        weights[middle] = 4 * counts[middle] + 2
        return weights


Model = StaticModel | AdaptiveModel


def require_alphabet(levels: int) -> None:
    """Raise `SpecError` unless an alphabet of this size can be coded."""
    if not 1 <= levels <= LARGEST_ALPHABET:
        raise SpecError(f"levels must lie between 1 and {LARGEST_ALPHABET:,}; got {levels:,}")


def static_model(
    weights: Integer[np.ndarray, " levels"] | Float[np.ndarray, " levels"],
) -> StaticModel:
    """Return the model with these counts, or with these probabilities in steps of 2^-32."""
    require_alphabet(len(weights))
    if np.issubdtype(weights.dtype, np.integer):
        return StaticModel(weights.astype(np.int64))
    values = weights.astype(np.float64)
    total = float(values.sum())
    if not np.isfinite(values).all() or values.min() < 0 or total <= 0:
        raise SpecError("probabilities must be finite, none negative, and some positive")
    return StaticModel(np.floor(values / total * 2.0**32).astype(np.int64))


def frequencies(weights: Frequencies) -> Frequencies:
    """Return positive integers in the proportions of the weights that sum to 2^24."""
    free = TOTAL - len(weights)
    scaled: Frequencies = weights * free // weights.sum()
    scaled[int(weights.argmax())] += free - scaled.sum()
    return scaled + 1
