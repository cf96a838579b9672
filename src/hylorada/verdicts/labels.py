"""The thresholds of a verdict and the labels they give; no torch."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from hylorada.errors import SpecError
from hylorada.verdicts.gains import gain_percent

MEANINGS = {
    "A": "strong",
    "B": "moderate",
    "C": "minimal",
    "D": "none",
    "E": "harmful",
    "inconclusive": "inconclusive",
}
HELPS = ("A", "B", "C")
ACTIONS = {
    "A": "scale up",
    "B": "viable, consider sharing",
    "C": "keep as ablation",
    "D": "pivot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictSpec:
    """Thresholds of a verdict, all shares: 0.02 is 2 % lower perplexity.

    Attributes:
        confidence: Of all intervals of a study at once.
        strong: Least gain of label A.
        moderate: Least gain of label B.
        minimal: Least gain of label C, and half the width of "no effect" and of "harmful".
        core: Least gain of a core feature by the literal point rule.
        steady: Largest standard deviation over seeds by the literal point rule.
    """

    confidence: float = 0.95
    strong: float = 0.02
    moderate: float = 0.01
    minimal: float = 0.005
    core: float = 0.05
    steady: float = 0.01

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
        return replace(self, confidence=1 - (1 - self.confidence) * share)


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


def point_scenario(effects: tuple[float, ...], spec: VerdictSpec) -> str:
    """Return what the literal rule says: the mean gain alone, its sd only as a remark.

    Args:
        effects: Paired effects in nats, one a seed.
        spec: Thresholds.
    """
    gains = gain_percent(np.array(effects))
    mean = float(gain_percent(np.array(np.mean(effects))))
    bounds = {"A": spec.strong, "B": spec.moderate, "C": spec.minimal}
    scenario = next((name for name, share in bounds.items() if mean >= 100 * share), "D")
    core = ", core feature" if mean >= 100 * spec.core else ""
    return f"{scenario}: {ACTIONS[scenario]}{core} ({_steadiness(gains, spec)})"


def _steadiness(gains: Float[np.ndarray, " seeds"], spec: VerdictSpec) -> str:
    if gains.size < 2:
        return "one seed, sd unknown"
    deviation = float(gains.std(ddof=1))
    relation = "below" if deviation < 100 * spec.steady else "not below"
    return f"sd {deviation:.2f} %, {relation} {100 * spec.steady:g} %"
