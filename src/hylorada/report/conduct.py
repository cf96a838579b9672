"""How a study was carried out: the rates that were tried, what runs cost, and its self-checks."""

import math
from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hylorada.records.runs import RunCost
from hylorada.records.studies import Study
from hylorada.report import wording
from hylorada.report.axes import few_ticks, power, strokes, title
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table

LEAST_REACH = 0.005  # nats; less is noise, and is not drawn as a valley
Tried = tuple[float, float, bool]  # a learning rate, its loss, and whether it was chosen


def tuning(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the loss on the tuning split by learning rate, and return the rates chosen."""
    arms: dict[str, list[Tried]] = {}
    for arm in study.arms:
        found = arm.tuning or []
        if known := [(one.rate, one.loss, one.chosen) for one in found if one.loss is not None]:
            arms[arm.name] = sorted(known)
    if not arms:
        return None
    rows = -(-len(arms) // (2 if sheet.narrow else 5))
    panels = sheet.panels(len(arms), columns=-(-len(arms) // rows), height=104, top=40)
    drawn = strokes(study)
    for axes, (name, tried) in zip(panels, arms.items(), strict=True):
        _rates(axes, tried, drawn[name].colour)
        title(axes, wording.shortened(name, 20))
    told = [
        f"{name} at {wording.significant(rate, 1)}"
        for name, tried in arms.items()
        for rate, _, chosen in tried
        if chosen
    ]
    return Caption(
        "Loss on the tuning split, in nats per token, by learning rate. Every arm had the same "
        "number of tries and has its own scale here. The filled point was chosen; a triangle lies "
        "above the scale.",
        f"Chosen: {'; '.join(told) or 'none'}.",
    )


def _rates(axes: Axes, tried: Sequence[Tried], colour: str) -> None:
    rates, losses, _ = zip(*tried, strict=True)
    lowest = min(losses)
    top = lowest + max(LEAST_REACH, 6 * (median(losses) - lowest))
    shown = [min(loss, top) for loss in losses]
    axes.plot(rates, shown, "-", color=colour, linewidth=1.5)
    for rate, loss, chosen in tried:
        fill, marker = colour if chosen else COLOURS["paper"], "^" if loss > top else "o"
        axes.plot([rate], [min(loss, top)], marker, color=colour, mfc=fill, markersize=6.5)
    few_ticks(axes, y=3, x_label="learning rate")
    middle, reach = (max(shown) + lowest) / 2, max(LEAST_REACH, 0.6 * (max(shown) - lowest))
    axes.set_ylim(middle - reach, middle + reach)
    axes.set_xscale("log")
    low, high = rates[0], rates[-1]
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.minorticks_off()
    # The chosen rate has a tick too where its name does not meet those of the others.
    near = {rate: min(math.log(rate / low), math.log(high / rate)) for rate, _, one in tried if one}
    free = [rate for rate, gap in near.items() if gap >= 0.36 * math.log(high / low)]
    axes.set_xticks(sorted({low, high, *free}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))


def tuning_table(study: Study) -> Table:
    """Return every learning rate tried, with its loss on the tuning split."""
    columns = [
        Column("arm", "Arm"),
        Column("rate", "Learning rate", wording.significant, 3),
        Column("loss", "Loss, nats per token", wording.number, 4),
        Column("chosen", ""),
    ]
    rows: list[list[Cell]] = [
        [arm.name, one.rate, one.loss, "chosen" if one.chosen else ""]
        for arm in study.arms
        for one in arm.tuning or []
    ]
    return Table("Learning rates tried on the tuning split.", columns, rows)


def cost(study: Study) -> Table:
    """Return what each arm costs."""
    columns = [
        Column("arm", "Arm"),
        Column("trainable_parameters", "Trainable parameters", wording.number, 0),
        Column("train_seconds", "Training time", wording.duration),
        Column("tokens_per_second", "Tokens per second", wording.number, 0),
        Column("peak_memory_bytes", "Peak memory", wording.size, 1),
        Column("adapter_bytes", "Adapter on disk", wording.size, 1),
    ]
    rows: list[list[Cell]] = []
    for arm in study.arms:
        measured = (getattr(arm.cost or RunCost(), column.name) for column in columns[2:])
        rows.append([arm.name, arm.trainable_parameters, *measured])
    caption = "What one run costs, mean over seeds; times hold for the machine named below."
    return Table(caption, columns, rows)


def checks(study: Study) -> Table:
    """Return what the study checked about itself."""
    columns = [Column("check", "Check"), Column("outcome", "Outcome"), Column("detail", "Detail")]
    rows: list[list[Cell]] = [
        [check.name, "passed" if check.passed else "FAILED", check.detail] for check in study.checks
    ]
    caption = "What the study checked about itself; a failed check puts every verdict in doubt."
    return Table(caption, columns, rows)


FIGURES.add(Figure("tuning", "Tuning", tuning, tuning_table))
FIGURES.add(Figure("cost", "Cost", table=cost))
FIGURES.add(Figure("checks", "Self-checks", table=checks))
