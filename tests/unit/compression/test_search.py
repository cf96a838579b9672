"""The search finds fewer bits for the same error."""

from functools import cache

import numpy as np
import pytest

from hylorada.compression.coder import adaptive_bits
from hylorada.compression.quantise import Candidate, candidates, fitted, least_bits
from hylorada.errors import SpecError


def laplace(count: int = 400) -> np.ndarray:
    """Return Laplace numbers in float32."""
    return np.random.default_rng(5).laplace(size=count).astype(np.float32)


def lost(vector: np.ndarray, candidate: Candidate) -> float:
    """Return the share of the squared length that a candidate loses."""
    exact = vector.astype(np.float64)
    return float(np.sum((candidate.quantised.values - exact) ** 2) / np.sum(exact**2))


@cache
def found_by_default() -> list[Candidate]:
    """Return the candidates for those numbers."""
    return candidates(laplace())


def test_candidates_trade_bits_for_distortion() -> None:
    found = found_by_default()
    assert len(found) > 20
    bits = [candidate.bits for candidate in found]
    distortions = [candidate.distortion for candidate in found]
    assert bits == sorted(bits)
    assert distortions == sorted(distortions, reverse=True)


def test_a_candidate_states_its_own_bits_and_distortion() -> None:
    vector = laplace()
    for candidate in found_by_default()[::10]:
        assert candidate.distortion == pytest.approx(lost(vector, candidate))
        counts = candidate.quantised.counts
        assert candidate.bits == adaptive_bits(counts, symmetric=True)
        assert counts[0] + counts[-1] > 0  # no level beyond those used


def test_the_fewest_bits_keep_to_the_distortion_and_beat_plain_rounding() -> None:
    vector = laplace()
    plain = fitted(vector, 7)
    distortion = lost(vector, Candidate(plain, adaptive_bits(plain.counts), 0.0))
    found = least_bits(vector, distortion)
    assert found.distortion <= distortion
    assert found.bits < adaptive_bits(plain.counts, symmetric=True)


@pytest.mark.parametrize("levels", [3, 4])
def test_levels_are_limited_where_that_is_asked_for(levels: int) -> None:
    for candidate in candidates(laplace(), levels=levels, steps=(0.3, 1.0), prices=(0.0, 0.2)):
        assert candidate.quantised.codebook.levels <= levels


def test_a_distortion_out_of_reach_is_refused() -> None:
    with pytest.raises(SpecError, match="the least that 3 levels reach; got"):
        least_bits(laplace(50), 0.01, levels=3)


@pytest.mark.parametrize("vector", [np.zeros(5), np.zeros(0)])
def test_a_vector_of_zeros_costs_nothing(vector: np.ndarray) -> None:
    found = least_bits(vector, 0.1)
    assert (found.bits, found.distortion) == (0, 0.0)


def test_a_single_coordinate_can_be_written() -> None:
    candidate = least_bits(np.array([2.0]), 0.01)
    assert candidate.quantised.values[0] == pytest.approx(2.0, rel=0.1)
