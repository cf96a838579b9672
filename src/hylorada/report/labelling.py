"""Words beside what they name, none over another: a reader needs no legend."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.scales import extent

LINE = 15.5  # pixels from one line of text to the next
FURTHER = (19, -31, 33, -45, 47, -59, 61, -73, 75, -87, 89)
LETTER = 6.9  # pixels, the width of most letters

Box = tuple[float, float, float, float]


class Label(NamedTuple):
    """Words that belong to a point of a plot."""

    x: float
    y: float
    text: str
    colour: str


def label_beside(axes: Axes, labels: Sequence[Label], *, length: int = 18) -> None:
    """Write labels in a column right of the plot, each led there by a thin line."""
    width, height = extent(axes)
    wanted = _shares(axes, labels)
    places = spread([share[1] * height for share in wanted], LINE)
    over = max(0.0, max(places, default=0.0) - height - 6)
    for label, share, place in zip(labels, wanted, places, strict=True):
        level = (place - over) / height
        axes.plot(
            [share[0] + 4 / width, 1 + 8 / width, 1 + 14 / width],
            [share[1], level, level],
            transform=axes.transAxes,
            color=label.colour,
            linewidth=0.6,
            alpha=0.7,
            clip_on=False,
        )
        axes.text(
            1 + 18 / width,
            level,
            wording.shortened(label.text, length),
            transform=axes.transAxes,
            color=label.colour,
            va="center_baseline",
        )


def label_near(axes: Axes, labels: Sequence[Label], *, length: int = 24) -> None:
    """Write each label beside its point, where it covers neither a point nor another label."""
    width, height = extent(axes)
    points = [(x * width, y * height) for x, y in _shares(axes, labels)]
    taken: list[Box] = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    style: dict[str, Any] = {"transform": axes.transAxes, "va": "baseline"}
    for label, (x, y) in zip(labels, points, strict=True):
        text = wording.shortened(label.text, length)
        box = _free_box(x, y, LETTER * len(text), taken, width)
        taken.append(box)
        place, style["ha"] = _anchor(box, x)
        axes.text(place / width, (box[1] + 2) / height, text, color=label.colour, **style)
        if abs(box[1] + 6 - y) > LINE:  # too far away to be told by nearness alone
            _lead(axes, (x / width, y / height), (place / width, (box[1] + 6) / height), label)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Return places at least `gap` apart, in their old order and moved as little as may be.

    Neighbours that are too close form a block around the mean of what they wanted.
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    blocks: list[list[float]] = []
    for index in order:
        blocks.append([places[index]])
        while len(blocks) > 1 and _end(blocks[-2], gap) > _start(blocks[-1], gap):
            last = blocks.pop()
            blocks[-1] += last
    moved = [_start(block, gap) + step * gap for block in blocks for step in range(len(block))]
    result = [0.0] * len(places)
    for index, place in zip(order, moved, strict=True):
        result[index] = place
    return result


def _start(block: list[float], gap: float) -> float:
    return sum(block) / len(block) - gap * (len(block) - 1) / 2


def _end(block: list[float], gap: float) -> float:
    return _start(block, gap) + gap * len(block)


def _shares(axes: Axes, labels: Sequence[Label]) -> list[tuple[float, float]]:
    """Return where labelled points lie in the plot, from 0 to 1; from now on they stay there."""
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    to_share = axes.transData + axes.transAxes.inverted()
    places = [to_share.transform((label.x, label.y)) for label in labels]
    return [(float(x), float(y)) for x, y in places]


def _free_box(x: float, y: float, room: float, taken: list[Box], width: float) -> Box:
    """Return the first box of text around a point that covers nothing, else one to its right."""
    corners = [
        (x + side if side > 0 else x + side - room, y + step)
        for near, steps in ((8, (5, -17)), (14, FURTHER))
        for step in steps
        for side in (near, -near)
    ]
    boxes = [(left, low, left + room, low + 12) for left, low in corners]
    free = [box for box in boxes if box[0] >= 0 and box[2] <= width and not _covers(box, taken)]
    return free[0] if free else boxes[0]


def _lead(axes: Axes, start: tuple[float, float], end: tuple[float, float], label: Label) -> None:
    """Draw a thin line between two places of the plot, both from 0 to 1."""
    axes.plot(
        *zip(start, end, strict=True),
        transform=axes.transAxes,
        color=label.colour,
        linewidth=0.6,
        alpha=0.7,
    )


def _anchor(box: Box, x: float) -> tuple[float, str]:
    """Return the end of a box nearest to its point, from where text of any width starts."""
    return (box[0], "left") if box[0] >= x else (box[2], "right")


def _covers(box: Box, taken: list[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in taken
    )
