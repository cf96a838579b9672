"""Gains along a quantity, such as the length of the context, from a study's `figures_data`."""

from typing import Any

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.labelling import Label, label_beside
from hylorada.report.marks import SERIES, Point, ends, finite
from hylorada.report.scales import few_ticks, plain, title


def gain_curves(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw gains along a quantity with their intervals, and return them in numbers."""
    found = study["figures_data"].get("gain_curves") or {}
    rows = [(row["name"], _points(row["points"])) for row in found.get("curves") or []]
    rows = [(name, points) for name, points in rows if points]
    if not rows:
        return None
    over = str(found.get("over") or "context, tokens")
    places = sorted({point.x for _, points in rows for point in points})
    (axes,) = sheet.panels(1, columns=1, height=220, right=118 if sheet.narrow else 190)
    axes.axhline(0, color=COLOURS["ink"], linewidth=0.9)
    labels = []
    for index, (name, points) in enumerate(rows):
        colour = COLOURS[SERIES[index % len(SERIES)]]
        # Equal steps between places, and a little aside, so that intervals can be told apart.
        aside = 0.06 * (index - (len(rows) - 1) / 2)
        across = [places.index(point.x) + aside for point in points]
        axes.plot(across, [point.y for point in points], "o-", color=colour, markersize=6)
        for place, point in zip(across, points, strict=True):
            if point.low is not None and point.high is not None:
                axes.plot([place] * 2, [point.low, point.high], color=colour, linewidth=1.6)
        labels.append(Label(across[-1], points[-1].y, name, colour))
    few_ticks(axes, x_label=over)
    axes.set_xticks(range(len(places)), [plain(place) for place in places])
    title(axes, "% lower perplexity than the baseline there")
    label_beside(axes, labels, length=15 if sheet.narrow else 26)
    return Caption(
        "Gain over the baseline at the same place, in per cent lower perplexity with the "
        "95\u00a0% interval. A line that falls is a gain that does not last.",
        "; ".join(f"{name}: {_listed(points)}" for name, points in rows) + ".",
    )


def _points(rows: list[dict[str, Any]]) -> list[Point]:
    return [
        Point(float(row["x"]), float(row["value"]), *ends(row.get("interval")))
        for row in sorted(rows, key=lambda row: row["x"])
        if finite(row["value"])
    ]


def _listed(points: list[Point]) -> str:
    return ", ".join(f"{wording.percent(point.y)} at {plain(point.x)}" for point in points)
