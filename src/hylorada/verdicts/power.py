"""What seeds buy: the probability of each label, and the seeds still needed."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hylorada.errors import SpecError
from hylorada.verdicts.intervals import (
    Differences,
    Ends,
    paired_differences,
    pool,
    simultaneous_ends,
)
from hylorada.verdicts.labels import MEANINGS, VerdictSpec, effect_nats, gain_percent, labels

MOST_SEEDS = 10_000


def power(
    effect: float,
    sd: float,
    seeds: int,
    arms: int,
    *,
    evaluation_error: float = 0.0,
    spec: VerdictSpec | None = None,
    draws: int = 20_000,
    seed: int = 0,
) -> dict[str, float]:
    """Return the probability of each label for one arm among others without any effect.

    Studies of the additive normal model are drawn and judged by the rule itself, so nothing is
    approximated but the draw: its standard error is at most `0.5 / sqrt(draws)`.

    Args:
        effect: True gain of the arm as a share, 0.02 for 2 % lower perplexity.
        sd: Standard deviation over seeds of a paired difference, in nats.
        seeds: Paired seeds.
        arms: All arms of the study, the baseline among them.
        evaluation_error: Standard error over test documents of each paired difference, in nats;
            arms share the baseline's part of it.
        spec: Thresholds; the documented ones by default.
        draws: Simulated studies.
        seed: Seed of the draws.
    """
    if seeds < 2 or arms < 2:
        raise SpecError(f"power needs at least 2 seeds and 2 arms; got {seeds} and {arms}")
    if not (0 <= sd < math.inf and 0 <= evaluation_error < math.inf and effect < 1):
        raise SpecError(
            "sd and evaluation_error must be finite and not negative, effect a share below 1; "
            f"got {sd}, {evaluation_error}, {effect}"
        )
    spec = spec or VerdictSpec()
    random = np.random.default_rng(seed)
    values = random.normal(0.0, sd / math.sqrt(2), (draws, arms, seeds))
    values += random.normal(0.0, evaluation_error / math.sqrt(2), (draws, arms, 1))
    values[:, 1] -= effect_nats(effect)
    errors = np.full((draws, arms - 1), evaluation_error)
    found = judged_labels(values, errors, spec)[:, 0]
    return {label: float((found == label).mean()) for label in MEANINGS}


def judged_labels(
    values: np.ndarray, errors: np.ndarray, spec: VerdictSpec, *, error_degrees: float = math.inf
) -> np.ndarray:
    """Return the label of every arm but the first, for many studies at once."""
    ends = judged_ends(values, errors, spec, error_degrees=error_degrees)
    return labels(gain_percent(ends.low), gain_percent(ends.high), spec)


def judged_ends(
    values: np.ndarray, errors: np.ndarray, spec: VerdictSpec, *, error_degrees: float = math.inf
) -> Ends:
    """Return the simultaneous interval ends in nats of every arm but the first.

    Args:
        values: Log perplexities in nats, studies × arms × seeds, the baseline first.
        errors: Standard errors over documents in nats, studies × (arms - 1).
        spec: Thresholds.
        error_degrees: Degrees of freedom of the errors: documents less one.
    """
    noise = pool(values, np.ones(values.shape[:2], dtype=bool))
    others = list(range(1, values.shape[1]))
    compared = paired_differences(values, noise, 0, others, errors, error_degrees, spec.confidence)
    return simultaneous_ends(compared, spec)


def further_seeds(compared: Differences, ends: Ends, index: int, spec: VerdictSpec) -> int | None:
    """Return how many more seeds settle an open arm if estimate and variances stay, or `None`.

    `None`: not even `MOST_SEEDS` would, because the documents are too few or the estimate lies on
    a threshold.
    """

    def settled(seeds: int) -> bool:
        later = replace(compared, seeds=seeds)
        low = gain_percent(later.effects - later.reach(ends.low_tail))[0]
        high = gain_percent(later.effects + later.reach(ends.high_tail))[0]
        return str(labels(low, high, spec)[index]) != "inconclusive"

    return further_seeds_until(settled, compared.seeds, MOST_SEEDS)


def further_seeds_until(settled: Callable[[int], bool], seeds: int, most: int) -> int | None:
    """Return the fewest seeds beyond these that settle something, or `None` if even `most` do not.

    Intervals only shrink, so what is settled with some seeds stays settled with more.
    """
    if not settled(most):
        return None
    too_few, enough = seeds, most
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if settled(middle) else (middle, enough)
    return enough - seeds
