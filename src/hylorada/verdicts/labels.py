"""The thresholds of a verdict and the labels they give."""

import math

import msgspec
import numpy as np
from jaxtyping import Float

from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate, Interval
from hylorada.records.studies import Thresholds

WORST_NATS = -100.0


def gain_percent(effect: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return `100 (1 - exp(-effect))`, per cent lower perplexity, of an effect in nats.

    Rounded to twelve decimals, so that an interval that ends on a threshold says so; harm beyond
    `WORST_NATS` counts as that, so that every gain is a finite number.
    """
    return np.asarray(np.round(-100 * np.expm1(-np.maximum(effect, WORST_NATS)), 12))


def gain_estimate(
    effect: float, ends: Interval | None = None, error: float | None = None, *, seeds: int
) -> Estimate:
    """Return the gain in per cent of an effect in nats; its standard error by the delta method."""
    interval = None if ends is None else gain_percent(np.array(ends)).tolist()
    return Estimate(
        value=float(gain_percent(np.array(effect))),
        standard_error=None if error is None else 100 * math.exp(-max(effect, WORST_NATS)) * error,
        interval=interval and (interval[0], interval[1]),
        clusters=seeds,
    )


def effect_nats(share: float) -> float:
    """Return the effect in nats of perplexity lower by the given share."""
    return -math.log1p(-share)


MEANINGS = {
    "A": "strong",
    "B": "moderate",
    "C": "minimal",
    "D": "none",
    "E": "harmful",
    "inconclusive": "inconclusive",
}
HELPS = ("A", "B", "C")
ACTIONS = {"A": "scale up", "B": "viable, consider sharing", "C": "keep as ablation", "D": "pivot"}


class VerdictSpec(Thresholds, frozen=True, kw_only=True):
    """The thresholds of a verdict, valid once built; all shares: 0.02 is 2 % lower perplexity."""

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise SpecError(f"confidence must lie strictly between 0 and 1; got {self.confidence}")
        if not 0 < self.minimal < self.moderate < self.strong <= self.core < 1:
            raise SpecError(
                "thresholds must satisfy 0 < minimal < moderate < strong <= core < 1; "
                f"got {self.minimal}, {self.moderate}, {self.strong}, {self.core}"
            )
        if self.steady <= 0:
            raise SpecError(f"steady must be a positive share; got {self.steady}")

    def part(self, share: float) -> "VerdictSpec":
        """Return the thresholds with a share of the error probability, for one of several families.

        Families whose shares sum to 1 together err no more often than one family would.
        """
        if not 0 < share <= 1:
            raise SpecError(f"a share of the error probability must lie in (0, 1]; got {share}")
        return msgspec.structs.replace(self, confidence=1 - (1 - self.confidence) * share)


def labels(
    low: Float[np.ndarray, "..."], high: Float[np.ndarray, "..."], spec: VerdictSpec
) -> np.ndarray:
    """Return the label of each interval of gains, both ends in per cent."""
    strong, moderate, minimal = (
        round(100 * share, 12) for share in (spec.strong, spec.moderate, spec.minimal)
    )
    return np.select(
        [
            low >= strong,
            low >= moderate,
            low >= minimal,
            (low >= -minimal) & (high <= minimal),
            high <= -minimal,
        ],
        ["A", "B", "C", "D", "E"],
        "inconclusive",
    )


def point_scenario(effects: list[float], spec: VerdictSpec) -> str:
    """Return what the literal rule says of paired effects in nats, one a seed.

    It looks at the mean gain alone; its standard deviation is only a remark.
    """
    mean = float(gain_percent(np.array(np.mean(effects))))
    bounds = {"A": spec.strong, "B": spec.moderate, "C": spec.minimal}
    scenario = next((name for name, share in bounds.items() if mean >= 100 * share), "D")
    core = ", core feature" if mean >= 100 * spec.core else ""
    remark = "one seed, sd unknown"
    if len(effects) > 1:
        deviation = float(gain_percent(np.array(effects)).std(ddof=1))
        relation = "below" if deviation < 100 * spec.steady else "not below"
        remark = f"sd {deviation:.2f} %, {relation} {100 * spec.steady:g} %"
    return f"{scenario}: {ACTIONS[scenario]}{core} ({remark})"
