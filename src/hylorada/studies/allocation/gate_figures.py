"""Learned gates: by layer and seed, along the depth, and beside the gradients that moved them."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import rankdata

from hylorada.records.studies import Arm, NamedTable, Study
from hylorada.report import axes as plots
from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table
from hylorada.report.landmarks import draw_weights
from hylorada.studies.allocation import SMALLEST_SHARE

NamedSteps = tuple[str, list[tuple[float, float]]]  # what was logged, steps and norms
ONE_HALF = (0.5 - SMALLEST_SHARE, 0.5 + SMALLEST_SHARE)  # gates that count as one half


class GatedLayer(NamedTuple):
    """A layer of a learned arm: mean gradient norms of A and B, and the final γ of each seed."""

    name: str
    norms: tuple[float, float]
    gates: list[float]

    @property
    def ratio(self) -> float:
        """Return how much larger the gradient of B is than that of A."""
        return self.norms[1] / self.norms[0]

    @property
    def gate(self) -> float:
        """Return γ, the mean over seeds."""
        return fmean(self.gates)


def gated_layers(arm: Arm) -> list[GatedLayer]:
    """Return the layers of a learned arm whose gradients and gates are known."""
    found = arm.allocation
    if found is None or not (found.layers and found.gradients and found.gamma):
        return []
    norms = zip(found.gradients.A, found.gradients.B, strict=True)
    gates = zip(*found.gamma, strict=True)
    return [
        GatedLayer(layer, (a, b), list(seeds))
        for layer, (a, b), seeds in zip(found.layers, norms, gates, strict=True)
        if a > 0 and b > 0
    ]


def layer_gates(study: Study, sheet: Sheet) -> Caption | None:
    """Draw gates by layer and seed, and return their range."""
    learned = _learned(study)
    if not learned:
        return None
    low, high = draw_weights(learned, sheet, ONE_HALF)
    return Caption(
        "Learned gate by layer (down) and seed (across); stronger colour is a larger share for B, "
        f"from {wording.number(low, 3)} to {wording.number(high, 3)} in all panels."
    )


def gate_trend(study: Study, sheet: Sheet) -> Caption | None:
    """Draw gates along the depth of the stack, and return their slopes."""
    learned = [table for table in _learned(study) if sum(map(_in_stack, table.rows)) > 1]
    if not learned:
        return None
    slopes = []
    panels = sheet.panels(len(learned), height=190, right=20)
    gates = [gate for table in learned for row in table.weights for gate in row]
    for axes, table in zip(panels, learned, strict=True):
        slopes.append(f"{table.name} {wording.signed(_trend(axes, table), 3)}")
        _one_half(axes, gates)
        plots.title(axes, f"γ, {wording.shortened(table.name, 32)}")
    return Caption(
        "Learned gate γ, B's share of a layer's coordinates, from the first layer to the last: "
        "thin lines are seeds, the thick one is their mean, the dashed one its least-squares "
        "line. What is shaded counts as one half. An open point is no layer of the stack.",
        f"Change of γ from the first layer to the last: {'; '.join(slopes)}.",
    )


def gradient_norms(study: Study, sheet: Sheet) -> Caption | None:
    """Draw norms of gradients over training, A and B of an arm together, and return the last."""
    found = [
        (curve.name, [(step, norm) for step, norm in curve.points if norm is not None])
        for curve in study.figures_data.gradient_norms
    ]
    curves = [(name, steps) for name, steps in found if steps]
    if not curves:
        return None
    groups = _by_arm(curves)
    gates = {one.name: fmean(g for row in one.weights for g in row) for one in _learned(study)}
    right = (118 if sheet.narrow else 190) if "" in groups else 40
    panels = sheet.panels(len(groups), height=190, right=right)
    highest = max(norm for _, steps in curves for _, norm in steps)
    for axes, (arm, lines) in zip(panels, groups.items(), strict=True):
        labels = []
        for index, (name, steps) in enumerate(lines):
            colour, marker = plots.series(index), "o" if len(steps) < 3 else ""
            dash = "-" if index < len(plots.SERIES) else plots.DASHES[0]
            axes.plot(*zip(*steps, strict=True), color=colour, linestyle=dash, marker=marker)
            labels.append(plots.Label(*steps[-1], name, colour))
        plots.few_ticks(axes, x=4 if sheet.narrow else 6, x_label="step", whole=True)
        axes.set_ylim(0, 1.08 * highest or 1)
        gate = f", final γ {wording.number(gates[arm], 3)}" if arm in gates else ""
        plots.title(axes, f"{wording.shortened(arm, 26) or 'norm of the gradient'}{gate}")
        plots.label_beside(axes, labels, length=15 if sheet.narrow else 26)
    last = [f"{name} {wording.significant(steps[-1][1])}" for name, steps in curves]
    told = " The final γ is a mean over layers and seeds." if gates else ""
    return Caption(
        f"Norm of the gradient over training.{told}",
        f"At the last logged step: {'; '.join(last)}.",
    )


def gradient_gates(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the final gate of each layer against the ratio of its gradients, and return both."""
    arms = {arm.name: layers for arm in study.arms if (layers := gated_layers(arm))}
    if not arms:
        return None
    panels = sheet.panels(len(arms), height=220, right=26)
    gates = [gate for layers in arms.values() for layer in layers for gate in layer.gates]
    for axes, (name, layers) in zip(panels, arms.items(), strict=True):
        labels = []
        for one in layers:
            numbered = _in_stack(one.name)
            fill = COLOURS["accent" if numbered else "paper"]
            _bar_and_dot(axes, one.ratio, one.gates, fill, width=1.2)
            short = one.name.split()[-1].rpartition(".")[2] if numbered else one.name
            seeds = min(one.gates), max(one.gates)
            labels.append(plots.Label(one.ratio, one.gate, short, COLOURS["ink"], seeds))
        _one_half(axes, gates)
        plots.few_ticks(axes, x=4, x_label="‖∇B‖ / ‖∇A‖, mean over training")
        _spread_out(axes, [layer.ratio for layer in layers])
        plots.title(axes, f"final γ, {wording.shortened(name, 30)}")
        plots.label_near(axes, labels, length=12)
    told = [f"{name} {wording.signed(rank_correlation(found))}" for name, found in arms.items()]
    return Caption(
        "Final gate γ of each layer against how much larger the gradient of its B is than that of "
        "its A, in mean norms over training; bars run from the lowest to the highest seed. What is "
        "shaded counts as one half.",
        f"Rank correlation over layers: {'; '.join(told)}.",
    )


def _learned(study: Study) -> list[NamedTable]:
    return [table for table in study.figures_data.layer_gates if table.rows and table.weights]


def _in_stack(layer: str) -> bool:
    """Return whether a layer is one of the stack, whose names end in a number; the head is not."""
    return layer[-1:].isdigit()


def _one_half(axes: Axes, gates: Sequence[float]) -> None:
    """Give the axes room for all gates, and shade what counts as one half."""
    low, high = min(*ONE_HALF, *gates), max(*ONE_HALF, *gates)
    margin = 0.08 * (high - low)
    axes.set_ylim(low - margin, high + margin)
    axes.axhspan(*ONE_HALF, color=COLOURS["band"], linewidth=0, zorder=0)
    axes.axhline(0.5, color=COLOURS["muted"], linewidth=0.9, zorder=1)


def _trend(axes: Axes, table: NamedTable) -> float:
    """Draw gates by depth, and return how much their line rises from first to last."""
    gates, accent = dict(zip(table.rows, table.weights, strict=True)), COLOURS["accent"]
    stack = [row for name, row in gates.items() if _in_stack(name)]
    depth, means = range(len(stack)), [fmean(row) for row in stack]
    for seed in zip(*stack, strict=True):
        axes.plot(depth, seed, color=accent, linewidth=0.8, alpha=0.55)
    slope, start = (float(part) for part in np.polyfit(list(depth), means, 1))
    rise = slope * depth[-1]
    axes.plot([0, depth[-1]], [start, start + rise], color=accent, dashes=(5, 3), lw=1.2)
    axes.plot(depth, means, "o-", color=accent, markersize=5, linewidth=2.2)
    plots.few_ticks(axes, x=6, x_label="layer", whole=True)
    names: dict[float, str] = {place: str(place) for place in depth[:: -(-len(stack) // 8)]}
    outside = [(name, row) for name, row in gates.items() if not _in_stack(name)]
    for place, (name, row) in enumerate(outside, len(stack)):
        names[place + 0.5] = wording.shortened(name, 8)
        _bar_and_dot(axes, place + 0.5, row, COLOURS["paper"], width=1.6)
    axes.set_xticks(list(names), list(names.values()))
    return rise


def _bar_and_dot(axes: Axes, x: float, gates: list[float], fill: str, *, width: float) -> None:
    """Draw the mean gate of a layer, and a bar from the lowest to the highest seed."""
    accent = COLOURS["accent"]
    axes.plot([x] * 2, [min(gates), max(gates)], color=accent, linewidth=width)
    axes.plot([x], [fmean(gates)], "o", color=accent, mfc=fill, markersize=6.5)


def _by_arm(curves: Sequence[NamedSteps]) -> dict[str, list[NamedSteps]]:
    """Return curves by arm where names say `A, arm` or `B, arm`; all others stand together."""
    groups: dict[str, list[NamedSteps]] = {}
    for name, steps in curves:
        side, comma, arm = name.partition(", ")
        paired = comma and side in ("A", "B")
        groups.setdefault(arm if paired else "", []).append((side if paired else name, steps))
    return groups


def _spread_out(axes: Axes, ratios: Sequence[float]) -> None:
    """Give all ratios room, on a logarithmic axis where one is many times another."""
    low, high = min(ratios), max(ratios)
    if high > 4 * low:
        axes.set_xlim(low / 1.25, high * 1.25)
        plots.logarithmic(axes)
        return
    margin = 0.08 * (high - low) or 0.1 * low
    axes.set_xlim(low - margin, high + margin)


def rank_correlation(layers: Sequence[GatedLayer]) -> float | None:
    """Return Spearman's correlation of gradients and gates over layers; None if one is steady."""
    ratios, gates = [one.ratio for one in layers], [one.gate for one in layers]
    if len(set(ratios)) < 2 or len(set(gates)) < 2:
        return None
    return float(np.asarray(np.corrcoef(rankdata(ratios), rankdata(gates)))[0, 1])


def layer_gate_table(study: Study) -> Table:
    """Return γ of every layer, a column a seed of a learned arm."""
    columns = [Column("layer", "Layer")]
    by_layer: dict[str, dict[str, float]] = {}
    for found in study.figures_data.layer_gates:
        names = [f"{found.name}, {column}" for column in found.columns]
        columns += [Column(name, name, wording.number, 3) for name in names]
        for layer, weights in zip(found.rows, found.weights, strict=False):
            by_layer.setdefault(layer, {}).update(zip(names, weights, strict=False))
    rows: list[list[Cell]] = [
        [layer, *(weights.get(column.name) for column in columns[1:])]
        for layer, weights in by_layer.items()
    ]
    return Table("γ, B's share of the coordinates, by layer.", columns, rows)


def gradient_table(study: Study) -> Table:
    """Return the norms of both factors' gradients beside the final γ, a row a layer of an arm."""
    columns = [
        Column("arm", "Arm"),
        Column("layer", "Layer"),
        Column("gradient_a", "‖∇A‖", wording.significant, 3),
        Column("gradient_b", "‖∇B‖", wording.significant, 3),
        Column("ratio", "‖∇B‖ / ‖∇A‖", wording.significant, 3),
        Column("gamma", "Final γ", wording.number, 3),
    ]
    rows: list[list[Cell]] = [
        [arm.name, layer.name, *layer.norms, layer.ratio, layer.gate]
        for arm in study.arms
        for layer in gated_layers(arm)
    ]
    caption = "Norms of the gradients of a layer's factors, means over training and seeds."
    return Table(caption, columns, rows)


FIGURES.add(Figure("layer_gates", "Gates by layer and seed", layer_gates, layer_gate_table))
FIGURES.add(Figure("gate_trend", "Gates by depth", gate_trend))
FIGURES.add(Figure("gradient_norms", "Gradient norms", gradient_norms))
FIGURES.add(Figure("gradient_gates", "Gradients against gates", gradient_gates, gradient_table))
