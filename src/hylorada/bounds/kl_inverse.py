"""The kl-inverse: Chernoff's bound for losses in [0, 1], never looser than Hoeffding's."""

import math

from scipy.optimize import brentq

from hylorada.bounds.inequalities import INEQUALITIES, clipped, of_mean, require, steps
from hylorada.errors import SpecError
from hylorada.units import Nats


def kl_inverse(risk: float, budget: Nats) -> float:
    """Return the largest `p` with `kl(risk || p) <= budget`, for risks in [0, 1].

    `kl(q || p)` is the divergence of two coins, in nats. If `risk` is the mean of `m` independent
    draws in [0, 1] and `budget = ln(1/delta) / m`, the true mean exceeds the result with
    probability at most `delta` (Chernoff).
    """
    if not 0 <= risk <= 1:
        raise SpecError(f"risk must lie in [0, 1] for a kl bound; got {risk}; divide by the range")
    require(complexity=budget)
    if risk == 1.0 or budget == 0.0:
        return risk
    top = 1.0 - 1e-15
    if _coin_divergence(risk, top) <= budget:
        return 1.0
    root = brentq(lambda p: _coin_divergence(risk, p) - budget, risk, top, xtol=1e-14)
    return float(root)


def kl_inverse_finite(
    risk: float,
    complexity: Nats,
    samples: int,
    delta: float = 0.05,
    *,
    population: int | None = None,
    compared: int = 1,
) -> float:
    """Return the Chernoff form of `finite_hypothesis` for losses in [0, 1]; arguments as there."""
    require(risk=risk)
    for budget, count in steps(complexity, samples, delta, population, compared):
        risk = kl_inverse(risk, Nats(budget / count))
    return risk


def _coin_divergence(first: float, second: float) -> float:
    sides = ((first, second), (1 - first, 1 - second))
    return sum(p * math.log(p / q) for p, q in sides if p > 0)


INEQUALITIES.add(
    clipped(
        "kl-inverse",
        "Chernoff's bound for independent documents; never looser than Hoeffding's.",
        of_documents=of_mean(kl_inverse_finite),
        # Its best rate depends on the true mean, which for tokens is itself a matter of chance.
        of_tokens=None,
    )
)
