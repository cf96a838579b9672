"""Whether an uneven split of coordinates beats an even one, from contrasts; no torch."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit

from hylorada.errors import SpecError
from hylorada.evaluation.statistics import Estimate
from hylorada.verdicts.allocation.findings import (
    FEWEST_SEEDS,
    OPEN,
    Finding,
    Interval,
    more_seeds,
    unknown,
)
from hylorada.verdicts.gains import effect_nats, gain_percent
from hylorada.verdicts.labels import VerdictSpec
from hylorada.verdicts.sentences import difference

ASYMMETRIC = "an asymmetric split beats an equal one"
NORMAL = 1e6  # degrees of freedom from which a t distribution is the normal one


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A split against another one: its gain in per cent, at the error probability asked for."""

    arm: str
    value: float
    interval: Interval | None
    seeds: int | None
    words: str

    @property
    def low(self) -> float:
        """Return the lower end, minus infinity without an interval."""
        return -math.inf if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """Return the upper end, infinity without an interval."""
        return math.inf if self.interval is None else self.interval[1]

    @property
    def side(self) -> str:
        """Return which factor the split favours as far as its name says so, else the name."""
        found = re.search(r"(?<![a-z])([ab])[-_ ]?heavy", self.arm, re.IGNORECASE)
        return f"{found[1].upper()}-heavy" if found else self.arm


def asymmetry(contrasts: Sequence[dict[str, Any]], level: float, spec: VerdictSpec) -> Finding:
    """Return whether any contrast lies above the least gain that counts, or all lie below it."""
    if not contrasts:
        return unknown(ASYMMETRIC, "No asymmetric split was compared with an equal one.")
    compared = [_read(row, level, spec, len(contrasts)) for row in contrasts]
    least = 100 * spec.minimal
    winners = [one for one in compared if one.low >= least]
    best = max(winners or compared, key=lambda one: one.low if winners else one.value)
    promising = f"the most promising: {best.words}"
    if winners:
        label, head = "supported", f"An asymmetric split beats an equal one: {best.words}"
    elif all(one.high <= least for one in compared):
        label = "refuted"
        head = f"No asymmetric split beats an equal one by {least:g} % or more; {promising}"
    else:
        label = OPEN
        head = f"It stays open whether {ASYMMETRIC} by {least:g} % or more; {promising}"
        head += _missing(compared)
    return Finding(
        label=label,
        estimate=best.value,
        interval=best.interval,
        detail=f"{'; '.join(one.words for one in compared)}. A gain counts from {least:g} %.",
        sentence=f"{head}. {_sides(compared, least)}",
    )


def _read(row: dict[str, Any], level: float, spec: VerdictSpec, family: int) -> Contrast:
    """Return a comparison of a study with the interval for this error probability."""
    gain = row["gain"]
    value, seeds, ends = float(gain["value"]), gain.get("clusters"), gain.get("interval")
    enough = seeds is None or seeds >= FEWEST_SEEDS
    # Ends that meet come of seeds that all gave the same, whose spread is unknown.
    known = enough and ends is not None and None not in ends and ends[0] < ends[1]
    interval = _rescaled(gain, level, spec, family) if known else None
    told = Estimate(value=value, standard_error=None, interval=interval, clusters=seeds or 0)
    return Contrast(
        arm=row["arm"],
        value=value,
        interval=interval,
        seeds=seeds,
        words=f"{row['arm']} has {difference(told, row['against'])}",
    )


def _rescaled(gain: dict[str, Any], level: float, spec: VerdictSpec, family: int) -> Interval:
    """Return an interval of a gain at another error probability, ends in per cent.

    The given one tells how many standard errors its ends lie away, hence the degrees of freedom of
    the t distribution that puts them there; the same distribution gives the new ends. Were it
    simultaneous over more contrasts than these, the degrees would be too few and the ends too far.
    """
    value, error = float(gain["value"]), gain.get("standard_error")
    if error is None or error <= 0:
        raise SpecError(f"a gain with an interval needs its standard error; got {gain}")
    effect = effect_nats(value / 100)
    low, high = (effect_nats(end / 100) for end in gain["interval"])
    given, wanted = (share / 2 / family for share in (1 - spec.confidence, level))
    degrees = _degrees((high - low) / 2 * (100 - value) / error, given)
    stretch = float(stdtrit(degrees, 1 - wanted) / stdtrit(degrees, 1 - given))
    ends = effect + stretch * (np.array([low, high]) - effect)
    return float(gain_percent(ends)[0]), float(gain_percent(ends)[1])


def _degrees(distance: float, tail: float) -> float:
    """Return the degrees of freedom of the t distribution with this tail beyond `distance`."""
    if distance <= stdtrit(NORMAL, 1 - tail):
        return NORMAL
    if distance >= stdtrit(1.0, 1 - tail):
        return 1.0
    return float(brentq(lambda found: stdtrit(found, 1 - tail) - distance, 1.0, NORMAL))


def _missing(compared: Sequence[Contrast]) -> str:
    seeds = [one.seeds for one in compared if one.seeds is not None]
    return more_seeds(min(seeds)) if seeds and min(seeds) < FEWEST_SEEDS else ""


def _sides(compared: Sequence[Contrast], least: float) -> str:
    """Return how often each side is shown to win or to lose."""
    parts = []
    for side in dict.fromkeys(one.side for one in compared):
        own = [one for one in compared if one.side == side]
        won, lost = sum(one.low >= least for one in own), sum(one.high <= -least for one in own)
        worse = f" and loses {lost}" if lost else ""
        parts.append(f"{side} wins {won} of {len(own)}{worse}")
    return f"Shown: {', '.join(parts)}."
