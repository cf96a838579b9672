"""What landmarks learned: where buckets begin, and how gates weigh landmarks or layers."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest

from matplotlib.axes import Axes
from matplotlib.collections import Collection, PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from hylorada.records.studies import Arm, Boundaries, NamedTable, Study
from hylorada.report import wording
from hylorada.report.axes import extent, few_ticks, title
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table

FAINTEST = 0.05
KEY_STEPS = 24


def boundaries(study: Study, sheet: Sheet) -> Caption | None:
    """Draw learned bucket boundaries below uniform ones, and return their mean shift in tokens."""
    arms = _with_boundaries(study)
    if not arms:
        return None
    most = max(len(found.learned) for _, found, _ in arms)
    left = 62 if sheet.narrow else 84
    panels = sheet.panels(len(arms), columns=1, height=34 * (most + 1), left=left, top=38)
    told = []
    for axes, (arm, found, names) in zip(panels, arms, strict=True):
        _boundary_rows(axes, found, names, few=sheet.narrow)
        title(axes, wording.shortened(arm.name, 40), left=0)
        pairs = [pair for row in found.learned for pair in zip(row, found.uniform, strict=False)]
        shift = sum(abs(learned - uniform) for learned, uniform in pairs) / (len(pairs) or 1)
        amount = wording.significant(shift) if pairs else wording.NOTHING
        told.append(f"{arm.name} {amount} tokens ({wording.count(len(found.learned), 'seed')})")
    return Caption(
        "Where position buckets begin, in tokens: uniform above, below it what each seed learned; "
        f"a thin line follows one boundary. Mean absolute shift: {'; '.join(told)}."
    )


def _with_boundaries(study: Study) -> list[tuple[Arm, Boundaries, list[str]]]:
    """Return arms with their boundaries and what rows are called: by seed, else by number."""
    arms = []
    for arm in study.arms:
        if (found := arm.boundaries) and found.learned:
            names = [f"seed {run.seed}" for run in arm.runs]
            if len(names) != len(found.learned):
                names = [f"run {number}" for number, _ in enumerate(found.learned, 1)]
            arms.append((arm, found, ["uniform", *names]))
    return arms


def _boundary_rows(axes: Axes, found: Boundaries, names: list[str], *, few: bool) -> None:
    rows = [found.uniform, *found.learned]
    context = found.context or max(max(row, default=1) for row in rows)
    for places in zip(*rows, strict=False):
        axes.plot(places, range(len(places)), color=COLOURS["accent"], linewidth=0.8, alpha=0.4)
    for level, row in enumerate(rows):
        colour = COLOURS["muted"] if level == 0 else COLOURS["accent"]
        axes.plot([0, context], [level, level], color=COLOURS["rule"], linewidth=0.8, zorder=1)
        axes.plot(row, [level] * len(row), "|", color=colour, markersize=15, mew=1.8, zorder=2)
    few_ticks(axes, x=4 if few else 8, x_label="position in the context, tokens")
    axes.grid(visible=False)
    axes.set(xlim=(0, context * 1.01), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), names)


def boundary_table(study: Study) -> Table:
    """Return where buckets begin, a row a boundary and a column a seed."""
    columns = [Column("boundary", "Boundary", wording.number, 0)]
    places: list[list[float]] = []
    for arm, found, names in _with_boundaries(study):
        for run in names:
            columns.append(Column(f"{arm.name} {run}", f"{arm.name}, {run}", wording.number, 1))
        places += [found.uniform, *found.learned]
    rows = [[number, *row] for number, row in enumerate(zip_longest(*places), 1)]
    return Table("First token of each bucket but the first.", columns, rows)


def gates(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the mean gate by position bucket, and return its range."""
    tables = [table for table in _gates(study) if len(table.columns) > 1]
    if not tables:
        return None
    low, high = draw_weights(tables, sheet)
    strongest = []
    for table in tables:
        value, row, column = max(_cells(table), key=lambda cell: cell[0])
        place = f"{table.columns[column]} at {table.rows[row]}"
        strongest.append(f"{table.name}: most for {place}, {wording.number(value, 3)}.")
    return Caption(
        "Mean weight that the gate gives each landmark (across), by position in the context "
        f"(down); stronger colour is more, from {wording.number(low, 3)} to "
        f"{wording.number(high, 3)} in all panels.",
        " ".join(strongest),
    )


def _gates(study: Study) -> list[NamedTable]:
    return [
        NamedTable(name=arm.name, rows=gate.rows, columns=gate.columns, weights=gate.weights)
        for arm in study.arms
        if (gate := arm.gates) and gate.rows and gate.weights
    ]


def _cells(table: NamedTable) -> list[tuple[float, int, int]]:
    """Return every weight that has names, with its row and column."""
    return [
        (value, level, place)
        for level, row in enumerate(table.weights[: len(table.rows)])
        for place, value in enumerate(row[: len(table.columns)])
    ]


def gate_table(study: Study) -> Table:
    """Return the mean gates, a row a position bucket of an arm and a column a landmark."""
    found = _gates(study)
    names = list(dict.fromkeys(name for gate in found for name in gate.columns))
    rows: list[list[Cell]] = []
    for gate in found:
        for bucket, weights in zip(gate.rows, gate.weights, strict=False):
            by_name = dict(zip(gate.columns, weights, strict=False))
            rows.append([gate.name, bucket, *map(by_name.get, names)])
    numbers = [Column(name, name, wording.number, 3) for name in names]
    columns = [Column("arm", "Arm"), Column("position", "Position"), *numbers]
    return Table("Mean weight of each landmark by position bucket.", columns, rows)


def draw_weights(
    tables: Sequence[NamedTable], sheet: Sheet, within: tuple[float, ...] = ()
) -> tuple[float, float]:
    """Draw tables of weights on one scale that holds `within` too, and return the scale's ends."""
    values = [*within, *(value for one in tables for row in one.weights for value in row)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    most = max(len(table.rows) for table in tables)
    columns = 1 if sheet.narrow else min(2, len(tables))
    height = max(90.0, min(22.0, 330 / most) * most)
    panels = sheet.panels(len(tables), columns=columns, height=height, left=74, top=36, bottom=72)
    for axes, table in zip(panels, tables, strict=True):
        cells = _cells(table)
        boxes = [Rectangle((place + 0.02, level + 0.03), 0.96, 0.94) for _, level, place in cells]
        _shade(axes, boxes, (strength(value, low, high) for value, _, _ in cells))
        _name_cells(axes, table)
    _key(panels[len(panels) - columns if len(panels) % columns == 0 else -1], low, high)
    return low, high


def _shade(axes: Axes, boxes: list[Rectangle], shares: Iterable[float]) -> Collection:
    """Fill boxes with colour of these strengths."""
    shades = [to_rgba(COLOURS["accent"], share) for share in shares]
    filled = PatchCollection(boxes, facecolors=shades, linewidths=0)
    return axes.add_collection(filled, autolim=False)


def _name_cells(axes: Axes, table: NamedTable) -> None:
    """Name the table, and its rows and columns as many and as far as there is room."""
    axes.set(xlim=(0, len(table.columns)), ylim=(len(table.rows), 0))
    width, height = extent(axes)
    every = -(-16 * len(table.rows) // int(height)) or 1
    picked = range(0, len(table.rows), every)
    rows = [wording.shortened(table.rows[level], 10) for level in picked]
    axes.set_yticks([level + 0.5 for level in picked], rows)
    names = table.columns
    if max(map(len, names)) * 7 * len(names) > width:  # equal beginnings go below, once
        axes.set_xlabel(" ".join(names[0].split()[:-1]), color=COLOURS["muted"])
        names = ["".join(name.split()[-1:])[:6] for name in names]
    axes.set_xticks([place + 0.5 for place in range(len(names))], names)
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    title(axes, wording.shortened(table.name, 40), left=0)


def _key(axes: Axes, low: float, high: float) -> None:
    """Draw the scale of the shades below the plot."""
    width, height = extent(axes)
    step, steps = 96 / KEY_STEPS / width, range(KEY_STEPS)
    boxes = [
        Rectangle((44 / width + index * step, -62 / height), step, 9 / height) for index in steps
    ]
    key = _shade(axes, boxes, (strength(index, 0, KEY_STEPS - 1) for index in steps))
    key.set(clip_on=False, transform=axes.transAxes)
    muted = COLOURS["muted"]
    write = partial(axes.text, transform=axes.transAxes, va="center_baseline", color=muted)
    write(38 / width, -57 / height, wording.number(low, 3), ha="right")
    write(146 / width, -57 / height, wording.number(high, 3), ha="left")


def strength(value: float, low: float, high: float) -> float:
    """Return how strong the colour of a weight is, from `FAINTEST` to 1."""
    share = (value - low) / (high - low) if high > low else 1.0
    return FAINTEST + (1 - FAINTEST) * share


FIGURES.add(Figure("boundaries", "Learned boundaries", boundaries, boundary_table))
FIGURES.add(Figure("gates", "Gates", gates, gate_table))
