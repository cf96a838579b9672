"""Probabilities are integers: exact, positive, and learned from what was coded."""

import numpy as np
import pytest

from hylorada.compression.coder import (
    LARGEST_ALPHABET,
    TOTAL,
    AdaptiveModel,
    StaticModel,
    frequencies,
    model_of,
)
from hylorada.errors import SpecError


def test_frequencies_are_positive_and_sum_to_two_to_the_24() -> None:
    found = frequencies(np.array([0, 1, 1_000_000, 3]))
    assert found.min() >= 1
    assert found.sum() == TOTAL


def test_frequencies_keep_proportions() -> None:
    assert frequencies(np.array([1, 3])).tolist() == [1 + (TOTAL - 2) // 4, 1 + 12582911]


def test_frequencies_of_one_level_are_everything() -> None:
    assert frequencies(np.array([7])).tolist() == [TOTAL]


def test_a_fresh_adaptive_model_expects_all_levels_alike() -> None:
    counts = np.zeros(3, dtype=np.int64)
    assert AdaptiveModel(3).weights(counts).tolist() == [2, 2, 2]


def test_a_level_weighs_its_count_and_a_half() -> None:
    assert AdaptiveModel(2).weights(np.array([3, 0])).tolist() == [14, 2]


def test_a_symmetric_model_shares_counts_between_signs() -> None:
    model = AdaptiveModel(3, symmetric=True)
    # magnitude 0 was seen 5 times, magnitude 1 4 times: 5½ against 4½, halved between two signs
    assert model.weights(np.array([1, 5, 3])).tolist() == [9, 22, 9]


def test_blocks_grow_with_what_was_coded() -> None:
    model = AdaptiveModel(2)
    assert [model.block(coded) for coded in (0, 7, 8, 800)] == [1, 1, 2, 101]


def test_probabilities_become_weights_in_their_proportions() -> None:
    assert model_of(np.array([0.25, 0.75])).table.tolist() == [1 << 30, 3 << 30]


def test_counts_are_weights_as_they_are() -> None:
    assert model_of(np.array([5, 0, 2], dtype=np.uint8)).table.tolist() == [5, 0, 2]


@pytest.mark.parametrize("levels", [0, LARGEST_ALPHABET + 1])
def test_an_alphabet_has_a_size_that_can_be_coded(levels: int) -> None:
    with pytest.raises(SpecError, match="levels must lie between 1 and 4,096"):
        AdaptiveModel(levels)


def test_a_symmetric_model_needs_a_middle() -> None:
    with pytest.raises(SpecError, match="odd number of levels; got 4"):
        AdaptiveModel(4, symmetric=True)


@pytest.mark.parametrize("weights", [[0, 0], [-1, 2], [1 << 38, 1]])
def test_weights_must_make_probabilities(weights: list[int]) -> None:
    with pytest.raises(SpecError, match="weights must not be negative"):
        StaticModel(np.array(weights))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-0.1, 1.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_probabilities_must_be_finite_and_not_negative(weights: list[float]) -> None:
    with pytest.raises(SpecError, match="probabilities must be finite"):
        model_of(np.array(weights))
