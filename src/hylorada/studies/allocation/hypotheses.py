"""Do uneven splits help, do gates leave one half, do they trend with depth?"""

import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from msgspec.structs import replace
from scipy.optimize import brentq
from scipy.special import stdtrit

from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate, Interval
from hylorada.records.studies import Comparison, Hypothesis
from hylorada.studies.allocation.gates import (
    FEWEST_SEEDS,
    OPEN,
    LearnedGates,
    Replicates,
    replicates,
    t_interval,
)
from hylorada.verdicts.labels import VerdictSpec, effect_nats, gain_percent
from hylorada.verdicts.power import further_seeds_until
from hylorada.verdicts.sentences import counted, difference

SMALLEST_SHARE = 0.02  # of a layer's coordinates: 20 of 1000 change sides
SMALLEST_SLOPE = 0.04  # the first and the last layer are then SMALLEST_SHARE from their middle
FEWEST_LAYERS = 3
MOST_SEEDS = 1000
NORMAL = 1e6  # degrees of freedom from which a t distribution is the normal one
NO_GATES = "No gates were learned."
H1 = Hypothesis(
    name="H1", label=OPEN, claim="an asymmetric split beats an equal one", unit="% lower perplexity"
)
H2 = Hypothesis(
    name="H2",
    label=OPEN,
    claim="learned gates differ from one half, consistently",
    unit="from one half",
)
H3 = Hypothesis(
    name="H3", label=OPEN, claim="γ trends with depth", unit="from the first layer to the last"
)


def hypotheses(
    comparisons: Sequence[Comparison],
    gates: Sequence[LearnedGates],
    *,
    spec: VerdictSpec | None = None,
) -> list[Hypothesis]:
    """Return the verdicts on H1, H2 and H3, whose labels together err with `1 - spec.confidence`.

    Holm's procedure: a statement that is settled leaves its error probability to the others.

    Args:
        comparisons: Asymmetric splits against equal ones; the intervals of their gains are
            simultaneous at `spec.confidence`.
        gates: Those of every run that learned them.
        spec: Confidence and the least gain that counts; the documented ones by default.
    """
    spec = spec or VerdictSpec()
    judges: dict[str, Callable[[float], Hypothesis]] = {
        "H1": lambda level: _asymmetry(comparisons, level, spec),
        "H2": lambda level: _departure(gates, level),
        "H3": lambda level: _trend(gates, level),
    }
    settled: dict[str, Hypothesis] = {}
    while True:
        waiting = [name for name in judges if name not in settled]
        level = (1 - spec.confidence) / max(1, len(waiting))
        how = f"with an error probability of {100 * level:.2g} % (Holm over three statements)"
        judged = {name: judges[name](level) for name in waiting}
        found = {
            name: replace(one, detail=f"{one.detail} Judged {how}.") for name, one in judged.items()
        }
        newly = {name: one for name, one in found.items() if one.label != OPEN}
        if not newly:
            return [(settled | found)[name] for name in judges]
        settled |= newly


def _unknown(statement: Hypothesis, reason: str) -> Hypothesis:
    """Return the statement where nothing was measured."""
    sentence = f"Nothing can be said on whether {statement.claim}. {reason}"
    return replace(statement, detail=reason, sentence=sentence)


def _more_seeds(seeds: int) -> str:
    missing = counted(FEWEST_SEEDS - seeds, "more seed")
    return f"; {FEWEST_SEEDS} seeds are needed at least, {missing}"


def _signed(value: float, interval: Interval | None) -> str:
    """Return a number with its sign, and its interval where there is one: `+0.04 [0.01, 0.07]`."""
    ends = "" if interval is None else f" [{', '.join(number(end) for end in interval)}]"
    return f"{'+' if value > 0 else ''}{number(value)}{ends}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with fixed digits and a true minus sign."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


# H1: an uneven split of coordinates beats an even one


def _asymmetry(comparisons: Sequence[Comparison], level: float, spec: VerdictSpec) -> Hypothesis:
    """Return whether any comparison lies above the least gain that counts, or all lie below it."""
    if not comparisons:
        return _unknown(H1, "No asymmetric split was compared with an equal one.")
    compared = [_at_level(one, level, spec, len(comparisons)) for one in comparisons]
    least = 100 * spec.minimal
    words = [f"{one.arm} has {difference(one.gain, one.against)}" for one in compared]
    best = max(compared, key=lambda one: _ends(one)[0])
    if _ends(best)[0] >= least:
        label, head = "supported", "An asymmetric split beats an equal one: "
    else:
        best = max(compared, key=lambda one: one.gain.value)
        label, head = OPEN, f"It stays open whether {H1.claim} by {least:g} % or more"
        if all(_ends(one)[1] <= least for one in compared):
            label = "refuted"
            head = f"No asymmetric split beats an equal one by {least:g} % or more"
        head += "; the most promising: "
    head += words[compared.index(best)]
    fewest = min((one.gain.clusters for one in compared if one.gain.clusters), default=FEWEST_SEEDS)
    if label == OPEN and fewest < FEWEST_SEEDS:
        head += _more_seeds(fewest)
    return replace(
        H1,
        label=label,
        estimate=best.gain.value,
        interval=best.gain.interval,
        detail=f"{'; '.join(words)}. A gain counts from {least:g} %.",
        sentence=f"{head}. {_sides(compared, least)}",
    )


def _at_level(one: Comparison, level: float, spec: VerdictSpec, family: int) -> Comparison:
    """Return a comparison with the interval for this error probability, where it has one."""
    gain, ends = one.gain, one.gain.interval
    enough = not gain.clusters or gain.clusters >= FEWEST_SEEDS
    # Ends that meet come of seeds that all gave the same, whose spread is unknown.
    known = enough and ends is not None and ends[0] < ends[1]
    interval = rescaled(gain, level, spec, family) if known else None
    return replace(one, gain=replace(gain, interval=interval))


def rescaled(gain: Estimate, level: float, spec: VerdictSpec, family: int) -> Interval:
    """Return an interval of a gain at another error probability, ends in per cent.

    The given one tells how many standard errors its ends lie away, hence the degrees of freedom of
    the t distribution that puts them there; the same distribution gives the new ends. If it was
    simultaneous over more comparisons than these, the degrees are too few and the ends too far.
    """
    if gain.standard_error is None or gain.standard_error <= 0:
        raise SpecError(f"a gain with an interval needs its standard error; got {gain}")
    assert gain.interval is not None
    effect = effect_nats(gain.value / 100)
    low, high = (effect_nats(end / 100) for end in gain.interval)
    given, wanted = (share / 2 / family for share in (1 - spec.confidence, level))
    distance = (high - low) / 2 * (100 - gain.value) / gain.standard_error
    if distance <= stdtrit(NORMAL, 1 - given):
        degrees = NORMAL
    elif distance >= stdtrit(1.0, 1 - given):
        degrees = 1.0
    else:
        degrees = brentq(lambda found: stdtrit(found, 1 - given) - distance, 1.0, NORMAL)
    stretch = float(stdtrit(degrees, 1 - wanted) / stdtrit(degrees, 1 - given))
    ends = gain_percent(effect + stretch * (np.array([low, high]) - effect))
    return float(ends[0]), float(ends[1])


def _ends(one: Comparison) -> Interval:
    return one.gain.interval or (-math.inf, math.inf)


def _sides(compared: Sequence[Comparison], least: float) -> str:
    """Return how often each side, as far as names say which, is shown to win or to lose."""
    by_side: dict[str, list[Interval]] = {}
    for one in compared:
        found = re.search(r"(?<![a-z])([ab])[-_ ]?heavy", one.arm, re.IGNORECASE)
        side = f"{found[1].upper()}-heavy" if found else one.arm
        by_side.setdefault(side, []).append(_ends(one))
    parts = []
    for side, own in by_side.items():
        won, lost = sum(low >= least for low, _ in own), sum(high <= -least for _, high in own)
        worse = f" and loses {lost}" if lost else ""
        parts.append(f"{side} wins {won} of {len(own)}{worse}")
    return f"Shown: {', '.join(parts)}."


# H2 and H3: learned gates leave one half, and trend with depth


def _departure(runs: Sequence[LearnedGates], level: float) -> Hypothesis:
    """Return whether the mean gate of a run differs from one half, and most layers with it."""
    if not runs:
        return _unknown(H2, NO_GATES)
    found = replicates(runs, lambda run: fmean(run.gamma) - 0.5)
    distances = replicates(runs, lambda run: fmean(abs(share - 0.5) for share in run.gamma))
    # Gates that all runs have, and those of them on the mean's side of one half in every run.
    gates = [run.by_layer for run in runs]
    shared = [layer for layer in runs[0].layers if all(layer in run for run in gates)]
    sides = [all((run[layer] - 0.5) * found.mean > 0 for run in gates) for layer in shared]
    same, layers = sum(sides), len(shared)
    label, reason = found.label(SMALLEST_SHARE, level), ""
    if label == "supported" and 2 * same < layers:
        label, reason = OPEN, "; most gates do not lie on that side in every run"
    if label == "refuted" and distances.label(SMALLEST_SHARE, level) != "refuted":
        label, reason = OPEN, "; single gates may lie further away, on both sides"
    interval = t_interval(found.overall, level)
    words = f"γ averages {number(0.5 + found.mean)}, {_signed(found.mean, interval)} from one half "
    words += f"over {_replicates(found)}"
    steady = "" if interval is None or interval[0] <= 0 <= interval[1] else "steady but "
    heads = {
        "supported": f"Learned gates favour {'B' if found.mean > 0 else 'A'}: {words}; "
        f"{same} of {layers} gates lie on that side in every run.",
        "refuted": f"Learned gates stay at one half: {words}, {steady}less than the "
        f"{SMALLEST_SHARE:g} worth the name.",
        OPEN: f"It stays open whether learned gates differ from one half by {SMALLEST_SHARE:g} or "
        f"more: {words}{reason or _needed(found, SMALLEST_SHARE, level)}.",
    }
    return replace(
        H2,
        label=label,
        estimate=found.mean,
        interval=interval,
        detail=f"{_by_budget(found, level)}. On the mean's side in every run: {same} of {layers} "
        f"gates. {_outside(runs)}Smallest difference worth the name: {SMALLEST_SHARE:g}.",
        sentence=heads[label],
    )


def _trend(runs: Sequence[LearnedGates], level: float) -> Hypothesis:
    """Return whether γ changes from the first layer of the stack to the last."""
    fewest = min((len(run.stack) for run in runs), default=0)
    if fewest < FEWEST_LAYERS:
        few = f"A trend needs {FEWEST_LAYERS} layers; there are {fewest}."
        return _unknown(H3, few if runs else NO_GATES)
    found = replicates(runs, lambda run: run.slope)
    label, interval = found.label(SMALLEST_SLOPE, level), t_interval(found.overall, level)
    known = [one for run in runs if (one := run.rank_correlation) is not None]
    correlation = "undefined, γ is the same everywhere"
    if known:
        mean, low, high = (number(value, 2) for value in (fmean(known), min(known), max(known)))
        correlation = f"{mean} on average, {low} to {high} over {counted(len(known), 'run')}"
    words = f"from the first layer to the last it changes by {_signed(found.mean, interval)} "
    words += f"over {_replicates(found)}"
    steady = "" if interval is None or interval[0] <= 0 <= interval[1] else "steady but "
    heads = {
        "supported": f"γ {'rises' if found.mean > 0 else 'falls'} with depth: {words}.",
        "refuted": f"γ has no trend with depth: {words}, {steady}less than the "
        f"{SMALLEST_SLOPE:g} worth the name.",
        OPEN: f"It stays open whether γ trends with depth by {SMALLEST_SLOPE:g} or more: {words}"
        f"{_needed(found, SMALLEST_SLOPE, level)}.",
    }
    return replace(
        H3,
        label=label,
        estimate=found.mean,
        interval=interval,
        detail=f"{_by_budget(found, level)}. Spearman's correlation of γ with depth: "
        f"{correlation}. {_outside(runs, ', left out of the slope')}"
        f"Smallest slope worth the name: {SMALLEST_SLOPE:g} over the whole depth.",
        sentence=heads[label],
    )


def _needed(found: Replicates, smallest: float, level: float) -> str:
    """Return in words what would settle a statement that is open."""
    if found.fewest_seeds < FEWEST_SEEDS:
        return _more_seeds(found.fewest_seeds)
    if t_interval(found.overall, level) is None:
        return "; every seed gave the same, so its spread is unknown"
    more = further_seeds_until(
        lambda seeds: found.label(smallest, level, seeds) != OPEN, found.overall.size, MOST_SEEDS
    )
    if more is None:
        return "; no number of seeds is likely to settle it"
    return f"; about {counted(more, 'more seed')} would settle it"


def _by_budget(found: Replicates, level: float) -> str:
    return "; ".join(
        f"budget {budget}: {_signed(float(values.mean()), t_interval(values, level))}"
        for budget, values in found.budgets.items()
    )


def _replicates(found: Replicates) -> str:
    seeds, budgets = found.overall.size, len(found.budgets)
    return f"{counted(seeds, 'seed')} and {counted(budgets, 'budget')}"


def _outside(runs: Sequence[LearnedGates], remark: str = "") -> str:
    """Return the mean γ of the groups that are no layers of the stack."""
    gates = [run.by_layer for run in runs]
    names = dict.fromkeys(name for run in gates for name in run if not name[-1].isdigit())
    parts = [f"{name} {number(fmean(run[name] for run in gates if name in run))}" for name in names]
    return f"Outside the stack{remark}: {', '.join(parts)}. " if parts else ""
