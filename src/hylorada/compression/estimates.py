"""Code lengths by formula: estimates to show beside the length of a real message."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from hylorada.units import Bits

FLOAT16_BITS = 16


def entropy_bits(counts: Sequence[int]) -> Bits:
    """Return the bits of symbols under their own frequencies, which no decoder knows."""
    occurring = np.array([count for count in counts if count > 0], dtype=np.float64)
    return Bits(float(-(occurring * np.log2(occurring / occurring.sum())).sum()))


def coded_bits(counts: Sequence[int]) -> int:
    """Return the length of an arithmetic code under the symbols' own frequencies."""
    return math.ceil(entropy_bits(counts)) + 1


def published_bits(counts: Sequence[int]) -> int:
    """Return coded bits, codebook and counts as SubLoRA reckons them, before `prefix_free_bits`."""
    levels, total = len(counts), sum(counts)
    per_count = math.ceil(math.log2(total)) if total > 1 else 0
    return coded_bits(counts) + levels * FLOAT16_BITS + levels * per_count


def prefix_free_bits(length: float) -> Bits:
    """Return a length with 2 log2 of it added, so that a message says where it ends."""
    return Bits(length + 2 * math.log2(length)) if length > 1 else Bits(length)


def adaptive_bits(counts: Sequence[int], *, symmetric: bool = False) -> Bits:
    """Return the bits of a Krichevsky–Trofimov code, the same for every order of the symbols.

    Args:
        counts: Occurrences of each level.
        symmetric: Levels at equal distance from the middle share their probability.
    """
    seen = np.array(counts, dtype=np.float64)
    if not symmetric:
        return _dirichlet_bits(seen)
    middle = len(seen) // 2
    sizes = seen[middle:].copy()
    sizes[1:] += seen[:middle][::-1]
    return Bits(_dirichlet_bits(sizes) + float(sizes[1:].sum()))


def _dirichlet_bits(counts: np.ndarray) -> Bits:
    half, levels = 0.5, len(counts)
    nats = gammaln(counts.sum() + half * levels) - gammaln(half * levels)
    nats -= (gammaln(counts + half) - gammaln(half)).sum()
    return Bits(float(nats) / math.log(2))
