"""Effects in nats and gains in per cent: how much lower a perplexity is; no torch."""

import math

import numpy as np
from jaxtyping import Float

from hylorada.evaluation.statistics import Estimate

WORST_NATS = -100.0


def gain_percent(effect: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return `100 (1 - exp(-effect))`, per cent lower perplexity, of an effect in nats.

    Rounded to twelve decimals, so that an interval that ends on a threshold says so; harm beyond
    `WORST_NATS` counts as that, so that every gain is a finite number.
    """
    return np.asarray(np.round(-100 * np.expm1(-np.maximum(effect, WORST_NATS)), 12))


def gain_estimate(
    effect: float, ends: tuple[float, float] | None, standard_error: float | None, *, seeds: int
) -> Estimate:
    """Return the gain in per cent of an effect in nats, error by the delta method."""
    slope = 100 * math.exp(-max(effect, WORST_NATS))
    error = None if standard_error is None else slope * standard_error
    low_high = None if ends is None else gain_percent(np.array(ends))
    return Estimate(
        value=float(gain_percent(np.array(effect))),
        standard_error=error,
        interval=None if low_high is None else (float(low_high[0]), float(low_high[1])),
        clusters=seeds,
    )


def effect_nats(share: float) -> float:
    """Return the effect in nats of perplexity lower by the given share."""
    return -math.log1p(-share)
