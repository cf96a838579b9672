"""What landmarks learned: where buckets begin, and how gates weigh landmarks or layers."""

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.marks import finite
from hylorada.report.scales import extent, few_ticks, title

FAINTEST = 0.05
KEY_STEPS = 24


class Heat(NamedTuple):
    """A table of weights with names for its rows and columns."""

    name: str
    rows: list[str]
    columns: list[str]
    weights: list[list[float]]


def boundaries(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw learned bucket boundaries below uniform ones, and return their mean shift in tokens."""
    arms = [arm for arm in study["arms"] if (arm["boundaries"] or {}).get("learned")]
    if not arms:
        return None
    most = max(len(arm["boundaries"]["learned"]) for arm in arms)
    left = 62 if sheet.narrow else 84
    height = 34 * (most + 1)
    panels = sheet.panels(len(arms), columns=1, height=height, left=left, top=38)
    for axes, arm in zip(panels, arms, strict=True):
        _boundary_rows(axes, arm, few=sheet.narrow)
    shifts = [f"{arm['name']} {_shift(arm['boundaries'])}" for arm in arms]
    return Caption(
        "Where position buckets begin, in tokens: uniform above, below it what each seed learned; "
        f"a thin line follows one boundary. Mean absolute shift: {'; '.join(shifts)}.",
        "",
    )


def gates(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the mean gate by position bucket, and return its range."""
    heats = [
        Heat(arm["name"], found["rows"], found["columns"], found["weights"])
        for arm in study["arms"]
        if (found := arm["gates"]) and found.get("weights") and len(found["columns"]) > 1
    ]
    if not heats:
        return None
    low, high = draw_heats(heats, sheet)
    return Caption(
        "Mean weight that the gate gives each landmark (across), by position in the context "
        f"(down); stronger colour is more, from {wording.number(low, 3)} to "
        f"{wording.number(high, 3)} in all panels.",
        _strongest(heats),
    )


def draw_heats(
    heats: list[Heat], sheet: Sheet, within: tuple[float, ...] = ()
) -> tuple[float, float]:
    """Draw tables of weights on one scale that holds `within` too, and return the scale's ends."""
    values = [value for heat in heats for row in heat.weights for value in row if finite(value)]
    low, high = min((*values, *within), default=0.0), max((*values, *within), default=1.0)
    most = max(len(heat.rows) for heat in heats)
    columns = 1 if sheet.narrow else min(2, len(heats))
    height = max(90.0, min(22.0, 330 / most) * most)
    left = 74.0
    panels = sheet.panels(len(heats), columns=columns, height=height, left=left, top=36, bottom=72)
    for axes, heat in zip(panels, heats, strict=True):
        _cells(axes, heat, low, high)
    _key(panels[len(panels) - columns if len(panels) % columns == 0 else -1], low, high)
    return low, high


def _boundary_rows(axes: Axes, arm: dict[str, Any], *, few: bool) -> None:
    found = arm["boundaries"]
    rows = [found["uniform"], *found["learned"]]
    seeds = [str(run["seed"]) for run in arm["runs"] or []]
    names = [f"seed {seed}" for seed in seeds]
    if len(names) != len(rows) - 1:
        names = [f"run {index}" for index in range(1, len(rows))]
    context = found.get("context") or max(max(row, default=1) for row in rows)
    for places in zip(*rows, strict=False):
        axes.plot(places, range(len(places)), color=COLOURS["accent"], linewidth=0.8, alpha=0.4)
    for level, row in enumerate(rows):
        colour = COLOURS["muted"] if level == 0 else COLOURS["accent"]
        axes.plot([0, context], [level, level], color=COLOURS["rule"], linewidth=0.8, zorder=1)
        axes.plot(row, [level] * len(row), "|", color=colour, markersize=15, mew=1.8, zorder=2)
    few_ticks(axes, x=4 if few else 8, x_label="position in the context, tokens")
    axes.grid(visible=False)
    axes.set(xlim=(0, context * 1.01), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), ["uniform", *names])
    title(axes, wording.shortened(arm["name"], 40), left=0)


def _shift(found: dict[str, Any]) -> str:
    shifts = [
        abs(learned - uniform)
        for row in found["learned"]
        for learned, uniform in zip(row, found["uniform"], strict=False)
    ]
    amount = wording.significant(sum(shifts) / len(shifts)) if shifts else wording.NOTHING
    return f"{amount} tokens ({wording.count(len(found['learned']), 'seed')})"


def _cells(axes: Axes, heat: Heat, low: float, high: float) -> None:
    cells = [
        (place + 0.02, level + 0.03, _strength(value, low, high))
        for level, row in enumerate(heat.weights)
        for place, value in enumerate(row)
        if finite(value)
    ]
    shades = [to_rgba(COLOURS["accent"], strength) for *_, strength in cells]
    boxes = [Rectangle((left, top), 0.96, 0.94) for left, top, _ in cells]
    axes.add_collection(PatchCollection(boxes, facecolors=shades, linewidths=0), autolim=False)
    axes.set(xlim=(0, len(heat.columns)), ylim=(len(heat.rows), 0))
    _names(axes, heat)
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    title(axes, wording.shortened(heat.name, 40), left=0)


def _names(axes: Axes, heat: Heat) -> None:
    """Name rows and columns, as many and as far as there is room."""
    width, height = extent(axes)
    every = -(-16 * len(heat.rows) // int(height)) or 1
    picked = range(0, len(heat.rows), every)
    rows = [wording.shortened(heat.rows[level], 10) for level in picked]
    axes.set_yticks([level + 0.5 for level in picked], rows)
    names = heat.columns
    if max(map(len, names)) * 7 * len(names) > width:  # equal beginnings go below, once
        axes.set_xlabel(" ".join(names[0].split()[:-1]), color=COLOURS["muted"])
        names = ["".join(name.split()[-1:])[:6] for name in names]
    axes.set_xticks([place + 0.5 for place in range(len(names))], names)


def _key(axes: Axes, low: float, high: float) -> None:
    """Draw the scale of the shades below the plot."""
    width, height = extent(axes)
    step = 96 / KEY_STEPS / width
    strengths = [_strength(index, 0, KEY_STEPS - 1) for index in range(KEY_STEPS)]
    boxes = [
        Rectangle((44 / width + index * step, -62 / height), step, 9 / height)
        for index in range(KEY_STEPS)
    ]
    shades = PatchCollection(
        boxes,
        facecolors=[to_rgba(COLOURS["accent"], strength) for strength in strengths],
        linewidths=0,
        transform=axes.transAxes,
        clip_on=False,
    )
    axes.add_collection(shades, autolim=False)
    place: dict[str, Any] = {
        "transform": axes.transAxes,
        "va": "center_baseline",
        "color": COLOURS["muted"],
    }
    axes.text(38 / width, -57 / height, wording.number(low, 3), ha="right", **place)
    axes.text(146 / width, -57 / height, wording.number(high, 3), ha="left", **place)


def _strength(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 1.0
    return FAINTEST + (1 - FAINTEST) * share


def _strongest(heats: list[Heat]) -> str:
    parts = []
    for heat in heats:
        cells = [
            (value, name, column)
            for name, row in zip(heat.rows, heat.weights, strict=False)
            for column, value in zip(heat.columns, row, strict=False)
            if finite(value)
        ]
        if cells:
            value, row, column = max(cells, key=lambda cell: cell[0])
            parts.append(f"{heat.name}: most for {column} at {row}, {wording.number(value, 3)}.")
    return " ".join(parts)
