"""Ticks are plain numbers, and words stand beside what they name, none over another."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hylorada.report.axes import (
    Label,
    few_ticks,
    label_beside,
    label_near,
    logarithmic,
    plain,
    power,
    spread,
)
from hylorada.report.canvas import COLOURS, WIDE, Sheet, styled


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


@pytest.mark.parametrize(
    ("places", "moved"),
    [
        ([], []),
        ([5.0], [5.0]),
        ([0.0, 10.0], [0.0, 10.0]),
        ([4.0, 4.0], [-1.0, 9.0]),
        ([8.0, 4.0], [11.0, 1.0]),
        ([0.0, 8.0, 16.0], [-2.0, 8.0, 18.0]),
    ],
)
def test_places_move_apart_by_as_little_as_may_be(places: list[float], moved: list[float]) -> None:
    assert spread(places, 10.0) == pytest.approx(moved)


@given(st.lists(st.floats(-100, 100), max_size=12))
def test_places_keep_their_order_and_their_distance(places: list[float]) -> None:
    moved = spread(places, 3.0)
    order = sorted(range(len(places)), key=lambda index: places[index])
    levels = [moved[index] for index in order]
    assert all(high - low >= 3 - 1e-9 for low, high in pairwise(levels))


def test_labels_beside_a_plot_are_a_line_apart() -> None:
    with styled():
        (axes,) = Sheet(WIDE).panels(1, columns=1, height=100, right=100)
        axes.plot([0, 1], [0, 1])
        ink = COLOURS["ink"]
        label_beside(axes, [Label(1, 0.5, "one", ink), Label(1, 0.5, "two", ink)])
    heights = sorted(text.get_position()[1] * 100 for text in axes.texts)
    assert heights[1] - heights[0] == pytest.approx(15.5)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=12), st.floats(0, 200))
def test_labels_beside_a_plot_stay_beside_it(levels: list[float], crowd: float) -> None:
    moved = spread([*levels, crowd], 15.5, -6, 206)
    assert min(moved) >= -6 - 1e-9
    assert max(moved) <= 206 + 1e-9


def test_labels_that_all_end_at_the_foot_of_a_plot_are_written_above_it() -> None:
    with styled():
        (axes,) = Sheet(WIDE).panels(1, height=210, right=100)
        axes.plot([0, 1], [0, 1])
        label_beside(axes, [Label(1, 0.0, f"arm {n}", COLOURS["ink"]) for n in range(9)])
    heights = [text.get_position()[1] * 210 for text in axes.texts]
    assert min(heights) >= -6 - 1e-9
    assert max(heights) < 210


def test_labels_near_points_do_not_cover_each_other() -> None:
    with styled():
        sheet = Sheet(WIDE)
        (axes,) = sheet.panels(1, columns=1, height=300)
        points = [(0.5, 0.5), (0.505, 0.5), (0.5, 0.505), (1.0, 1.0), (0.0, 0.0)]
        axes.plot(*zip(*points, strict=True), "o")
        label_near(axes, [Label(x, y, "a long name", COLOURS["ink"]) for x, y in points])
        assert sheet.figure is not None
        sheet.figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts]
    pairs = [(a, b) for index, a in enumerate(boxes) for b in boxes[:index]]
    assert not any(a.overlaps(b) for a, b in pairs)
    right = axes.get_window_extent().x1
    assert all(box.x1 <= right + 1 for box in boxes)
