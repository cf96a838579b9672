"""Curves: training loss, loss by position, loss by depth of the evidence, tuning."""

import math
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.labelling import Label, label_beside
from hylorada.report.marks import Curve, Point, Stroke, baseline_of, ends, finite, strokes
from hylorada.report.scales import few_ticks, logarithmic, power, title

LEAST_REACH = 0.005  # nats; less is noise, and is not drawn as a valley
BANDS = 3  # more of them over each other cannot be told apart
POINTS = 160  # of a curve at most: more cannot be seen


def training(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the training loss, absolute and against the baseline, and return it in numbers."""
    seeds = {
        arm["name"]: _by_seed(arm["training_curve"])
        for arm in _shown(study)
        if arm["training_curve"]
    }
    curves = [Curve(name, _thinned(_mean(runs))) for name, runs in seeds.items()]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        return None
    bases = {arm["name"]: baseline_of(study, arm) for arm in _shown(study)}
    differences = [
        Curve(name, _thinned(_mean(_minus(runs, seeds.get(bases[name], {})))))
        for name, runs in seeds.items()
        if name not in bases.values()
    ]
    against = [curve for curve in differences if curve.points]
    _draw_pair(study, sheet, curves, against, "step")
    amount = max(len(runs) for runs in seeds.values())
    last = "; ".join(f"{c.name} {wording.number(c.points[-1].y, 3)}" for c in curves)
    return Caption(
        f"Training loss in nats per token, mean of {wording.count(amount, 'seed')}; bands run "
        "from the lowest to the highest seed. Arms of one seed see the same batches, so their "
        "difference is steadier than the loss itself."
        if against
        else f"Training loss in nats per token, {wording.count(amount, 'seed')}.",
        f"At the last logged step: {last}.",
    )


def positions(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the loss by position in the context, and return it in numbers."""
    curves = _measured(study, "position_curve", lambda row: (row["start"] + row["end"]) / 2)
    if not curves:
        return None
    rows = next(arm["position_curve"] for arm in _shown(study) if arm["position_curve"])
    widths = [row["end"] - row["start"] for row in rows]
    scale = logarithmic if max(widths) > 2 * min(widths) > 0 else None
    _draw_pair(study, sheet, curves, _against(study, curves), "position in the context", scale)
    first = curves[0]
    return Caption(
        "Loss in nats per token by position in the context, mean over seeds, with the 95\u00a0% "
        f"interval of {first.name}: {wording.number(first.points[0].y, 3)} at "
        f"positions {wording.stretch(rows[0]['start'], rows[0]['end'])}, "
        f"{wording.number(first.points[-1].y, 3)} at "
        f"{wording.stretch(rows[-1]['start'], rows[-1]['end'])}.",
        _largest(_against(study, curves), "position"),
    )


def depths(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the answer's loss by the depth of its evidence, and return it in numbers."""
    curves = _measured(study, "depth_curve", lambda row: float(row["depth"]))
    if not curves:
        return None
    _draw_pair(study, sheet, curves, _against(study, curves), "depth of the evidence")
    gaps = [
        f"{curve.name} {wording.signed(gap, 3)}"
        for curve in curves
        if (gap := _gap(curve)) is not None
    ]
    return Caption(
        "Loss of the answer in nats per token when its evidence lies at this depth of the context "
        f"(0 first, 1 last), mean over seeds, with the 95\u00a0% interval of {curves[0].name}. A "
        "hump is what is lost in the middle.",
        f"Middle minus edges: {'; '.join(gaps) or 'not measured'}.",
    )


def tuning(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the loss on the tuning split by learning rate, and return the rates chosen."""
    arms = [
        (arm, rows)
        for arm in study["arms"]
        if (rows := [r for r in arm["tuning"] or [] if finite(r["rate"], r["loss"])])
    ]
    if not arms:
        return None
    rows_of_panels = -(-len(arms) // (2 if sheet.narrow else 5))
    columns = -(-len(arms) // rows_of_panels)
    panels = sheet.panels(len(arms), columns=columns, height=104, top=40)
    drawn = strokes(study)
    for axes, (arm, rows) in zip(panels, arms, strict=True):
        _tuned(axes, rows, drawn[arm["name"]])
        title(axes, wording.shortened(arm["name"], 20))
    chosen = [
        f"{arm['name']} at {wording.significant(row['rate'], 1)}"
        for arm, rows in arms
        for row in rows
        if row.get("chosen")
    ]
    return Caption(
        "Loss on the tuning split, in nats per token, by learning rate. Every arm had the same "
        "number of tries and has its own scale here. The filled point was chosen; a triangle lies "
        "above the scale.",
        f"Chosen: {'; '.join(chosen) or 'none'}.",
    )


def _tuned(axes: Axes, rows: list[dict[str, Any]], stroke: Stroke) -> None:
    rows = sorted(rows, key=lambda row: row["rate"])
    rates, losses = [row["rate"] for row in rows], [row["loss"] for row in rows]
    top = min(losses) + max(LEAST_REACH, 6 * (median(losses) - min(losses)))
    losses = [min(loss, top) for loss in losses]
    axes.plot(rates, losses, "-", color=stroke.colour, linewidth=1.5)
    for row, loss in zip(rows, losses, strict=True):
        fill = stroke.colour if row.get("chosen") else COLOURS["paper"]
        marker = "^" if row["loss"] > top else "o"
        axes.plot([row["rate"]], [loss], marker, color=stroke.colour, mfc=fill, markersize=6.5)
    few_ticks(axes, y=3, x_label="learning rate")
    middle, reach = (max(losses) + min(losses)) / 2, 0.6 * (max(losses) - min(losses))
    axes.set_ylim(middle - max(reach, LEAST_REACH), middle + max(reach, LEAST_REACH))
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / 1.5, rates[-1] * 1.5)
    axes.minorticks_off()
    axes.set_xticks(_apart(rows))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))


def _apart(rows: list[dict[str, Any]]) -> list[float]:
    """Return the lowest, the chosen and the highest rate, as far as their names do not meet."""
    rates = [row["rate"] for row in rows]
    room = 0.36 * math.log(rates[-1] / rates[0])
    chosen = [row["rate"] for row in rows if row.get("chosen")]
    free = [
        rate
        for rate in chosen
        if math.log(rate / rates[0]) >= room and math.log(rates[-1] / rate) >= room
    ]
    return sorted({rates[0], rates[-1], *free})


def _draw_pair(
    study: dict[str, Any],
    sheet: Sheet,
    curves: list[Curve],
    against: list[Curve],
    x_label: str,
    scale: Callable[[Axes], None] | None = None,
) -> None:
    """Draw curves beside their differences from the baseline, where effects can be seen."""
    count = 2 if against else 1
    columns = 1 if sheet.narrow else count
    room = 104.0 if sheet.narrow else 116.0
    panels = sheet.panels(count, columns=columns, height=210, right=22, aside=room)
    drawn = strokes(study)
    for axes, shown in zip(panels, (curves, against), strict=False):
        for number, curve in enumerate(shown):
            banded = number == 0 if shown is curves else len(against) <= BANDS
            _line(axes, curve, drawn[curve.name], banded=banded)
        few_ticks(axes, x=4 if sheet.narrow else 5, x_label=x_label, whole=x_label == "step")
        if scale is not None:
            scale(axes)
    if against:
        own = {baseline_of(study, arm) for arm in _shown(study)}
        baseline = "baseline" if len(own) > 1 else wording.shortened(own.pop(), 18)
        title(panels[0], f"nats per token, {baseline} bold")
        title(panels[1], f"minus {baseline}; below 0 is better")
        panels[1].axhline(0, color=COLOURS["ink"], linewidth=0.9)
    else:
        title(panels[0], "nats per token")
    _label(panels[-1], against or curves, drawn, 15 if sheet.narrow else 18)


def _line(axes: Axes, curve: Curve, stroke: Stroke, *, banded: bool) -> None:
    xs = [point.x for point in curve.points]
    marker = "o" if len(xs) < 3 else ""
    axes.plot(
        xs,
        [point.y for point in curve.points],
        color=stroke.colour,
        linestyle=stroke.dash,
        linewidth=stroke.width,
        marker=marker,
        markersize=4,
    )
    band = [point for point in curve.points if point.low is not None and point.high is not None]
    if banded and band:
        axes.fill_between(
            [point.x for point in band],
            [point.low for point in band if point.low is not None],
            [point.high for point in band if point.high is not None],
            color=stroke.colour,
            alpha=0.13,
            linewidth=0,
        )


def _label(axes: Axes, curves: list[Curve], drawn: dict[str, Stroke], length: int) -> None:
    label_beside(
        axes,
        [
            Label(curve.points[-1].x, curve.points[-1].y, curve.name, drawn[curve.name].colour)
            for curve in curves
        ],
        length=length,
    )


def _shown(study: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arms that curves show: all but those that only check the study itself."""
    return [arm for arm in study["arms"] if arm["role"] != "self_check"]


def _by_seed(curve: dict[str, Any]) -> dict[str, dict[float, float]]:
    return {
        seed: {step: loss for step, loss in points if finite(step, loss)}
        for seed, points in curve.items()
    }


def _minus(
    runs: dict[str, dict[float, float]], baseline: dict[str, dict[float, float]]
) -> dict[str, dict[float, float]]:
    """Return differences of the same seed at the same step, whose batches are the same."""
    return {
        seed: {step: loss - baseline[seed][step] for step, loss in points.items()}
        for seed, points in runs.items()
        if seed in baseline and points.keys() <= baseline[seed].keys()
    }


def _mean(runs: dict[str, dict[float, float]]) -> list[Point]:
    """Return the mean over seeds at each step, with the lowest and the highest seed."""
    losses: dict[float, list[float]] = defaultdict(list)
    for points in runs.values():
        for step, loss in points.items():
            losses[step].append(loss)
    return [
        Point(float(step), fmean(found), min(found), max(found))
        for step, found in sorted(losses.items())
    ]


def _thinned(points: list[Point]) -> list[Point]:
    """Return at most `POINTS` points, each the mean of its neighbours."""
    width = -(-len(points) // POINTS) or 1
    groups = [points[start : start + width] for start in range(0, len(points), width)]
    return [
        Point(
            fmean(point.x for point in group),
            fmean(point.y for point in group),
            fmean(point.y if point.low is None else point.low for point in group),
            fmean(point.y if point.high is None else point.high for point in group),
        )
        for group in groups
    ]


def _measured(
    study: dict[str, Any], key: str, place: Callable[[dict[str, Any]], float]
) -> list[Curve]:
    curves = [
        Curve(
            arm["name"],
            [
                Point(place(row), float(row["value"]), *ends(row.get("interval")))
                for row in arm.get(key) or []
                if finite(row["value"])
            ],
        )
        for arm in _shown(study)
    ]
    return [curve for curve in curves if curve.points]


def _against(study: dict[str, Any], curves: list[Curve]) -> list[Curve]:
    """Return differences from the baseline at equal places; their means have no interval here."""
    values = {curve.name: {point.x: point.y for point in curve.points} for curve in curves}
    bases = {arm["name"]: baseline_of(study, arm) for arm in _shown(study)}
    differences = []
    for curve in curves:
        base = values.get(bases[curve.name], {})
        points = [Point(p.x, p.y - base[p.x], None, None) for p in curve.points if p.x in base]
        if points and curve.name not in bases.values():
            differences.append(Curve(curve.name, points))
    return differences


def _largest(differences: list[Curve], place: str) -> str:
    found = [(abs(p.y), curve.name, p) for curve in differences for p in curve.points]
    if not found:
        return ""
    _, name, point = max(found, key=lambda entry: entry[0])
    return (
        f"Largest difference from the baseline: {name}, {wording.signed(point.y, 3)} nats "
        f"at {place} {wording.significant(point.x)}."
    )


def _gap(curve: Curve) -> float | None:
    middle = [point.y for point in curve.points if 0.25 <= point.x <= 0.75]
    edges = [point.y for point in curve.points if not 0.25 <= point.x <= 0.75]
    return fmean(middle) - fmean(edges) if middle and edges else None
