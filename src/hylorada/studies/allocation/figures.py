"""What a division of coordinates costs and reaches: bits, risks, bounds, files."""

from functools import partial

from matplotlib.axes import Axes

from hylorada.records.studies import Allocation, Study
from hylorada.report import wording
from hylorada.report.axes import Label, extent, name_row, row_ticks, series, strokes
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table
from hylorada.report.frontiers import draw_frontier

DWARFING = 4  # times the other parts: a first part as large as this leaves no room for them


def bits_per_coordinate(found: Allocation) -> float | None:
    """Return the length of an arm's message for each coordinate, in bits."""
    bits = found.bits.value
    return bits / found.budget if bits is not None and found.budget else None


def summary(study: Study) -> Table:
    """Return what every way to divide coordinates came to: shares, bits, file, risks, bound."""
    columns = [
        Column("arm", "Arm"),
        Column("budget", "Coordinates", wording.number, 0),
        Column("share_of_b", "B's share", wording.number),
        Column("perplexity", "Perplexity", wording.number),
        Column("bits", "Bits", wording.number, 0),
        Column("bits_per_coordinate", "Bits per coordinate", wording.number),
        Column("file_bytes", "File, bytes", wording.number, 0),
        Column("risk_unquantised", "Risk before quantising", wording.number, 3),
        Column("risk", "Risk", wording.number, 3),
        Column("bound", "Bound", wording.number, 3),
        Column("certificates", "Certificates", wording.number, 0),
    ]
    rows: list[list[Cell]] = []
    for arm in study.arms:
        if found := arm.allocation:
            size = (found.bits.value, bits_per_coordinate(found), found.file_bytes)
            risks = (found.risk_unquantised.value, found.risk, found.bound.value)
            trained = found.share_of_b.value
            share = found.ratio if trained is None else trained
            divided = (arm.name, found.budget, share, arm.perplexity)
            rows.append([*divided, *size, *risks, len(found.certificates)])
    caption = (
        "Means over seeds. Bits are those of the message that holds the trained numbers; the file "
        f"holds its header too. Risks and bounds are in {study.figures_data.risk_unit} of the "
        "certified documents, perplexity is that of the test text."
    )
    return Table(caption, columns, rows)


def bits_against_risk(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the empirical risk against the message's length, and return the frontier."""
    colours = {name: stroke.colour for name, stroke in strokes(study).items()}
    offers = [
        Label(one.bits, one.risk, one.name, colours.get(one.name, COLOURS["accent"]), one.interval)
        for one in study.figures_data.bits_risk
        if one.bits is not None and one.risk is not None
    ]
    if not offers:
        return None
    unit = study.figures_data.risk_unit
    best = draw_frontier(offers, sheet, "length of the message, bits", f"empirical risk, {unit}")
    named = [f"{one.text} ({one.x:,.0f} bits, {wording.number(one.y, 3)})" for one in best]
    return Caption(
        f"Empirical risk in {unit} against the length of the message that holds the weights, in "
        "bits; lower and further left is better. Filled points are on the frontier.",
        f"On the frontier: {wording.listed(named)}.",
    )


def compression(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the bits each coordinate takes, and return them with the sizes of files."""
    rows = [
        (arm.name, found, mean)
        for arm in study.arms
        if arm.role != "self_check"
        and (found := arm.allocation)
        and (mean := bits_per_coordinate(found)) is not None
    ]
    if not rows:
        return None
    left, right = (10.0, 10.0) if sheet.narrow else (190.0, 250.0)
    height = (44 if sheet.narrow else 27) * len(rows)
    (axes,) = sheet.panels(1, height=height, left=left, right=right, top=26)
    drawn, told = strokes(study), []
    for level, (name, found, mean) in enumerate(rows):
        place, colour = level + (0.2 if sheet.narrow else 0), drawn[name].colour
        seeds = [bits / found.budget for bits in found.bits.by_seed if bits is not None]
        axes.axhline(place, color=COLOURS["rule"], linewidth=0.8, zorder=0)
        axes.plot(seeds, [place] * len(seeds), "o", color=colour, markersize=4, alpha=0.6)
        axes.plot([mean], [place], "D", color=colour, markersize=7.5, mec=COLOURS["paper"], mew=1.2)
        file = f"{wording.number(found.file_bytes, 0)}{wording.SPACE}bytes"
        sizes = f"{wording.number(found.bits.value, 0)}{wording.SPACE}bits, file {file}"
        words = file if sheet.narrow else sizes
        name_row(axes, level, wording.shortened(name, 26), words, narrow=sheet.narrow)
        told.append(f"{name} {wording.number(mean)} bits, {sizes}")
    axes.margins(x=0.116)
    ticks = 4 if sheet.narrow else 6
    row_ticks(axes, len(rows), x=ticks, x_label="bits per coordinate  (← better)")
    return Caption(
        "Bits of the message for each coordinate: the mean over seeds, and every seed as a small "
        "point. Beside it the whole message in bits and the file in bytes, its header among them; "
        "a coordinate in float32 takes 32 bits.",
        f"{'; '.join(told)}.",
    )


def bound_parts(study: Study, sheet: Sheet) -> Caption | None:
    """Draw what each bound is the sum of, and return the sums."""
    found = [
        (row.name, {part.name: part.value for part in row.parts if part.value is not None})
        for row in study.figures_data.bound_parts
    ]
    bounds = [(name, parts) for name, parts in found if parts]
    if not bounds:
        return None
    totals = [sum(parts.values()) for _, parts in bounds]
    names = dict.fromkeys(name for _, parts in bounds for name in parts)
    colours = {name: series(index) for index, name in enumerate(names)}
    # Bars start at 0, or where the first part would leave no room for the others.
    first, unit = (
        min(next(iter(parts.values())) for _, parts in bounds),
        study.figures_data.risk_unit,
    )
    rest = max(totals) - first
    start = first - 0.4 * rest if 0 < DWARFING * rest < first else 0.0
    (axes,) = sheet.panels(
        1,
        height=(46 if sheet.narrow else 30) * len(bounds),
        left=12 if sheet.narrow else 190,
        right=60,
        top=24 + 18 * (len(names) if sheet.narrow else 1),
    )
    axes.set_xlim(start, max(totals))
    for level, (name, parts) in enumerate(bounds):
        _bar(axes, level, parts, colours, narrow=sheet.narrow)
        name_row(axes, level, wording.shortened(name, 26), narrow=sheet.narrow)
    row_ticks(axes, len(bounds), x=4 if sheet.narrow else 7, x_label=unit)
    _part_names(axes, colours, narrow=sheet.narrow)
    cut = f" The bars are cut: they start at {wording.number(start, 3)}, not at 0." if start else ""
    named = zip(bounds, totals, strict=True)
    sums = [f"{name} {wording.number(total, 3)}" for (name, _), total in named]
    return Caption(
        f"What each bound is the sum of, in {unit}, all parts of the same documents. "
        f"A part below zero lies over the one before it.{cut}",
        f"Sums: {'; '.join(sums)}.",
    )


def _bar(
    axes: Axes, level: int, parts: dict[str, float], colours: dict[str, str], *, narrow: bool
) -> None:
    """Draw a bar of parts from the left end of the axes, and write their sum behind it."""
    place, height = (level + 0.16, 0.4) if narrow else (level, 0.56)
    begin, end = axes.get_xlim()[0], 0.0
    bar = partial(axes.barh, place, height=height, edgecolor=COLOURS["paper"], linewidth=0.8)
    for name, value in parts.items():
        low, end = max(begin, end), end + value
        bar(end - low, left=low, color=colours[name])
    write = partial(axes.annotate, textcoords="offset pixels", va="center_baseline")
    write(wording.number(end, 3), (end, place), xytext=(7, 0))
    if begin > 0:  # the bar goes on to the left
        write("//", (begin, place), xytext=(6, 0), color=COLOURS["paper"])


def _part_names(axes: Axes, colours: dict[str, str], *, narrow: bool) -> None:
    """Write the name of each part in its colour above the bars."""
    width, height = extent(axes)
    across = 0.0
    write = partial(axes.text, transform=axes.transAxes, va="bottom")
    for index, (name, colour) in enumerate(colours.items()):
        level = (len(colours) - index) * 18 - 10 if narrow else 10
        write(across / width, 1 + level / height, f"■ {name}", color=colour)
        across += 0 if narrow else 30 + 7.2 * len(name)


def bound_part_table(study: Study) -> Table:
    """Return what each bound is the sum of."""
    found = study.figures_data.bound_parts
    names = list(dict.fromkeys(part.name for row in found for part in row.parts))
    rows: list[list[Cell]] = []
    for row in found:
        parts = {part.name: part.value for part in row.parts}
        total = sum(value for value in parts.values() if value is not None)
        rows.append([row.name, *map(parts.get, names), total])
    columns = [
        Column("arm", "Arm"),
        *(Column(name.replace(" ", "_"), name.capitalize(), wording.number, 4) for name in names),
        Column("bound", "Sum", wording.number, 4),
    ]
    caption = f"What each bound is the sum of, in {study.figures_data.risk_unit}, means over seeds."
    return Table(caption, columns, rows)


FIGURES.add(Figure("allocation", "Allocation", table=summary, after="results"))
FIGURES.add(Figure("bits_risk", "Bits against risk", bits_against_risk))
FIGURES.add(Figure("compression", "Compression", compression))
FIGURES.add(Figure("bound_parts", "What the bounds are made of", bound_parts, bound_part_table))
