"""Do uneven splits help, do gates leave one half, do they trend with depth? No torch."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from hylorada.verdicts.allocation.findings import (
    FEWEST_SEEDS,
    OPEN,
    Finding,
    Interval,
    more_seeds,
    number,
    signed,
    unknown,
)
from hylorada.verdicts.allocation.gates import (
    GateRun,
    Measured,
    consistent_layers,
    measured,
    read_runs,
    t_interval,
)
from hylorada.verdicts.allocation.splits import ASYMMETRIC, asymmetry
from hylorada.verdicts.labels import VerdictSpec
from hylorada.verdicts.sentences import counted

SMALLEST_SHARE = 0.02  # of a layer's coordinates: 20 of 1000 change sides
SMALLEST_SLOPE = 0.04  # the first and the last layer are then SMALLEST_SHARE from their middle
FEWEST_LAYERS = 3
CLAIMS = {
    "H1": ASYMMETRIC,
    "H2": "learned gates differ from one half, consistently",
    "H3": "γ trends with depth",
}
UNITS = {
    "H1": "% lower perplexity",
    "H2": "from one half",
    "H3": "from the first layer to the last",
}
NO_GATES = "No gates were learned."


def hypotheses(
    contrasts: list[dict[str, Any]],
    gates: list[dict[str, Any]],
    *,
    spec: VerdictSpec | None = None,
) -> list[dict[str, Any]]:
    """Return the verdicts on H1, H2 and H3, whose labels together err with `1 - spec.confidence`.

    Args:
        contrasts: Asymmetric splits against equal ones: `arm`, `against` and `gain` in per cent
            lower perplexity, its intervals simultaneous over the contrasts at `spec.confidence`.
        gates: Every learned run: `name`, `budget`, `seed`, `layers` by depth and `gamma`, B's
            share of each layer's coordinates.
        spec: Confidence and the least gain that counts; the documented ones by default.
    """
    spec = spec or VerdictSpec()
    runs = read_runs(gates)
    judges: dict[str, Callable[[float], Finding]] = {
        "H1": lambda level: asymmetry(contrasts, level, spec),
        "H2": lambda level: _departure(runs, level),
        "H3": lambda level: _trend(runs, level),
    }
    return [
        {
            "name": name,
            "claim": CLAIMS[name],
            "label": found.label,
            "estimate": found.estimate,
            "interval": None if found.interval is None else list(found.interval),
            "unit": UNITS[name],
            "detail": f"{found.detail} Judged with an error probability of {100 * level:.2g} % "
            "(Holm over three statements).",
            "sentence": found.sentence,
        }
        for name, (level, found) in _together(judges, 1 - spec.confidence).items()
    ]


def _together(
    judges: Mapping[str, Callable[[float], Finding]], error: float
) -> dict[str, tuple[float, Finding]]:
    """Return each finding with the error probability that Holm's procedure judged it with."""
    settled: dict[str, tuple[float, Finding]] = {}
    while True:
        waiting = [name for name in judges if name not in settled]
        level = error / max(1, len(waiting))
        found = {name: (level, judges[name](level)) for name in waiting}
        newly = {name: pair for name, pair in found.items() if pair[1].label != OPEN}
        if not newly:
            return {name: (settled | found)[name] for name in judges}
        settled |= newly


def _departure(runs: Sequence[GateRun], level: float) -> Finding:
    """Return whether the mean gate of a run differs from one half, and most layers with it."""
    if not runs:
        return unknown(CLAIMS["H2"], NO_GATES)
    found = measured(runs, lambda run: run.departure)
    distances = measured(runs, lambda run: run.distance)
    same, layers = consistent_layers(runs, found.mean)
    label, reason = found.label(SMALLEST_SHARE, level), ""
    if label == "supported" and 2 * same < layers:
        label, reason = OPEN, "; most gates do not lie on that side in every run"
    if label == "refuted" and distances.label(SMALLEST_SHARE, level) != "refuted":
        label, reason = OPEN, "; single gates may lie further away, on both sides"
    interval = found.interval(level)
    words = f"γ averages {number(0.5 + found.mean)}, {signed(found.mean, interval)} from one half "
    words += f"over {_replicates(found)}"
    heads = {
        "supported": f"Learned gates favour {'B' if found.mean > 0 else 'A'}: {words}; "
        f"{same} of {layers} gates lie on that side in every run.",
        "refuted": f"Learned gates stay at one half: {words}, {_steady(interval)}less than the "
        f"{SMALLEST_SHARE:g} worth the name.",
        OPEN: f"It stays open whether learned gates differ from one half by {SMALLEST_SHARE:g} or "
        f"more: {words}{reason or _needed(found, label, SMALLEST_SHARE, level)}.",
    }
    return Finding(
        label=label,
        estimate=found.mean,
        interval=interval,
        detail=f"{_by_budget(found, level)}. On the mean's side in every run: {same} of {layers} "
        f"gates. {_outside(runs)}Smallest difference worth the name: {SMALLEST_SHARE:g}.",
        sentence=heads[label],
    )


def _trend(runs: Sequence[GateRun], level: float) -> Finding:
    """Return whether γ changes from the first layer of the stack to the last."""
    fewest = min((len(run.stack) for run in runs), default=0)
    if fewest < FEWEST_LAYERS:
        few = f"A trend needs {FEWEST_LAYERS} layers; there are {fewest}."
        return unknown(CLAIMS["H3"], few if runs else NO_GATES)
    found = measured(runs, lambda run: run.slope)
    label, interval = found.label(SMALLEST_SLOPE, level), found.interval(level)
    words = f"from the first layer to the last it changes by {signed(found.mean, interval)} "
    words += f"over {_replicates(found)}"
    heads = {
        "supported": f"γ {'rises' if found.mean > 0 else 'falls'} with depth: {words}.",
        "refuted": f"γ has no trend with depth: {words}, {_steady(interval)}less than the "
        f"{SMALLEST_SLOPE:g} worth the name.",
        OPEN: f"It stays open whether γ trends with depth by {SMALLEST_SLOPE:g} or more: {words}"
        f"{_needed(found, label, SMALLEST_SLOPE, level)}.",
    }
    return Finding(
        label=label,
        estimate=found.mean,
        interval=interval,
        detail=f"{_by_budget(found, level)}. Spearman's correlation of γ with depth: "
        f"{_correlations(runs)}. {_outside(runs, ', left out of the slope')}"
        f"Smallest slope worth the name: {SMALLEST_SLOPE:g} over the whole depth.",
        sentence=heads[label],
    )


def _needed(found: Measured, label: str, smallest: float, level: float) -> str:
    """Return in words what would settle a statement that is open."""
    if label != OPEN:
        return ""
    if found.fewest_seeds < FEWEST_SEEDS:
        return more_seeds(found.fewest_seeds)
    if found.interval(level) is None:
        return "; every seed gave the same, so its spread is unknown"
    more = found.further_seeds(smallest, level)
    if more is None:
        return "; no number of seeds is likely to settle it"
    return f"; about {counted(more, 'more seed')} would settle it"


def _steady(interval: Interval | None) -> str:
    """Return the words for a difference that is there, though too small to matter."""
    apart = interval is not None and not interval[0] <= 0 <= interval[1]
    return "steady but " if apart else ""


def _by_budget(found: Measured, level: float) -> str:
    return "; ".join(
        f"budget {budget}: {signed(float(values.mean()), t_interval(values, level))}"
        for budget, values in found.budgets.items()
    )


def _replicates(found: Measured) -> str:
    seeds, budgets = found.overall.size, len(found.budgets)
    return f"{counted(seeds, 'seed')} and {counted(budgets, 'budget')}"


def _outside(runs: Sequence[GateRun], remark: str = "") -> str:
    """Return the mean γ of the groups that are no layers of the stack."""
    names = dict.fromkeys(name for run in runs for name in run.outside)
    parts = [
        f"{name} {number(fmean(run.outside[name] for run in runs if name in run.outside))}"
        for name in names
    ]
    return f"Outside the stack{remark}: {', '.join(parts)}. " if parts else ""


def _correlations(runs: Sequence[GateRun]) -> str:
    known = [found for run in runs if (found := run.rank_correlation) is not None]
    if not known:
        return "undefined, γ is the same everywhere"
    mean, low, high = (number(value, 2) for value in (fmean(known), min(known), max(known)))
    return f"{mean} on average, {low} to {high} over {counted(len(known), 'run')}"
