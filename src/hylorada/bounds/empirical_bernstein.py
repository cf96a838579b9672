"""Bounds that use the measured variance of a loss: empirical Bernstein, for draws and for tokens.

They hold with probability at least `1 - delta`, for all models at once.
"""

import math

import numpy as np
from jaxtyping import Float

from hylorada.bounds.inequalities import (
    INEQUALITIES,
    clipped,
    require,
    require_count,
    require_values,
)
from hylorada.units import Nats

# `rho * rate`, fixed in advance: fine steps on the scale where variance or range takes over.
RHO_RATES = 1 / (1 + np.exp(-np.linspace(-12, 4, 64)))


def empirical_bernstein(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    loss_range: float = 1.0,
    delta: float = 0.05,
    *,
    population: int | None = None,
    compared: int = 1,
) -> float:
    """Return the variance-aware compression bound on the true risk, in the losses' unit.

    Maurer & Pontil 2009, theorem 4, with a union over models: with `c = complexity + ln(2/delta)`,
    `mean + sd sqrt(2c / n) + 7 range c / (3 (n - 1))`. Draws from a corpus share `delta` in thirds:
    the step to the corpus' mean, the step to the corpus' deviation (theorem 10) and the step from
    the corpus to the truth. Arguments as for `finite_hypothesis`, with every loss for their mean.
    """
    require_values(values, least=2)
    require(complexity=complexity, loss_range=loss_range, delta=delta)
    exact, count = values.astype(np.float64), values.size
    mean, deviation = float(exact.mean()), float(exact.std(ddof=1))
    if population is None:
        return mean + _width(deviation, complexity + math.log(2 / delta), count, loss_range)
    require_count("population", population, 2)
    require_count("compared", compared)
    mean += _width(deviation, math.log(6 * compared / delta), count, loss_range)
    deviation += loss_range * math.sqrt(2 * math.log(3 * compared / delta) / (count - 1))
    # The draws have the corpus' variance divided by N; the theorem wants it divided by N - 1.
    deviation *= math.sqrt(population / (population - 1))
    return mean + _width(deviation, complexity + math.log(6 / delta), population, loss_range)


def supermartingale_bernstein(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    *,
    lower: float,
    upper: float,
    delta: float = 0.05,
) -> float:
    """Return a bound on the mean of the values' conditional expectations, in their unit.

    For values `Y_i <= upper` in an order fixed before they were seen, predictions `A_i` in
    [lower, upper] made from the values before (here their running mean), `V = sum (Y_i - A_i)^2`
    and `rho = upper - lower`: `mean(Y) + (complexity + ln 1/delta + ln M + psi V) / (rate N)`,
    `psi = (-ln(1 - rho rate) - rho rate) / rho^2`, the best of M rates fixed in advance (Fan,
    Grama & Liu 2015; Howard et al. 2021). Independent values have the true mean as expectation; a
    stream of tokens has the mean over its own contexts. `lower` bounds the predictions only: a
    value may lie below it, but none above `upper`.
    """
    rho = upper - lower
    require(complexity=complexity, delta=delta, loss_range=rho)
    require_values(values, upper=upper)
    exact = values.astype(np.float64)
    before = np.concatenate([[(lower + upper) / 2], exact[:-1]])
    predictions = np.clip(np.cumsum(before) / np.arange(1, exact.size + 1), lower, upper)
    variation = float(np.square(exact - predictions).sum())
    cost = complexity + math.log(1 / delta) + math.log(RHO_RATES.size)
    psi = (-np.log1p(-RHO_RATES) - RHO_RATES) / rho**2
    widths = (cost + psi * variation) / (RHO_RATES / rho * exact.size)
    return float(exact.mean() + widths.min())


def _width(deviation: float, cost: float, count: int, loss_range: float) -> float:
    return deviation * math.sqrt(2 * cost / count) + 7 * loss_range * cost / (3 * (count - 1))


INEQUALITIES.add(
    clipped(
        "empirical-bernstein",
        "The measured variance: Maurer and Pontil for documents, a supermartingale for tokens.",
        of_documents=lambda losses, complexity, delta: empirical_bernstein(
            losses.values,
            complexity,
            delta=delta,
            population=losses.population,
            compared=losses.compared,
        ),
        of_tokens=lambda losses, complexity, delta: supermartingale_bernstein(
            losses.values, complexity, lower=0.0, upper=1.0, delta=delta
        ),
    )
)
