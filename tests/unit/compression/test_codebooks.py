"""Codebook values are those that a message can hold, and no others."""

import numpy as np
import pytest

from hylorada.compression.quantise import (
    SHORT_STEPS,
    Quantised,
    listed_codebook,
    scaled_codebook,
    short_step,
    step_from_index,
    step_index,
)
from hylorada.errors import SpecError


def test_listed_values_are_rounded_to_float16() -> None:
    codebook = listed_codebook(np.array([0.1, -2.0]))
    assert codebook.values.dtype == np.float32
    assert codebook.values.tolist() == [float(np.float16(0.1)), -2.0]
    assert codebook.step is None


def test_scaled_values_are_exact_multiples_of_the_step() -> None:
    codebook = scaled_codebook(0.3, 127)
    assert codebook.levels == 255
    assert codebook.step is not None
    multiples = np.arange(-127, 128)
    assert np.array_equal(codebook.values.astype(np.float64), multiples * codebook.step)


def test_a_codebook_of_nothing_but_zero_is_allowed() -> None:
    assert scaled_codebook(1.0, 0).values.tolist() == [0.0]


@pytest.mark.parametrize("step", [1.0, 0.5, 3.125, 63 / 1024, 2.0**-10])
def test_a_step_of_six_binary_digits_is_kept(step: float) -> None:
    assert short_step(step) == step


def test_other_steps_move_by_at_most_one_part_in_64() -> None:
    for step in np.geomspace(1e-4, 6e4, 999):
        assert abs(short_step(float(step)) / step - 1) <= 1 / 63


def test_every_index_names_a_different_positive_step() -> None:
    steps = [step_from_index(index) for index in range(1, SHORT_STEPS)]
    assert steps == sorted(set(steps))
    assert steps[0] > 0
    assert [step_index(step) for step in steps] == list(range(1, SHORT_STEPS))


def test_steps_beyond_the_grid_take_its_ends() -> None:
    assert step_index(1e-30) == 1
    assert step_index(65504.0) == SHORT_STEPS - 1


def test_symbols_stand_for_values_and_are_counted() -> None:
    quantised = Quantised(np.array([2, 1, 1], dtype=np.int32), scaled_codebook(0.5, 1))
    assert quantised.values.tolist() == [0.5, 0.0, 0.0]
    assert quantised.counts == [0, 2, 1]


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf"), 1e6])
def test_a_step_must_be_positive_and_fit_float16(step: float) -> None:
    with pytest.raises(SpecError, match="step must be positive and at most 65504"):
        scaled_codebook(step, 1)


@pytest.mark.parametrize("values", [[1e6], [np.nan], [np.inf, 0.0]])
def test_listed_values_must_fit_float16(values: list[float]) -> None:
    with pytest.raises(SpecError, match="within ±65504"):
        listed_codebook(np.array(values))


def test_a_message_holds_at_most_255_levels() -> None:
    with pytest.raises(SpecError, match="between 1 and 255; got 257"):
        scaled_codebook(1.0, 128)
    with pytest.raises(SpecError, match="between 1 and 255; got 0"):
        listed_codebook(np.zeros(0))
    with pytest.raises(SpecError, match="between 1 and 255; got -1"):
        scaled_codebook(1.0, -1)
