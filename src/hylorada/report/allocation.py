"""What a division of coordinates costs and reaches: bits, risks, bounds, files."""

from typing import Any

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.allocation_data import bits_per_coordinate, data, risk_unit, value_of
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.frontiers import Offer, draw_frontier
from hylorada.report.marks import SERIES, ends, finite, strokes
from hylorada.report.scales import extent, few_ticks

DWARFING = 4  # times the other parts: a first part as large as this leaves no room for them


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
        for row in data(study, "bits_risk")
        if finite(row.get("bits"), row.get("risk"))
    ]
    if not offers:
        return None
    unit = risk_unit(study)
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


def compression(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the bits each coordinate takes, and return them with the sizes of files."""
    drawn = strokes(study)
    rows = [
        (arm, found)
        for arm in study["arms"]
        if arm["allocation"]
        and arm["role"] != "self_check"
        and (found := bits_per_coordinate(arm)) is not None
    ]
    if not rows:
        return None
    step = 44 if sheet.narrow else 27
    sides = (10.0, 10.0) if sheet.narrow else (190.0, 250.0)
    (axes,) = sheet.panels(
        1, columns=1, height=step * len(rows), left=sides[0], right=sides[1], top=26
    )
    for level, (arm, found) in enumerate(rows):
        place = level + (0.2 if sheet.narrow else 0)
        _seeds(axes, arm, found, place, drawn[arm["name"]].colour)
    _frame(axes, len(rows), narrow=sheet.narrow)
    for level, (arm, _) in enumerate(rows):
        _row_words(axes, arm["name"], _sizes(arm, long=not sheet.narrow), level, sheet.narrow)
    told = [f"{arm['name']} {wording.number(found, 2)} bits, {_sizes(arm)}" for arm, found in rows]
    return Caption(
        "Bits of the message for each coordinate: the mean over seeds, and every seed as a small "
        "point. Beside it the whole message in bits and the file in bytes, its header among them; "
        "a coordinate in float32 takes 32 bits.",
        f"{'; '.join(told)}.",
    )


def bound_parts(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw what each bound is the sum of, and return the sums."""
    rows = [
        (row["name"], [part for part in row["parts"] if finite(part.get("value"))])
        for row in data(study, "bound_parts")
    ]
    rows = [(name, parts) for name, parts in rows if parts]
    if not rows:
        return None
    names = list(dict.fromkeys(part["name"] for _, parts in rows for part in parts))
    colours = {name: COLOURS[SERIES[i % len(SERIES)]] for i, name in enumerate(names)}
    start = _start(rows)
    (axes,) = sheet.panels(
        1,
        columns=1,
        height=(46 if sheet.narrow else 30) * len(rows),
        left=12 if sheet.narrow else 190,
        right=60,
        top=24 + 18 * (len(names) if sheet.narrow else 1),
    )
    axes.set_xlim(start, max(_total(parts) for _, parts in rows))
    for level, (name, parts) in enumerate(rows):
        _bar(axes, level, parts, colours, narrow=sheet.narrow)
        _row_words(axes, name, "", level, sheet.narrow)
    few_ticks(axes, x=4 if sheet.narrow else 7, x_label=risk_unit(study))
    axes.grid(visible=False)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    _part_names(axes, colours, narrow=sheet.narrow)
    cut = f" The bars are cut: they start at {wording.number(start, 3)}, not at 0." if start else ""
    sums = [f"{name} {wording.number(_total(parts), 3)}" for name, parts in rows]
    return Caption(
        f"What each bound is the sum of, in {risk_unit(study)}, all parts of the same documents. "
        f"A part below zero lies over the one before it.{cut}",
        f"Sums: {'; '.join(sums)}.",
    )


def _seeds(axes: Axes, arm: dict[str, Any], mean: float, level: float, colour: str) -> None:
    """Draw the bits per coordinate of every seed, and their mean."""
    budget = float(arm["allocation"]["budget"])
    seeds = [
        bits / budget for bits in arm["allocation"]["bits"].get("by_seed") or [] if finite(bits)
    ]
    axes.plot(seeds, [level] * len(seeds), "o", color=colour, markersize=4, alpha=0.6)
    axes.plot([mean], [level], "D", color=colour, markersize=7.5, mec=COLOURS["paper"], mew=1.2)


def _frame(axes: Axes, rows: int, *, narrow: bool) -> None:
    low, high = axes.get_xlim()
    margin = 0.06 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    few_ticks(axes, x=4 if narrow else 6, x_label="bits per coordinate  (← better)")
    axes.grid(visible=False)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks([])
    for level in range(rows):
        place = level + (0.2 if narrow else 0)
        axes.axhline(place, color=COLOURS["rule"], linewidth=0.8, zorder=0)


def _sizes(arm: dict[str, Any], *, long: bool = True) -> str:
    bits = f"{wording.number(value_of(arm['allocation'].get('bits')), 0)}{wording.SPACE}bits"
    size = arm["allocation"].get("file_bytes")
    if size is None:
        return bits
    file = f"{wording.number(size, 0)}{wording.SPACE}bytes"
    return f"{bits}, file {file}" if long else file


def _row_words(axes: Axes, name: str, words: str, level: int, narrow: bool) -> None:
    """Write what a row is called and what is said beside it."""
    width, _ = extent(axes)
    style: dict[str, Any] = {"transform": axes.get_yaxis_transform()}
    if narrow:
        axes.text(0, level - 0.22, wording.shortened(name, 26), va="center", **style)
        axes.text(1, level - 0.22, words, va="center", ha="right", **style)
        return
    style["va"] = "center_baseline"
    axes.text(-12 / width, level, wording.shortened(name, 26), ha="right", **style)
    axes.text(1 + 14 / width, level, words, **style)


def _start(rows: list[tuple[str, list[dict[str, Any]]]]) -> float:
    """Return where bars start: at 0, or where the first part would leave no room for the others."""
    firsts = [parts[0]["value"] for _, parts in rows]
    totals = [_total(parts) for _, parts in rows]
    rest = max(totals) - min(firsts)
    dwarfed = 0 < DWARFING * rest < min(firsts)
    return float(min(firsts) - 0.4 * rest) if dwarfed else 0.0


def _bar(
    axes: Axes,
    level: int,
    parts: list[dict[str, Any]],
    colours: dict[str, str],
    *,
    narrow: bool,
) -> None:
    """Draw a bar of parts from the left end of the axes, and write their sum behind it."""
    place = level + (0.16 if narrow else 0)
    begin, end = axes.get_xlim()[0], 0.0
    for part in parts:
        low, high = max(begin, end), end + part["value"]
        axes.barh(
            place,
            high - low,
            left=low,
            height=0.4 if narrow else 0.56,
            color=colours[part["name"]],
            edgecolor=COLOURS["paper"],
            linewidth=0.8,
        )
        end = high
    words: dict[str, Any] = {"textcoords": "offset pixels", "va": "center_baseline"}
    axes.annotate(wording.number(end, 3), (end, place), xytext=(7, 0), **words)
    if begin > 0:  # the bar goes on to the left
        axes.annotate("//", (begin, place), xytext=(6, 0), color=COLOURS["paper"], **words)


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
