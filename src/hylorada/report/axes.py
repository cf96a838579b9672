"""What plots are made of: ticks, titles, rows, how arms are drawn, and words beside what they name.

No words lie over others, so that a reader needs no legend.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from hylorada.records.evaluations import Interval
from hylorada.records.studies import Arm, Study
from hylorada.report import wording
from hylorada.report.canvas import COLOURS

SERIES = ("accent", "series-2", "series-3", "series-4", "series-5", "series-6")
Dash = str | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ((0, (5, 2)), (0, (1.5, 1.8)), (0, (7, 2, 1.5, 2)), (0, (3, 4)))
# All in pixels.
LINE = 15.5  # from one line of text to the next
LETTER = 6.9  # the width of most letters
POINT = 12.0  # the width of a point with some room around it
EDGE = 6.0  # that a label may stand above or below the plot it belongs to
FURTHER = tuple(step for up in range(19, 160, 7) for step in (up, -up - 12))  # nearest first

Box = tuple[float, float, float, float]


class Stroke(NamedTuple):
    """A colour and a dash pattern, so that arms differ without colour too."""

    colour: str
    dash: Dash
    width: float


class Label(NamedTuple):
    """Words that belong to a point of a plot, and the vertical interval around it."""

    x: float
    y: float
    text: str
    colour: str
    interval: Interval | None = None


def extent(axes: Axes) -> tuple[float, float]:
    """Return the width and height of a plot in pixels."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    box = axes.get_position()
    return float(width) * 72 * box.width, float(height) * 72 * box.height


def title(axes: Axes, text: str, *, left: float = 40) -> None:
    """Write what a plot shows above it, starting `left` pixels left of it."""
    width, height = extent(axes)
    place = (-left / width, 1 + 13 / height)
    axes.text(*place, text, transform=axes.transAxes, va="bottom", ha="left")


def few_ticks(
    axes: Axes, *, x: int = 6, y: int = 5, x_label: str = "", whole: bool = False
) -> None:
    """Give both axes a handful of ticks and thin lines to read values off; steps are `whole`."""
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label, color=COLOURS["muted"], labelpad=5)
    for axis, amount, integer in ((axes.xaxis, x, whole), (axes.yaxis, y, False)):
        axis.set_major_locator(MaxNLocator(amount, steps=[1, 2, 2.5, 5, 10], integer=integer))
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def row_ticks(axes: Axes, rows: int, *, x: int, x_label: str) -> None:
    """Make the vertical axis one of rows, the first on top, and give the other few ticks."""
    few_ticks(axes, x=x, x_label=x_label)
    axes.grid(visible=False)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks([])


def name_row(axes: Axes, level: float, name: str, words: str = "", *, narrow: bool) -> None:
    """Write a row's name left of it and words right of it; on a phone both stand above it."""
    width, _ = extent(axes)
    write = partial(axes.text, transform=axes.get_yaxis_transform())
    if narrow:
        write(0, level - 0.23, name, va="center")
        write(1, level - 0.23, words, va="center", ha="right")
    else:
        write(-12 / width, level, name, va="center_baseline", ha="right")
        write(1 + 14 / width, level, words, va="center_baseline")


def logarithmic(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with few ticks."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = math.log10(high / low)
    steps = (1.0,) if decades > 4 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    """Return a tick's number without needless digits."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return power(value)
    return f"{value:,.10g}".replace("-", "\u2212")


def power(value: float) -> str:
    """Return a tick's number as a digit and a power of ten: 3e−4."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}".replace("-", "\u2212")


def series(index: int) -> str:
    """Return the colour of the curve with this index."""
    return COLOURS[SERIES[index % len(SERIES)]]


def strokes(study: Study) -> dict[str, Stroke]:
    """Return how each arm is drawn: candidates in colour, controls dashed and grey."""
    found: dict[str, Stroke] = {}
    candidates, controls = count(), count()
    for arm in study.arms:
        if arm.role == "baseline":
            found[arm.name] = Stroke(COLOURS["ink"], "-", 2.6)
        elif arm.role in ("control", "self_check"):
            found[arm.name] = Stroke(COLOURS["muted"], DASHES[next(controls) % len(DASHES)], 1.4)
        else:
            index = next(candidates)
            found[arm.name] = Stroke(series(index), "-" if index < len(SERIES) else DASHES[0], 1.9)
    return found


def baseline_of(study: Study, arm: Arm) -> str:
    """Return the name of what an arm is compared with: its own baseline, or the study's."""
    first = next((one.name for one in study.arms if one.role == "baseline"), "")
    return arm.baseline or study.plan.baseline or first


def label_beside(axes: Axes, labels: Sequence[Label], *, length: int = 18) -> None:
    """Write labels in a column right of the plot, each led there by a thin line."""
    width, height = extent(axes)
    shares = _shares(axes, labels)
    places = spread([y * height for _, y in shares], LINE, -EDGE, height + EDGE)
    write = partial(axes.text, transform=axes.transAxes, va="center_baseline")
    for label, (x, y), place in zip(labels, shares, places, strict=True):
        level = place / height
        _lead(axes, [x + 4 / width, 1 + 8 / width, 1 + 14 / width], [y, level, level], label)
        text = wording.shortened(label.text, length)
        write(1 + 18 / width, level, text, color=label.colour)


def label_near(axes: Axes, labels: Sequence[Label], *, length: int = 24) -> None:
    """Write each label beside its point, where it covers no point, interval or other label."""
    width, height = extent(axes)
    points = [(x * width, y * height) for x, y in _shares(axes, labels)]
    half = POINT / 2
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for x, y in points]
    to_share = axes.transData + axes.transAxes.inverted()
    for label in labels:
        if label.interval is None:
            continue
        (x, low), (_, high) = to_share.transform([(label.x, end) for end in label.interval])
        taken.append((x * width - 2, low * height, x * width + 2, high * height))
    lines: list[Box] = []
    write = partial(axes.text, transform=axes.transAxes, va="baseline")
    for label, (x, y) in zip(labels, points, strict=True):
        text = wording.shortened(label.text, length)
        box = _free_box(x, y, LETTER * len(text), taken, lines, (width, height))
        taken.append(box)
        place, side = _anchor(box, x)
        write(place / width, (box[1] + 2) / height, text, color=label.colour, ha=side)
        if led := _leader(box, x, y):
            lines += led
            ends = led[0], led[-1]
            _lead(axes, [end[0] / width for end in ends], [end[1] / height for end in ends], label)


def spread(
    places: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """Return places at least `gap` apart, in their old order and moved as little as may be.

    Neighbours that are too close form a block around the mean of what they wanted; none lies below
    `low` or above `high` unless there are too many.
    """
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    room = low, high - gap * (len(places) - 1)
    moved = np.empty(len(places))
    moved[order] = isotonic_regression(np.clip(np.array(places)[order] - steps, *room)).x + steps
    return [float(place) for place in moved]


def _shares(axes: Axes, labels: Sequence[Label]) -> list[tuple[float, float]]:
    """Return where labelled points lie in the plot, from 0 to 1; from now on they stay there."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    to_share = axes.transData + axes.transAxes.inverted()
    places = [to_share.transform((label.x, label.y)) for label in labels]
    return [(float(x), float(y)) for x, y in places]


def _free_box(
    x: float, y: float, room: float, taken: list[Box], lines: list[Box], size: tuple[float, float]
) -> Box:
    """Return the first box of text around a point that covers nothing, else one to its right.

    Boxes lie inside the plot, whose size is given; above it there is room for a line. A thin line
    over words, its own or that of another label, is a lesser evil than words over words.
    """
    corners = [
        (x + side if side > 0 else x + side - room, y + step)
        for near, steps in ((8, (5, -17, -6)), (14, FURTHER), (44, FURTHER), (90, FURTHER))
        for step in steps
        for side in (near, -near)
    ]
    boxes = [(left, low, left + room, low + 12) for left, low in corners]
    width, height = size[0], size[1] + LINE / 2
    inside = [box for box in boxes if min(box[:2]) >= 0 and box[2] <= width and box[3] <= height]
    free = [box for box in inside if not _covers(box, taken)]
    words = [box for box in taken if box[2] - box[0] > POINT]
    clear = [
        box
        for box in free
        if not _covers(box, lines) and not any(_covers(dot, words) for dot in _leader(box, x, y))
    ]
    return (clear or free or inside or boxes)[0]


def _leader(box: Box, x: float, y: float) -> list[Box]:
    """Return dots from a point to its text; none where nearness alone tells whose it is."""
    if abs(box[1] + 6 - y) <= LINE:
        return []
    place, side = _anchor(box, x)
    end = (place - 3 if side == "left" else place + 3, box[1] + 6)
    dots = [(x + (end[0] - x) * part / 12, y + (end[1] - y) * part / 12) for part in range(13)]
    return [(left, low, left + 0.5, low + 0.5) for left, low in dots]


def _lead(axes: Axes, across: list[float], up: list[float], label: Label) -> None:
    """Draw a thin line from a point to its text, both in shares of the plot."""
    line = partial(axes.plot, transform=axes.transAxes, linewidth=0.6, alpha=0.7, clip_on=False)
    line(across, up, color=label.colour)


def _anchor(box: Box, x: float) -> tuple[float, str]:
    """Return the end of a box nearest to its point, from where text of any width starts."""
    return (box[0], "left") if box[0] >= x else (box[2], "right")


def _covers(box: Box, taken: list[Box]) -> bool:
    left, low, right, high = box
    return any(left < one[2] and one[0] < right and low < one[3] and one[1] < high for one in taken)
