"""Code lengths by formula: published values, and the adaptive code's own."""

import math

import numpy as np
import pytest

from hylorada.compression.coder import (
    AdaptiveModel,
    adaptive_bits,
    entropy_bits,
    ideal_bits,
    prefix_free_bits,
    published_bits,
)
from hylorada.compression.quantise import uniform

SINE = [194, 86, 70, 61, 59, 61, 59, 61, 68, 88, 193]


def test_the_published_lengths_of_a_sine() -> None:
    assert entropy_bits(SINE) / 1000 == pytest.approx(3.282494, abs=1e-6)
    assert published_bits(SINE) == 3570
    assert prefix_free_bits(3570) == pytest.approx(3593.6034, abs=1e-4)
    assert prefix_free_bits(3570) == pytest.approx(3570 + 2 * math.log2(3570), abs=1e-6)


def test_the_published_lengths_of_a_longer_sine() -> None:
    counts = uniform(np.sin(np.arange(20_000.0)), 11).counts
    assert published_bits(counts) == 65949
    assert prefix_free_bits(65949) == pytest.approx(65981.018, abs=1e-3)


def test_one_kind_of_symbol_has_no_entropy() -> None:
    assert entropy_bits([0, 7, 0]) == 0.0
    assert entropy_bits([]) == 0.0


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (1, 1), (2, 4), (4, 8)])
def test_the_prefix_costs_twice_the_logarithm(length: int, expected: float) -> None:
    assert prefix_free_bits(length) == expected


def test_one_coordinate_needs_no_counts() -> None:
    assert published_bits([1, 0]) == 1 + 32


def test_adaptive_bits_do_not_depend_on_the_order() -> None:
    # ½ · ¾ · ⅙ for two of one kind and one of another
    assert adaptive_bits([2, 1]) == pytest.approx(-math.log2(1 / 2 * 3 / 4 * 1 / 6))


def test_a_symmetric_code_pays_a_bit_a_sign() -> None:
    # magnitudes 0 and 1, once each: ½ · ¼, and a fair sign
    assert adaptive_bits([1, 1, 0], symmetric=True) == pytest.approx(math.log2(8) + 1)


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_blocks_cost_little_more_than_the_formula(is_symmetric: bool) -> None:
    draws = np.random.default_rng(0).normal(size=3000)
    symbols = np.clip(np.rint(draws * 1.5) + 5, 0, 10).astype(np.int32)
    counts = np.bincount(symbols, minlength=11).tolist()
    formula = adaptive_bits(counts, symmetric=is_symmetric)
    real = ideal_bits(symbols, AdaptiveModel(11, symmetric=is_symmetric))
    assert real - formula < 0.2 * (formula - entropy_bits(counts))
