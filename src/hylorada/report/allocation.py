"""Figures from the `figures_data` of a study: allocation, gradients, bounds."""

from typing import Any

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.frontiers import Offer, draw_frontier
from hylorada.report.labelling import Label, label_beside
from hylorada.report.landmarks import Heat, draw_heats
from hylorada.report.marks import DASHES, SERIES, ends, finite, strokes
from hylorada.report.scales import extent, few_ticks, title


def bits_against_risk(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the empirical risk against the message's length, and return the frontier."""
    drawn = strokes(study)
    offers = [
        Offer(
            row["name"],
            float(row["bits"]),
            float(row["risk"]),
            *ends(row.get("interval")),
            drawn[row["name"]].colour if row["name"] in drawn else COLOURS["accent"],
        )
        for row in _data(study, "bits_risk")
        if finite(row.get("bits"), row.get("risk"))
    ]
    if not offers:
        return None
    unit = _unit(study, "bits per token")
    best = draw_frontier(offers, sheet, "length of the message, bits", f"empirical risk, {unit}")
    named = [
        f"{offer.name} ({offer.cost:,.0f} bits, {wording.number(offer.result, 3)})"
        for offer in best
    ]
    return Caption(
        f"Empirical risk in {unit} against the length of the message that holds the weights, in "
        "bits; lower and further left is better. Filled points are on the frontier.",
        f"On the frontier: {wording.listed(named)}.",
    )


def layer_gates(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw gates by layer and seed, and return their range."""
    heats = [
        Heat(row["name"], row["rows"], row["columns"], row["weights"])
        for row in _data(study, "layer_gates")
        if row.get("weights")
    ]
    if not heats:
        return None
    low, high = draw_heats(heats, sheet)
    return Caption(
        "Learned gate by layer (down) and seed (across); stronger colour is a larger share for B, "
        f"from {wording.number(low, 3)} to {wording.number(high, 3)} in all panels.",
        "",
    )


def gradient_norms(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw norms of gradients over training, and return the last ones."""
    rows = [
        (row["name"], [(step, norm) for step, norm in row["points"] if finite(step, norm)])
        for row in _data(study, "gradient_norms")
    ]
    rows = [(name, points) for name, points in rows if points]
    if not rows:
        return None
    (axes,) = sheet.panels(1, columns=1, height=200, right=118 if sheet.narrow else 190)
    labels = []
    for index, (name, points) in enumerate(rows):
        colour = COLOURS[SERIES[index % len(SERIES)]]
        dash = "-" if index < len(SERIES) else DASHES[0]
        marker = "o" if len(points) < 3 else ""
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, marker=marker)
        labels.append(Label(points[-1][0], points[-1][1], name, colour))
    few_ticks(axes, x=4 if sheet.narrow else 7, x_label="step", whole=True)
    axes.set_ylim(0, 1.08 * max(norm for _, points in rows for _, norm in points) or 1)
    title(axes, "norm of the gradient")
    label_beside(axes, labels, length=15 if sheet.narrow else 26)
    last = "; ".join(f"{name} {wording.significant(points[-1][1])}" for name, points in rows)
    return Caption("Norm of the gradient over training.", f"At the last logged step: {last}.")


def bound_parts(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw what each bound is the sum of, and return the sums."""
    rows = [
        (row["name"], [part for part in row["parts"] if finite(part.get("value"))])
        for row in _data(study, "bound_parts")
    ]
    rows = [(name, parts) for name, parts in rows if parts]
    if not rows:
        return None
    names = list(dict.fromkeys(part["name"] for _, parts in rows for part in parts))
    colours = {name: COLOURS[SERIES[i % len(SERIES)]] for i, name in enumerate(names)}
    step = 46 if sheet.narrow else 32
    (axes,) = sheet.panels(
        1,
        columns=1,
        height=step * len(rows),
        left=12 if sheet.narrow else 190,
        right=60,
        top=24 + 18 * (len(names) if sheet.narrow else 1),
    )
    for level, (name, parts) in enumerate(rows):
        _bar(axes, level, name, parts, colours, narrow=sheet.narrow)
    few_ticks(axes, x=4 if sheet.narrow else 7, x_label=_unit(study, "bits per token"))
    axes.grid(visible=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    _part_names(axes, colours, narrow=sheet.narrow)
    sums = [f"{name} {wording.number(_total(parts), 3)}" for name, parts in rows]
    return Caption(
        f"What each bound is the sum of, in {_unit(study, 'bits per token')}.",
        f"Sums: {'; '.join(sums)}.",
    )


def _bar(
    axes: Axes,
    level: int,
    name: str,
    parts: list[dict[str, Any]],
    colours: dict[str, str],
    *,
    narrow: bool,
) -> None:
    start = 0.0
    for part in parts:
        axes.barh(
            level + (0.16 if narrow else 0),
            part["value"],
            left=start,
            height=0.4 if narrow else 0.56,
            color=colours[part["name"]],
            edgecolor=COLOURS["paper"],
            linewidth=1.2,
        )
        start += part["value"]
    width, _ = extent(axes)
    across = axes.get_yaxis_transform()
    axes.annotate(
        wording.number(start, 3),
        (start, level + (0.16 if narrow else 0)),
        xytext=(7, 0),
        textcoords="offset pixels",
        va="center_baseline",
    )
    if narrow:
        axes.text(0, level - 0.26, wording.shortened(name, 40), transform=across, va="center")
    else:
        shown = wording.shortened(name, 26)
        axes.text(-10 / width, level, shown, transform=across, ha="right", va="center_baseline")


def _part_names(axes: Axes, colours: dict[str, str], *, narrow: bool) -> None:
    """Write the name of each part in its colour above the bars."""
    width, height = extent(axes)
    across = 0.0
    for index, (name, colour) in enumerate(colours.items()):
        level = (len(colours) - index) * 18 - 10 if narrow else 10
        axes.text(
            across / width,
            1 + level / height,
            f"■ {name}",
            transform=axes.transAxes,
            color=colour,
            va="bottom",
        )
        across += 0 if narrow else 30 + 7.2 * len(name)


def _total(parts: list[dict[str, Any]]) -> float:
    return float(sum(part["value"] for part in parts))


def _data(study: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return study["figures_data"].get(key) or []


def _unit(study: dict[str, Any], usual: str) -> str:
    return str(study["figures_data"].get("risk_unit") or usual)
