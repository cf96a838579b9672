"""Gates lie on a grid of a few bits that contains zero."""

import numpy as np
import pytest

from hylorada.compression.message import quantise_gates
from hylorada.errors import SpecError


@pytest.mark.parametrize("bits", range(1, 9))
def test_an_untrained_gate_stays_zero(bits: int) -> None:
    assert quantise_gates(np.zeros(3, dtype=np.float32), bits).values.tolist() == [0.0] * 3


def test_gates_are_rounded_to_eighths_and_clipped() -> None:
    found = quantise_gates(np.array([0.1, -0.19, 7.0, -7.0]), 6)
    assert found.values.tolist() == [0.125, -0.25, 3.875, -4.0]
    assert found.symbols.tolist() == [33, 30, 63, 0]


def test_gates_on_the_grid_stay_as_they_are() -> None:
    once = quantise_gates(np.linspace(-4, 4, 50), 5).values
    assert np.array_equal(quantise_gates(once, 5).values, once)


@pytest.mark.parametrize("bits", [0, 9])
def test_a_gate_takes_one_to_eight_bits(bits: int) -> None:
    with pytest.raises(SpecError, match="gate bits must lie between 1 and 8"):
        quantise_gates(np.zeros(1), bits)


def test_gates_must_be_finite() -> None:
    with pytest.raises(SpecError, match="must be finite"):
        quantise_gates(np.array([np.nan]))
