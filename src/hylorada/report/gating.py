"""Learned gates: by layer and seed, along the depth, and beside the gradients that moved them."""

from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import rankdata

from hylorada.report import wording
from hylorada.report.allocation_data import SIDES, Place, data, layer_places
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.labelling import Label, label_beside, label_near
from hylorada.report.landmarks import Heat, draw_heats
from hylorada.report.marks import DASHES, SERIES, finite
from hylorada.report.scales import few_ticks, logarithmic, title
from hylorada.verdicts.allocation import SMALLEST_SHARE

Points = list[tuple[float, float]]
ONE_HALF = (0.5 - SMALLEST_SHARE, 0.5 + SMALLEST_SHARE)  # gates that count as one half


def layer_gates(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw gates by layer and seed, and return their range."""
    heats = _heats(study)
    if not heats:
        return None
    low, high = draw_heats(heats, sheet, ONE_HALF)
    return Caption(
        "Learned gate by layer (down) and seed (across); stronger colour is a larger share for B, "
        f"from {wording.number(low, 3)} to {wording.number(high, 3)} in all panels.",
        "",
    )


def gate_trend(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw gates along the depth of the stack, and return their slopes."""
    heats = [heat for heat in _heats(study) if len(_stack(heat)) > 1]
    if not heats:
        return None
    columns = 1 if sheet.narrow else min(2, len(heats))
    panels = sheet.panels(len(heats), columns=columns, height=190, right=20)
    gates = [gate for heat in heats for row in heat.weights for gate in row if finite(gate)]
    for axes, heat in zip(panels, heats, strict=True):
        _trend(axes, heat)
        _shares(axes, gates)
        few_ticks(axes, x=6, x_label="layer", whole=True)
        _name_layers(axes, heat)
        title(axes, f"γ, {wording.shortened(heat.name, 32)}")
    slopes = [f"{heat.name} {wording.signed(_slope(heat), 3)}" for heat in heats]
    return Caption(
        "Learned gate γ, B's share of a layer's coordinates, from the first layer to the last: "
        "thin lines are seeds, the thick one is their mean, the dashed one its least-squares "
        "line. What is shaded counts as one half. An open point is no layer of the stack.",
        f"Change of γ from the first layer to the last: {'; '.join(slopes)}.",
    )


def gradient_norms(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw norms of gradients over training, A and B of an arm together, and return the last."""
    rows = [
        (row["name"], [(step, norm) for step, norm in row["points"] if finite(step, norm)])
        for row in data(study, "gradient_norms")
    ]
    rows = [(name, points) for name, points in rows if points]
    if not rows:
        return None
    groups, finals = _by_arm(rows), _final_gates(study)
    columns = 1 if sheet.narrow else min(2, len(groups))
    right = (118 if sheet.narrow else 190) if "" in groups else 40
    panels = sheet.panels(len(groups), columns=columns, height=190, right=right)
    highest = max(norm for _, points in rows for _, norm in points)
    for axes, (arm, lines) in zip(panels, groups.items(), strict=True):
        labels = _lines(axes, lines)
        few_ticks(axes, x=4 if sheet.narrow else 6, x_label="step", whole=True)
        axes.set_ylim(0, 1.08 * highest or 1)
        gate = f", final γ {wording.number(finals[arm], 3)}" if arm in finals else ""
        title(axes, f"{wording.shortened(arm, 26) or 'norm of the gradient'}{gate}")
        label_beside(axes, labels, length=15 if sheet.narrow else 26)
    last = "; ".join(f"{name} {wording.significant(points[-1][1])}" for name, points in rows)
    told = " The final γ is a mean over layers and seeds." if finals else ""
    return Caption(
        f"Norm of the gradient over training.{told}", f"At the last logged step: {last}."
    )


def gradient_gates(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the final gate of each layer against the ratio of its gradients, and return both."""
    arms = [(arm["name"], places) for arm in study["arms"] if (places := layer_places(arm))]
    if not arms:
        return None
    columns = 1 if sheet.narrow else min(2, len(arms))
    panels = sheet.panels(len(arms), columns=columns, height=220, right=26)
    gates = [gate for _, places in arms for place in places for gate in place.gates]
    for axes, (name, places) in zip(panels, arms, strict=True):
        _scatter(axes, places)
        _shares(axes, gates)
        few_ticks(axes, x=4, x_label="‖∇B‖ / ‖∇A‖, mean over training")
        _spread_out(axes, [place.ratio for place in places])
        title(axes, f"final γ, {wording.shortened(name, 30)}")
        label_near(
            axes,
            [Label(p.ratio, p.gate, _short(p.layer), COLOURS["ink"]) for p in places],
            length=12,
            bars=[(p.ratio, min(p.gates), max(p.gates)) for p in places],
        )
    told = [f"{name} {wording.signed(_rank_correlation(places), 2)}" for name, places in arms]
    return Caption(
        "Final gate γ of each layer against how much larger the gradient of its B is than that of "
        "its A, in mean norms over training; bars run from the lowest to the highest seed. What is "
        "shaded counts as one half.",
        f"Rank correlation over layers: {'; '.join(told)}.",
    )


def _heats(study: dict[str, Any]) -> list[Heat]:
    return [
        Heat(row["name"], row["rows"], row["columns"], row["weights"])
        for row in data(study, "layer_gates")
        if row.get("weights")
    ]


def _stack(heat: Heat) -> list[list[float]]:
    """Return the gates of the layers of the stack, whose names end in a number, by depth."""
    return [
        row
        for name, row in zip(heat.rows, heat.weights, strict=False)
        if name[-1:].isdigit() and row and finite(*row)
    ]


def _shares(axes: Axes, gates: list[float]) -> None:
    """Give the axes room for all gates, and shade what counts as one half."""
    low, high = min(*ONE_HALF, *gates), max(*ONE_HALF, *gates)
    margin = 0.08 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.axhspan(*ONE_HALF, color=COLOURS["band"], linewidth=0, zorder=0)
    axes.axhline(0.5, color=COLOURS["muted"], linewidth=0.9, zorder=1)


def _trend(axes: Axes, heat: Heat) -> None:
    stack = _stack(heat)
    depth = range(len(stack))
    accent = COLOURS["accent"]
    means = [fmean(row) for row in stack]
    for gates in zip(*stack, strict=False):
        axes.plot(depth, gates, color=accent, linewidth=0.8, alpha=0.55)
    slope, start = np.polyfit(list(depth), means, 1)
    ends = [0, len(stack) - 1]
    axes.plot(ends, [start + slope * end for end in ends], color=accent, dashes=(5, 3), lw=1.2)
    axes.plot(depth, means, "o-", color=accent, markersize=5, linewidth=2.2)
    for index, (_, row) in enumerate(_outside(heat)):
        place = len(stack) + 0.5 + index
        axes.plot([place] * 2, [min(row), max(row)], color=accent, linewidth=1.6)
        axes.plot([place], [fmean(row)], "o", color=accent, mfc=COLOURS["paper"], markersize=6.5)


def _outside(heat: Heat) -> list[tuple[str, list[float]]]:
    """Return what has a gate and is no layer of the stack, such as the head."""
    pairs = zip(heat.rows, heat.weights, strict=False)
    return [(name, row) for name, row in pairs if not name[-1:].isdigit() and row and finite(*row)]


def _name_layers(axes: Axes, heat: Heat) -> None:
    count = len(_stack(heat))
    step = -(-count // 8)
    places: list[float] = [*range(0, count, step)]
    names = [str(int(place)) for place in places]
    for index, (name, _) in enumerate(_outside(heat)):
        places.append(count + 0.5 + index)
        names.append(wording.shortened(name, 8))
    axes.set_xticks(places, names)


def _slope(heat: Heat) -> float:
    means = [fmean(row) for row in _stack(heat)]
    return float(np.polyfit(np.linspace(0, 1, len(means)), means, 1)[0])


def _by_arm(rows: list[tuple[str, Points]]) -> dict[str, list[tuple[str, Points]]]:
    """Return curves by arm where names say `A, arm` or `B, arm`; all others stand together."""
    groups: dict[str, list[tuple[str, Points]]] = {}
    for name, points in rows:
        side, comma, arm = name.partition(", ")
        paired = comma and side in SIDES
        groups.setdefault(arm if paired else "", []).append((side if paired else name, points))
    return groups


def _lines(axes: Axes, lines: list[tuple[str, Points]]) -> list[Label]:
    """Draw curves, and return what they are called where they end."""
    labels = []
    for index, (name, points) in enumerate(lines):
        colour = COLOURS[SERIES[index % len(SERIES)]]
        dash = "-" if index < len(SERIES) else DASHES[0]
        marker = "o" if len(points) < 3 else ""
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=dash, marker=marker)
        labels.append(Label(points[-1][0], points[-1][1], name, colour))
    return labels


def _final_gates(study: dict[str, Any]) -> dict[str, float]:
    """Return the mean γ of every arm that learned gates."""
    found = {heat.name: [g for row in heat.weights for g in row] for heat in _heats(study)}
    return {name: fmean(gates) for name, gates in found.items() if gates and finite(*gates)}


def _scatter(axes: Axes, places: list[Place]) -> None:
    accent = COLOURS["accent"]
    for place in places:
        fill = accent if place.layer[-1:].isdigit() else COLOURS["paper"]
        axes.plot([place.ratio] * 2, [min(place.gates), max(place.gates)], color=accent, lw=1.2)
        axes.plot([place.ratio], [place.gate], "o", color=accent, mfc=fill, markersize=6.5)


def _spread_out(axes: Axes, ratios: list[float]) -> None:
    """Give all ratios room, on a logarithmic axis where one is many times another."""
    low, high = min(ratios), max(ratios)
    if high > 4 * low:
        axes.set_xlim(low / 1.25, high * 1.25)
        logarithmic(axes)
        return
    margin = 0.08 * (high - low) or 0.1 * low
    axes.set_xlim(low - margin, high + margin)


def _short(layer: str) -> str:
    """Return the number of a layer, or the name of what is none."""
    return layer.split()[-1].rpartition(".")[2] if layer[-1:].isdigit() else layer


def _rank_correlation(places: list[Place]) -> float | None:
    """Return Spearman's correlation of gradients and gates over layers; None if one is steady."""
    ratios, gates = ([getattr(place, key) for place in places] for key in ("ratio", "gate"))
    if len(set(ratios)) < 2 or len(set(gates)) < 2:
        return None
    return float(np.asarray(np.corrcoef(rankdata(ratios), rankdata(gates)))[0, 1])
