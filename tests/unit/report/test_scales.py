"""Ticks are plain numbers."""

import pytest

from hylorada.report.canvas import WIDE, Sheet, styled
from hylorada.report.scales import few_ticks, logarithmic, plain, power


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.25, "−0.25"), (0.1 + 0.2, "0.3"), (50_000, "50,000"), (2e-5, "2e−5")],
)
def test_a_tick_has_no_needless_digits(value: float, text: str) -> None:
    assert plain(value) == text


def test_a_power_is_a_digit_and_an_exponent() -> None:
    assert [power(3e-4), power(2.5e-4), power(1e7)] == ["3e−4", "2.5e−4", "1e7"]


def test_steps_are_whole_numbers() -> None:
    with styled():
        (axes,) = Sheet(WIDE).panels(1, columns=1, height=100)
        axes.plot([1, 3], [0, 1])
        few_ticks(axes, x=8, whole=True)
        ticks = axes.get_xticks()
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize("high", [20.0, 1000.0, 1e7])
def test_a_logarithmic_axis_has_few_ticks_in_its_range(high: float) -> None:
    with styled():
        (axes,) = Sheet(WIDE).panels(1, columns=1, height=100)
        axes.plot([2, high], [0, 1])
        few_ticks(axes)
        logarithmic(axes)
        low, top = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if low <= tick <= top]
    assert 2 <= len(shown) <= 8
