"""What figures are made of: points with intervals, curves, and how each arm is drawn."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from hylorada.report.canvas import COLOURS

SERIES = ("accent", "series-2", "series-3", "series-4", "series-5", "series-6")
DASHES: tuple[Any, ...] = ((0, (5, 2)), (0, (1.5, 1.8)), (0, (7, 2, 1.5, 2)), (0, (3, 4)))


class Stroke(NamedTuple):
    """A colour and a dash pattern, so that arms differ without colour too."""

    colour: str
    dash: Any
    width: float


class Point(NamedTuple):
    """A place on a curve with the ends of its interval; without one they are None."""

    x: float
    y: float
    low: float | None
    high: float | None


class Curve(NamedTuple):
    """An arm's points, from left to right."""

    name: str
    points: list[Point]


def strokes(study: dict[str, Any]) -> dict[str, Stroke]:
    """Return how each arm is drawn: candidates in colour, controls dashed and grey."""
    found: dict[str, Stroke] = {}
    candidates = controls = 0
    for arm in study["arms"]:
        role = arm["role"]
        if role == "baseline":
            found[arm["name"]] = Stroke(COLOURS["ink"], "-", 2.6)
        elif role in ("control", "self_check"):
            dash = DASHES[controls % len(DASHES)]
            found[arm["name"]] = Stroke(COLOURS["muted"], dash, 1.4)
            controls += 1
        else:
            dash = "-" if candidates < len(SERIES) else DASHES[0]
            colour = COLOURS[SERIES[candidates % len(SERIES)]]
            found[arm["name"]] = Stroke(colour, dash, 1.9)
            candidates += 1
    return found


def baseline_of(study: dict[str, Any], arm: dict[str, Any] | None = None) -> str:
    """Return the name of what an arm is compared with: its own baseline, or the study's."""
    if arm is not None and arm["baseline"]:
        return str(arm["baseline"])
    names = [one["name"] for one in study["arms"] if one["role"] == "baseline"]
    planned = study["plan"].get("baseline")
    return str(planned) if planned else names[0] if names else ""


def finite(*values: Any) -> bool:
    """Return whether all values are numbers that can be drawn."""
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def ends(interval: Sequence[Any] | None) -> tuple[float | None, float | None]:
    """Return the two ends of an interval, or None twice where one cannot be drawn."""
    if interval is None or len(interval) != 2 or not finite(*interval):
        return None, None
    return float(interval[0]), float(interval[1])
