"""Curves: gains along the context, and losses by step, position and depth of the evidence."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes

from hylorada.records.evaluations import Interval
from hylorada.records.studies import Arm, Study
from hylorada.report import axes as plots
from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table
from hylorada.report.wording import WithInterval

BANDS = 3  # more of them over each other cannot be told apart


class Mark(NamedTuple):
    """A place of a plot where something is drawn, with the vertical interval around it."""

    x: float
    y: float
    interval: Interval | None = None


Curves = dict[str, list[Mark]]  # by arm, each from left to right and not empty
Losses = dict[str, dict[float, float]]  # by seed and step


def gain_curves(study: Study, sheet: Sheet) -> Caption | None:
    """Draw gains along a quantity with their intervals, and return them in numbers."""
    found = study.figures_data.gain_curves
    if found is None:
        return None
    curves = _known({one.name: [(gain.x, gain) for gain in one.points] for one in found.curves})
    if not curves:
        return None
    places = sorted({mark.x for marks in curves.values() for mark in marks})
    (axes,) = sheet.panels(1, height=220, right=118 if sheet.narrow else 190)
    axes.axhline(0, color=COLOURS["ink"], linewidth=0.9)
    labels, told = [], []
    for index, (name, marks) in enumerate(curves.items()):
        # Equal steps between places, and a little aside, so that intervals can be told apart.
        aside, colour = 0.06 * (index - (len(curves) - 1) / 2), plots.series(index)
        across = [places.index(mark.x) + aside for mark in marks]
        axes.plot(across, [mark.y for mark in marks], "o-", color=colour, markersize=6)
        for place, mark in zip(across, marks, strict=True):
            if mark.interval:
                axes.plot([place] * 2, mark.interval, color=colour, linewidth=1.6)
        labels.append(plots.Label(across[-1], marks[-1].y, name, colour))
        at = [f"{wording.percent(mark.y)} at {plots.plain(mark.x)}" for mark in marks]
        told.append(f"{name}: {', '.join(at)}")
    plots.few_ticks(axes, x_label=found.over or "context, tokens")
    axes.set_xticks(range(len(places)), [plots.plain(place) for place in places])
    plots.title(axes, "% lower perplexity than the baseline there")
    plots.label_beside(axes, labels, length=15 if sheet.narrow else 26)
    return Caption(
        "Gain over the baseline at the same place, in per cent lower perplexity with the "
        "95\u00a0% interval. A line that falls is a gain that does not last.",
        f"{'; '.join(told)}.",
    )


def training(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the training loss, absolute and against the baseline, and return it in numbers."""
    bases = _baselines(study)
    losses: dict[str, Losses] = {
        arm.name: {
            seed: {step: loss for step, loss in logged if loss is not None}
            for seed, logged in (arm.training_curve or {}).items()
        }
        for arm in study.arms
        if arm.name in bases
    }
    curves = {name: marks for name, runs in losses.items() if (marks := mean(runs))}
    if not curves:
        return None
    differences = {
        name: marks
        for name, runs in losses.items()
        if name not in bases.values() and (marks := mean(minus(runs, losses.get(bases[name], {}))))
    }
    _draw_pair(study, sheet, curves, differences, "step")
    seeds = wording.count(max(map(len, losses.values())), "seed")
    last = "; ".join(f"{name} {wording.number(marks[-1].y, 3)}" for name, marks in curves.items())
    return Caption(
        f"Training loss in nats per token, mean of {seeds}; bands run "
        "from the lowest to the highest seed. Arms of one seed see the same batches, so their "
        "difference is steadier than the loss itself."
        if differences
        else f"Training loss in nats per token, {seeds}.",
        f"At the last logged step: {last}.",
    )


def positions(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the loss by position in the context, and return it in numbers."""
    found = {arm.name: arm.position_curve or [] for arm in study.arms if arm.role != "self_check"}
    curves = _known(
        {name: [((one.start + one.end) / 2, one) for one in curve] for name, curve in found.items()}
    )
    if not curves:
        return None
    buckets = next(filter(None, found.values()))
    widths = [one.end - one.start for one in buckets]
    differences = against(study, curves)
    wide = max(widths) > 2 * min(widths) > 0
    _draw_pair(study, sheet, curves, differences, "position in the context", logarithmic=wide)
    moved = [(abs(mark.y), name, mark) for name, marks in differences.items() for mark in marks]
    told = ""
    if moved:
        _, arm, mark = max(moved, key=lambda one: one[0])
        told = (
            f"Largest difference from the baseline: {arm}, {wording.signed(mark.y, 3)} nats "
            f"at position {wording.significant(mark.x)}."
        )
    name, marks = next(iter(curves.items()))
    return Caption(
        "Loss in nats per token by position in the context, mean over seeds, with the 95\u00a0% "
        f"interval of {name}: {wording.number(marks[0].y, 3)} at "
        f"positions {wording.stretch(buckets[0].start, buckets[0].end)}, "
        f"{wording.number(marks[-1].y, 3)} at "
        f"{wording.stretch(buckets[-1].start, buckets[-1].end)}.",
        told,
    )


def depths(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the answer's loss by the depth of its evidence, and return it in numbers."""
    found = {arm.name: arm.depth_curve or [] for arm in study.arms if arm.role != "self_check"}
    curves = _known({name: [(one.depth, one) for one in curve] for name, curve in found.items()})
    if not curves:
        return None
    _draw_pair(study, sheet, curves, against(study, curves), "depth of the evidence")
    gaps = []
    for name, marks in curves.items():
        middle = [mark.y for mark in marks if 0.25 <= mark.x <= 0.75]
        edges = [mark.y for mark in marks if not 0.25 <= mark.x <= 0.75]
        if middle and edges:
            gaps.append(f"{name} {wording.signed(fmean(middle) - fmean(edges), 3)}")
    return Caption(
        "Loss of the answer in nats per token when its evidence lies at this depth of the context "
        f"(0 first, 1 last), mean over seeds, with the 95\u00a0% interval of {next(iter(curves))}. "
        "A hump is what is lost in the middle.",
        f"Middle minus edges: {'; '.join(gaps) or 'not measured'}.",
    )


def _draw_pair(
    study: Study,
    sheet: Sheet,
    curves: Curves,
    differences: Curves,
    x_label: str,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw curves beside their differences from the baseline, where effects can be seen."""
    room = 104.0 if sheet.narrow else 116.0
    panels = sheet.panels(2 if differences else 1, height=210, right=22, aside=room)
    drawn = plots.strokes(study)
    for axes, shown in zip(panels, (curves, differences), strict=False):
        for index, (name, marks) in enumerate(shown.items()):
            banded = index == 0 if shown is curves else len(differences) <= BANDS
            _line(axes, marks, drawn[name], banded=banded)
        ticks = 4 if sheet.narrow else 5
        plots.few_ticks(axes, x=ticks, x_label=x_label, whole=x_label == "step")
        if logarithmic:
            plots.logarithmic(axes)
    if differences:
        own = set(_baselines(study).values())
        baseline = "baseline" if len(own) > 1 else wording.shortened(own.pop(), 18)
        plots.title(panels[0], f"nats per token, {baseline} bold")
        plots.title(panels[1], f"minus {baseline}; below 0 is better")
        panels[1].axhline(0, color=COLOURS["ink"], linewidth=0.9)
    else:
        plots.title(panels[0], "nats per token")
    ends = {name: marks[-1] for name, marks in (differences or curves).items()}
    labels = [plots.Label(end.x, end.y, name, drawn[name].colour) for name, end in ends.items()]
    plots.label_beside(panels[-1], labels, length=15 if sheet.narrow else 18)


def _line(axes: Axes, marks: list[Mark], stroke: plots.Stroke, *, banded: bool) -> None:
    axes.plot(
        [mark.x for mark in marks],
        [mark.y for mark in marks],
        color=stroke.colour,
        linestyle=stroke.dash,
        linewidth=stroke.width,
        marker="o" if len(marks) < 3 else "",
        markersize=4,
    )
    band = [(mark.x, *mark.interval) for mark in marks if mark.interval]
    if banded and band:
        across, low, high = zip(*band, strict=True)
        axes.fill_between(across, low, high, color=stroke.colour, alpha=0.13, linewidth=0)


def _baselines(study: Study) -> dict[str, str]:
    """Return the baseline of every arm but those that only check the study itself."""
    shown = [arm for arm in study.arms if arm.role != "self_check"]
    return {arm.name: plots.baseline_of(study, arm) for arm in shown}


def _known(found: Mapping[str, Iterable[tuple[float, WithInterval]]]) -> Curves:
    """Return a mark for every place with a known value, from left to right."""
    curves: Curves = {}
    for name, places in found.items():
        known = [(x, one.value, one.interval) for x, one in places if one.value is not None]
        if known:
            curves[name] = [Mark(*one) for one in sorted(known, key=lambda place: place[0])]
    return curves


def minus(runs: Losses, baseline: Losses) -> Losses:
    """Return differences of the same seed at the same step, whose batches are the same."""
    return {
        seed: {step: loss - baseline[seed][step] for step, loss in logged.items()}
        for seed, logged in runs.items()
        if seed in baseline and logged.keys() <= baseline[seed].keys()
    }


def mean(runs: Losses) -> list[Mark]:
    """Return the mean over seeds at each step, with the lowest and the highest seed."""
    steps = sorted({step for logged in runs.values() for step in logged})
    found = [(step, [one[step] for one in runs.values() if step in one]) for step in steps]
    return [Mark(step, fmean(losses), (min(losses), max(losses))) for step, losses in found]


def against(study: Study, curves: Curves) -> Curves:
    """Return differences from the baseline at equal places; their means have no interval here."""
    bases = _baselines(study)
    differences: Curves = {}
    for name, marks in curves.items():
        base = {mark.x: mark.y for mark in curves.get(bases[name], [])}
        moved = [Mark(x, y - base[x]) for x, y, _ in marks if x in base]
        if moved and name not in bases.values():
            differences[name] = moved
    return differences


def position_table(study: Study) -> Table:
    """Return the loss by position, a row a bucket and a column an arm."""
    return _curve_table(
        study,
        "Position",
        "Loss in nats per token by position in the context, with its 95\u00a0% interval.",
        lambda arm: {wording.stretch(one.start, one.end): one for one in arm.position_curve or []},
    )


def depth_table(study: Study) -> Table:
    """Return the answer's loss by depth of the evidence, a row a depth and a column an arm."""
    return _curve_table(
        study,
        "Depth",
        "Loss of the answer in nats per token by depth of the evidence; 95\u00a0% interval.",
        lambda arm: {wording.number(one.depth): one for one in arm.depth_curve or []},
    )


def _curve_table(
    study: Study, heading: str, caption: str, curve_of: Callable[[Arm], Mapping[str, WithInterval]]
) -> Table:
    curves = {arm.name: curve for arm in study.arms if (curve := curve_of(arm))}
    places = dict.fromkeys(place for curve in curves.values() for place in curve)
    rows: list[list[Cell]] = [[place, *(c.get(place) for c in curves.values())] for place in places]
    numbers = [Column(name, name, wording.number, 3) for name in curves]
    return Table(caption, [Column(heading.lower(), heading), *numbers], rows)


FIGURES.add(Figure("gain_curves", "Gain by length", gain_curves))
FIGURES.add(Figure("training", "Training", training))
FIGURES.add(Figure("positions", "Loss by position", positions, position_table))
FIGURES.add(Figure("depths", "Loss by depth of the evidence", depths, depth_table))
