"""What arms reached: statements that were judged, results, and effects with their intervals."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.axes import Axes

from hylorada.records.evaluations import Estimate
from hylorada.records.studies import Arm, SeedMean, Study
from hylorada.report import wording
from hylorada.report.axes import baseline_of, extent, name_row, row_ticks, strokes
from hylorada.report.canvas import COLOURS, Caption, Sheet
from hylorada.report.figures import FIGURES, Cell, Column, Figure, Table

REACH = 3.0  # an interval is cut where it leaves this many times the largest effect


def statements(study: Study) -> Table:
    """Return each statement with its verdict, the estimate it was read from, and its sentence."""
    columns = [
        Column("statement", "Statement"),
        Column("label", "Verdict"),
        Column("estimate", "Estimate", wording.signed, 3),
        Column("unit", "Unit"),
        Column("sentence", "In words"),
        Column("detail", "Detail"),
    ]
    rows: list[list[Cell]] = []
    for one in study.statements:
        estimate = SeedMean(value=one.estimate, interval=one.interval)
        told = (one.unit, one.sentence, one.detail)
        rows.append([(one.name, one.claim or ""), one.label, estimate, *told])
    caption = (
        "Statements that were judged together, so that all verdicts are right at once with "
        "95\u00a0%. Supported and refuted are both shown; inconclusive is not refuted."
    )
    return Table(caption, columns, rows)


def results(study: Study) -> Table:
    """Return the main table: one row an arm, the frozen model first."""
    columns = [
        Column("arm", "Arm"),
        Column("perplexity", "Perplexity", wording.number),
        Column("gain_percent", "Gain", wording.percent),
        Column("added_parameters", "Parameters added", wording.number, 0),
        Column("parameters_per_percent", "Parameters per 1\u00a0%", wording.number, 0),
        Column("train_seconds", "Training time", wording.duration),
        Column("verdict", "Verdict"),
    ]
    rows = [_result(arm) for arm in study.arms]
    if study.frozen:
        value = SeedMean(value=study.frozen.perplexity)
        rows.insert(0, [("frozen model", "nothing trained"), value, *[None] * 5])
    seeds = max((len(arm.perplexity.by_seed) for arm in study.arms if arm.perplexity), default=0)
    tested = study.setting.test_tokens
    tokens = f" on {wording.count(tested, 'test token')}" if tested else ""
    caption = f"Perplexity{tokens}, mean over {wording.count(seeds, 'seed')}"
    if any(arm.gain for arm in study.arms):
        caption += (
            ", and gain over the baseline in per cent lower perplexity, each with its 95\u00a0% "
            "interval. Those of gains are paired, so they leave out the noise of the text that all "
            "arms share, and adjusted for several arms. Parameters per 1\u00a0% are the added "
            "trainable parameters for each per cent gained. Training time is that of one run"
        )
    return Table(f"{caption}.", columns, rows)


def _result(arm: Arm) -> list[Cell]:
    described = arm.description or ""
    if arm.role == "control" and not described.startswith("control"):
        described = " · ".join(filter(None, ("control", described)))
    seconds = arm.cost.train_seconds if arm.cost else None
    size = (arm.added_parameters, arm.params_per_percent)
    return [(arm.name, described), arm.perplexity, arm.gain, *size, seconds, _verdict(arm)]


def _verdict(arm: Arm) -> tuple[str, str] | None:
    """Return an arm's label as a word, with what speaks against it or is missing."""
    if arm.role == "baseline":
        return "baseline", ""
    if arm.label is None:
        return None
    explained = wording.listed(arm.explained_by or [])
    needed = None if arm.role == "self_check" else arm.seeds_needed
    notes = [
        f"explained by {explained}" if explained else "",
        f"{wording.count(needed, 'more seed')} needed" if needed else "",
    ]
    return wording.verdict(arm.label, arm.meaning), "; ".join(filter(None, notes))


class Effect(NamedTuple):
    """One row of a forest plot: a gain in per cent, and what is said of it."""

    name: str
    gain: Estimate
    note: str
    colour: str

    @property
    def words(self) -> str:
        """Return the gain with its interval."""
        return f"{wording.percent(self.gain.value)} {wording.interval(self.gain.interval)}".strip()


def forest(study: Study, sheet: Sheet) -> Caption | None:
    """Draw the gain of every arm over the baseline, and return what it shows in numbers."""
    drawn = strokes(study)
    effects = [
        Effect(arm.name, arm.gain, wording.verdict(arm.label, arm.meaning), drawn[arm.name].colour)
        for arm in study.arms
        if arm.gain
    ]
    if not effects:
        return None
    own = {baseline_of(study, arm) for arm in study.arms if arm.gain}
    baseline = "its baseline" if len(own) > 1 else own.pop() or "the baseline"
    return Caption(
        f"Per cent lower perplexity than {baseline}, with the 95\u00a0% interval adjusted for "
        "several arms. Right of zero is better; the shaded band counts as no effect.",
        _draw(effects, sheet, thresholds(study)),
    )


def comparisons(study: Study, sheet: Sheet) -> Caption | None:
    """Draw each candidate against each control, and return what it shows in numbers."""
    drawn = {name: stroke.colour for name, stroke in strokes(study).items()}
    names, ink = [one.arm for one in study.comparisons], COLOURS["ink"]
    effects = [
        Effect(f"{one.arm} against {one.against}", one.gain, "", drawn.get(one.arm, ink))
        for one in sorted(study.comparisons, key=lambda one: names.index(one.arm))
    ]
    if not effects:
        return None
    return Caption(
        "How much lower the perplexity of the first is than that of the second, in per cent with "
        "the 95\u00a0% interval. Left of zero the second is better.",
        _draw(effects, sheet, thresholds(study)),
    )


def thresholds(study: Study) -> dict[str, float]:
    """Return the gains in per cent from which an effect is minimal, moderate and strong."""
    registered = study.plan.thresholds
    return {word: 100 * getattr(registered, word) for word in ("minimal", "moderate", "strong")}


def _draw(effects: Sequence[Effect], sheet: Sheet, limits: dict[str, float]) -> str:
    """Draw effects row by row, and return them in words."""
    notes = max(176.0, 24 + 7.2 * max(len(one.words) for one in effects))  # after the estimates
    left, right = (10.0, 10.0) if sheet.narrow else (226.0, notes + 86)
    height = (46 if sheet.narrow else 31) * len(effects)
    (axes,) = sheet.panels(1, height=height, left=left, right=right, top=26, bottom=44)
    axes.set_xlim(*_range(effects, limits))
    _zones(axes, limits, (-0.02, 0.38) if sheet.narrow else (-0.5, 0.5), len(effects))
    for level, one in enumerate(effects):
        _row(axes, one, level, notes, narrow=sheet.narrow)
    ticks = 5 if sheet.narrow else 7
    row_ticks(axes, len(effects), x=ticks, x_label="% lower perplexity  (better →)")
    told = [" ".join(filter(None, (one.name, one.words, one.note))) for one in effects]
    return f"{'; '.join(told)}."


def _range(effects: Sequence[Effect], limits: dict[str, float]) -> tuple[float, float]:
    """Return the range that holds zero, every threshold and every effect, not every interval."""
    values = [one.gain.value for one in effects]
    ends = [end for one in effects for end in one.gain.interval or ()]
    reach = REACH * max(limits["strong"], *map(abs, values))
    low = min(-1.6 * limits["minimal"], *values, *(max(-reach, end) for end in ends))
    high = max(1.2 * limits["strong"], *values, *(min(reach, end) for end in ends))
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
    width, height = extent(axes)
    borders = (low, -minimal, minimal, moderate, strong, high)
    write = partial(axes.text, transform=axes.transAxes, ha="center", va="bottom", fontsize=11.5)
    for letter, start, end in zip("EDCBA", borders, borders[1:], strict=False):
        room = (end - start) / (high - low) * width
        full = wording.verdict(letter)
        text = full if room > 7.2 * len(full) else letter if room > 11 else ""
        middle = ((start + end) / 2 - low) / (high - low)
        write(middle, 1 + 8 / height, text, color=COLOURS["muted"])


def _row(axes: Axes, one: Effect, row: int, notes: float, *, narrow: bool) -> None:
    """Draw an effect with its interval, and write its name, estimate and note beside it."""
    left, right = axes.get_xlim()
    level = row + (0.18 if narrow else 0)
    if one.gain.interval:
        low, high = one.gain.interval
        ends = [max(low, left), min(high, right)]
        axes.plot(ends, [level, level], color=one.colour, linewidth=2.2, zorder=2)
        for cut, place, marker in ((low < left, left, "<"), (high > right, right, ">")):
            if cut:  # the interval goes on beyond the plot
                axes.plot([place], [level], marker, color=one.colour, markersize=6, clip_on=False)
    dot = partial(axes.plot, markersize=8.5, zorder=3, clip_on=False)
    dot([one.gain.value], [level], "o", color=one.colour, mec=COLOURS["paper"], mew=1.5)
    if narrow:
        name = wording.shortened(one.name, 38 - len(one.note))
        head = " · ".join(filter(None, (name, one.note)))
        name_row(axes, row, head, wording.percent(one.gain.value), narrow=True)
        return
    name_row(axes, row, wording.shortened(one.name, 34), one.words, narrow=False)
    write = partial(axes.text, transform=axes.get_yaxis_transform(), va="center_baseline")
    write(1 + notes / extent(axes)[0], row, one.note)


def effect_table(study: Study) -> Table:
    """Return every effect with its error, and what the literal rule says beside the verdict."""
    columns = [
        Column("arm", "Arm"),
        Column("gain_percent", "Gain", wording.percent),
        Column("standard_error", "Standard error", wording.number, 3),
        Column("seeds", "Seeds", wording.number, 0),
        Column("verdict", "Verdict"),
        Column("literal_rule", "Literal rule"),
    ]
    rows: list[list[Cell]] = [
        [arm.name, gain, gain.standard_error, gain.clusters, _verdict(arm), arm.point_scenario]
        for arm in study.arms
        if (gain := arm.gain)
    ]
    caption = (
        "Gain in per cent lower perplexity with its adjusted 95\u00a0% interval. The literal rule "
        "looks at the mean alone; the verdict at the whole interval."
    )
    return Table(caption, columns, rows)


def comparison_table(study: Study) -> Table:
    """Return each candidate against each control."""
    columns = [
        Column("arm", "Candidate"),
        Column("against", "Against"),
        Column("gain_percent", "Gain", wording.percent),
        Column("sentence", "In words"),
    ]
    caption = "Per cent lower perplexity than the control, with its 95\u00a0% interval."
    rows = [[one.arm, one.against, one.gain, one.sentence] for one in study.comparisons]
    return Table(caption, columns, rows)


FIGURES.add(Figure("statements", "Statements", table=statements))
FIGURES.add(Figure("results", "Results", table=results))
FIGURES.add(Figure("effects", "Effects", forest, effect_table))
FIGURES.add(Figure("comparisons", "Candidates against controls", comparisons, comparison_table))
