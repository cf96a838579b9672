"""Forest plots: each effect with its interval, against the thresholds of the verdict."""

from typing import Any, NamedTuple

from matplotlib.axes import Axes

from hylorada.report import wording
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.marks import baseline_of, ends, finite, strokes
from hylorada.report.scales import extent, few_ticks
from hylorada.verdicts.labels import VerdictSpec

REACH = 3.0  # an interval is cut where it leaves this many times the largest effect


class Row(NamedTuple):
    """One line of a forest plot."""

    name: str
    value: float
    low: float | None
    high: float | None
    note: str
    colour: str


def forest(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw the gain of every arm over the baseline, and return what it shows in numbers."""
    drawn = strokes(study)
    rows = [
        _row(arm["name"], arm["gain"], _note(arm), drawn[arm["name"]].colour)
        for arm in study["arms"]
        if arm["gain"] and finite(arm["gain"].get("value"))
    ]
    if not rows:
        return None
    _draw(rows, sheet, thresholds(study))
    own = {baseline_of(study, arm) for arm in study["arms"] if arm["gain"]}
    baseline = "its baseline" if len(own) > 1 else own.pop() or "the baseline"
    return Caption(
        f"Per cent lower perplexity than {baseline}, with the 95\u00a0% interval adjusted for "
        "several arms. Right of zero is better; the shaded band counts as no effect.",
        _listed(rows),
    )


def comparisons(study: dict[str, Any], sheet: Sheet) -> Caption | None:
    """Draw each candidate against each control, and return what it shows in numbers."""
    drawn = strokes(study)
    names = [pair["arm"] for pair in study["comparisons"]]
    rows = [
        _row(
            f"{pair['arm']} against {pair['against']}",
            pair["gain"],
            "",
            drawn[pair["arm"]].colour if pair["arm"] in drawn else COLOURS["ink"],
        )
        for pair in sorted(study["comparisons"], key=lambda pair: names.index(pair["arm"]))
        if pair.get("gain") and finite(pair["gain"].get("value"))
    ]
    if not rows:
        return None
    _draw(rows, sheet, thresholds(study))
    return Caption(
        "How much lower the perplexity of the first is than that of the second, in per cent with "
        "the 95\u00a0% interval. Left of zero the second is better.",
        _listed(rows),
    )


def thresholds(study: dict[str, Any]) -> dict[str, float]:
    """Return the gains in per cent from which an effect is minimal, moderate and strong."""
    registered = study["plan"].get("thresholds") or {}
    usual = VerdictSpec()
    return {
        word: 100 * float(registered.get(word) or getattr(usual, word))
        for word in ("minimal", "moderate", "strong")
    }


def _row(name: str, gain: dict[str, Any], note: str, colour: str) -> Row:
    return Row(name, float(gain["value"]), *ends(gain.get("interval")), note, colour)


def _note(arm: dict[str, Any]) -> str:
    return wording.verdict(arm["label"], arm["meaning"])


def _estimate(row: Row) -> str:
    interval = None if row.low is None else (row.low, row.high)
    return f"{wording.percent(row.value)} {wording.interval(interval)}".strip()


def _listed(rows: list[Row]) -> str:
    shown = [" ".join(filter(None, (row.name, _estimate(row), row.note))) for row in rows]
    return f"{'; '.join(shown)}."


def _draw(rows: list[Row], sheet: Sheet, limits: dict[str, float]) -> None:
    step = 46 if sheet.narrow else 31
    notes = max(176.0, 24 + 7.2 * max(len(_estimate(row)) for row in rows))  # after the estimates
    sides = (10.0, 10.0) if sheet.narrow else (226.0, notes + 86)
    (axes,) = sheet.panels(
        1, columns=1, height=step * len(rows), left=sides[0], right=sides[1], top=26, bottom=44
    )
    axes.set_xlim(*_range(rows, limits))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _zones(axes, limits, (-0.02, 0.38) if sheet.narrow else (-0.5, 0.5), len(rows))
    for level, row in enumerate(rows):
        _interval(axes, row, level + (0.18 if sheet.narrow else 0))
        _words(axes, row, level, notes, narrow=sheet.narrow)
    few_ticks(axes, x=5 if sheet.narrow else 7, x_label="% lower perplexity  (better →)")
    axes.grid(visible=False)
    axes.set_yticks([])


def _range(rows: list[Row], limits: dict[str, float]) -> tuple[float, float]:
    """Return the range that holds zero, every threshold and every effect, not every interval."""
    largest = max(limits["strong"], *(abs(row.value) for row in rows))
    lows = [max(-REACH * largest, row.value if row.low is None else row.low) for row in rows]
    highs = [min(REACH * largest, row.value if row.high is None else row.high) for row in rows]
    low = min(-1.6 * limits["minimal"], *lows, *(row.value for row in rows))
    high = max(1.2 * limits["strong"], *highs, *(row.value for row in rows))
    margin = 0.03 * (high - low)
    return low - margin, high + margin


def _zones(axes: Axes, limits: dict[str, float], span: tuple[float, float], rows: int) -> None:
    """Shade what counts as no effect, and name the zones of the verdict above the plot.

    Shades and lines fill `span` of every row, which on a phone keeps them out of the words.
    """
    low, high = axes.get_xlim()
    minimal, moderate, strong = limits["minimal"], limits["moderate"], limits["strong"]
    for level in range(rows):
        levels = [level + span[0], level + span[1]]
        axes.fill_betweenx(levels, -minimal, minimal, color=COLOURS["band"], linewidth=0)
        for place in (0, minimal, moderate, strong):
            colour = COLOURS["rule" if place else "ink"]
            axes.plot([place] * 2, levels, color=colour, linewidth=0.9, solid_capstyle="butt")
    zones = (
        ("E", "harmful", low, -minimal),
        ("D", "none", -minimal, minimal),
        ("C", "minimal", minimal, moderate),
        ("B", "moderate", moderate, strong),
        ("A", "strong", strong, high),
    )
    width, height = extent(axes)
    for letter, word, start, end in zones:
        room = (end - start) / (high - low) * width
        full = f"{letter}\u00a0{word}"
        text = full if room > 7.2 * len(full) else letter if room > 11 else ""
        axes.text(
            ((start + end) / 2 - low) / (high - low),
            1 + 8 / height,
            text,
            transform=axes.transAxes,
            ha="center",
            va="bottom",
            color=COLOURS["muted"],
            fontsize=11.5,
        )


def _interval(axes: Axes, row: Row, level: float) -> None:
    left, right = axes.get_xlim()
    if row.low is not None and row.high is not None:
        start, end = max(row.low, left), min(row.high, right)
        axes.plot([start, end], [level, level], color=row.colour, linewidth=2.2, zorder=2)
        for cut, place, marker in ((row.low < left, left, "<"), (row.high > right, right, ">")):
            if cut:  # the interval goes on beyond the plot
                axes.plot([place], [level], marker, color=row.colour, markersize=6, clip_on=False)
    axes.plot(
        [row.value],
        [level],
        "o",
        color=row.colour,
        markersize=8.5,
        markeredgecolor=COLOURS["paper"],
        markeredgewidth=1.5,
        zorder=3,
        clip_on=False,
    )


def _words(axes: Axes, row: Row, level: float, notes: float, *, narrow: bool) -> None:
    width, _ = extent(axes)
    across = axes.get_yaxis_transform()
    if narrow:
        name = wording.shortened(row.name, 38 - len(row.note))
        head = " · ".join(filter(None, (name, row.note)))
        axes.text(0, level - 0.24, head, transform=across, va="center", ha="left")
        text = wording.percent(row.value)
        axes.text(1, level - 0.24, text, transform=across, va="center", ha="right")
        return
    name = wording.shortened(row.name, 34)
    middle: dict[str, Any] = {"transform": across, "va": "center_baseline"}
    axes.text(-12 / width, level, name, ha="right", **middle)
    axes.text(1 + 14 / width, level, _estimate(row), ha="left", **middle)
    axes.text(1 + notes / width, level, row.note, ha="left", **middle)
