"""Words beside what they name, none over another: a reader needs no legend."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.scales import extent

LINE = 15.5  # pixels from one line of text to the next
# Pixels above and below a point, nearest first.
FURTHER = tuple(step for up in range(19, 160, 7) for step in (up, -up - 12))
LETTER = 6.9  # pixels, the width of most letters
POINT = 12.0  # pixels, the width of a point with some room around it

Box = tuple[float, float, float, float]
Bar = tuple[float, float, float]  # where it stands, and its ends, as the axes count


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


def label_near(
    axes: Axes, labels: Sequence[Label], *, length: int = 24, bars: Sequence[Bar] = ()
) -> None:
    """Write each label beside its point, where it covers no point, no bar and no other label."""
    width, height = extent(axes)
    points = [(x * width, y * height) for x, y in _shares(axes, labels)]
    half = POINT / 2
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for x, y in points]
    taken += [_around(axes, bar, width, height) for bar in bars]
    lines: list[Box] = []
    style: dict[str, Any] = {"transform": axes.transAxes, "va": "baseline"}
    for label, (x, y) in zip(labels, points, strict=True):
        text = wording.shortened(label.text, length)
        box = _free_box(x, y, LETTER * len(text), taken, lines, (width, height))
        taken.append(box)
        place, style["ha"] = _anchor(box, x)
        axes.text(place / width, (box[1] + 2) / height, text, color=label.colour, **style)
        led = _leader(box, x, y)
        if led:
            lines += led
            (left, low), (right, high) = led[0][:2], led[-1][:2]
            _lead(axes, (left / width, low / height), (right / width, high / height), label)


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


def _around(axes: Axes, bar: Bar, width: float, height: float) -> Box:
    """Return the box of a vertical bar, in pixels from the lower left corner of the plot."""
    to_share = axes.transData + axes.transAxes.inverted()
    (x, low), (_, high) = (to_share.transform((bar[0], end)) for end in bar[1:])
    return x * width - 2, low * height, x * width + 2, high * height


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
    inside = [
        box
        for box in boxes
        if box[0] >= 0 and box[2] <= size[0] and box[1] >= 0 and box[3] <= size[1] + LINE / 2
    ]
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
