"""Intervals that hold for all arms of a study at once, by stepping down as Holm does; no torch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hylorada.verdicts.gains import effect_nats
from hylorada.verdicts.labels import VerdictSpec
from hylorada.verdicts.spread import Spread

KEPT = 0.2  # Share of its error probability that a settled arm keeps to bound its own effect.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of the simultaneous intervals in nats, and the tail probability each was given."""

    low: Float[np.ndarray, "studies compared"]
    high: Float[np.ndarray, "studies compared"]
    low_tail: Float[np.ndarray, "studies compared"]
    high_tail: Float[np.ndarray, "studies compared"]


def study_ends(spread: Spread, spec: VerdictSpec) -> Ends:
    """Return the simultaneous interval ends in nats at the thresholds of a verdict."""
    return simultaneous_ends(
        spread, strong=effect_nats(spec.strong), harmful=effect_nats(-spec.minimal)
    )


def simultaneous_ends(spread: Spread, *, strong: float, harmful: float) -> Ends:
    """Return interval ends that are right for every arm at once, except with `1 - confidence`.

    Lower and upper ends each step down with half the error probability. An arm whose lower end
    reaches `strong` (upper end: `harmful`), in nats, is settled on that side and hands the larger
    part of its share to the arms still open; it is then only said to lie beyond that threshold,
    or beyond the bound that the share it kept allows.
    """
    low, low_tail = _step_down(spread.effects, strong, spread.reach, spread.unadjusted)
    high, high_tail = _step_down(-spread.effects, -harmful, spread.reach, spread.unadjusted)
    return Ends(low=low, high=-high, low_tail=low_tail, high_tail=high_tail)


def _step_down(
    effects: Float[np.ndarray, "studies compared"],
    threshold: float,
    reach: Callable[[Float[np.ndarray, "studies compared"]], Float[np.ndarray, "studies compared"]],
    budget: float,
) -> tuple[Float[np.ndarray, "studies compared"], Float[np.ndarray, "studies compared"]]:
    """Return lower ends whose joint error is at most `budget`, and the tail each was given."""
    arms = effects.shape[1]
    settled = np.zeros(effects.shape, dtype=bool)
    while True:
        still_open = np.maximum(arms - settled.sum(1, keepdims=True), 1)
        handed_on = (1 - KEPT) * (arms - still_open) / still_open
        tails = np.broadcast_to(budget / arms * (1 + handed_on), effects.shape)
        ends = effects - reach(tails)
        newly = (ends >= threshold) & ~settled
        if not newly.any():
            break
        settled |= newly
    # Once no arm is left to receive them, the shares stay where they were.
    kept = np.where(settled.all(1, keepdims=True), 1.0, KEPT) * budget / arms
    tails = np.where(settled, kept, tails)
    bounds = effects - reach(tails)
    return np.where(settled, np.maximum(threshold, bounds), ends), tails
