"""Bounds that use the measured variance of a loss: empirical Bernstein, for draws and for streams.

They hold like the classical ones: with probability at least `1 - delta`, for all models at once.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from hylorada.bounds.rules import (
    require_complexity,
    require_count,
    require_delta,
    require_range,
    require_risk,
    require_values,
)
from hylorada.errors import SpecError
from hylorada.units import Nats

# `rho * rate`, fixed in advance: fine steps on the scale where variance or range takes over.
RHO_RATES = 1 / (1 + np.exp(-np.linspace(-12, 4, 64)))


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of measured losses and their standard deviation (divided by `n - 1`)."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Float[np.ndarray, " count"]) -> "Spread":
        """Return mean and deviation of at least two values."""
        require_values(values, 2)
        exact = values.astype(np.float64)
        return cls(float(exact.mean()), float(exact.std(ddof=1)), values.size)


def empirical_bernstein(
    values: Spread | Float[np.ndarray, " count"],
    complexity: Nats,
    loss_range: float = 1.0,
    delta: float = 0.05,
) -> float:
    """Return the variance-aware compression bound on the true risk, in the losses' unit.

    Maurer & Pontil 2009, theorem 4, with a union over models: with `c = complexity + ln(2/delta)`,
    `mean + sd sqrt(2c / n) + 7 range c / (3 (n - 1))`.

    Args:
        values: The loss of every independent draw, or their mean and deviation.
        complexity: -ln of the model's prior probability.
        loss_range: Width of the interval that holds the loss.
        delta: Probability with which the statement may fail.
    """
    spread = values if isinstance(values, Spread) else Spread.of(values)
    _require(spread, complexity, loss_range, delta)
    cost = complexity + math.log(2 / delta)
    return spread.mean + _width(spread.deviation, cost, spread.count, loss_range)


def empirical_bernstein_subsampled(
    values: Spread | Float[np.ndarray, " count"],
    complexity: Nats,
    population: int,
    loss_range: float = 1.0,
    delta: float = 0.05,
    *,
    compared: int = 1,
) -> float:
    """Return `empirical_bernstein` from draws (with replacement) out of a corpus.

    A third of `delta` each for the step to the corpus' mean, the step to the corpus' deviation
    (Maurer & Pontil, theorem 10) and the step from the corpus to the truth.

    Args:
        values: The losses of the documents drawn, or their mean and deviation.
        complexity: -ln of the model's prior probability.
        population: Number of independent documents in the corpus.
        loss_range: Width of the interval that holds the loss.
        delta: Probability with which the statement may fail.
        compared: Numbers measured on the same draws, of which the best is reported.
    """
    spread = values if isinstance(values, Spread) else Spread.of(values)
    _require(spread, complexity, loss_range, delta)
    require_count("population", population, 2)
    require_count("compared", compared)
    drawn = math.log(6 * compared / delta)
    corpus_mean = spread.mean + _width(spread.deviation, drawn, spread.count, loss_range)
    corpus_deviation = spread.deviation + loss_range * math.sqrt(
        2 * math.log(3 * compared / delta) / (spread.count - 1)
    )
    # The draws have the corpus' variance divided by N; the theorem wants it divided by N - 1.
    corpus_deviation *= math.sqrt(population / (population - 1))
    cost = complexity + math.log(6 / delta)
    return corpus_mean + _width(corpus_deviation, cost, population, loss_range)


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
    value may lie below it.

    Args:
        values: Measured values in their fixed order.
        complexity: -ln of the model's prior probability.
        lower: Smallest prediction, fixed before the values were seen.
        upper: Number that no value can exceed.
        delta: Probability with which the statement may fail.
    """
    require_values(values)
    require_complexity(complexity)
    require_delta(delta)
    require_range(upper - lower)
    exact = values.astype(np.float64)
    if float(exact.max()) > upper:
        raise SpecError(f"no value may exceed upper, {upper}; got {float(exact.max())}")
    predictions = np.clip(_running_means(exact, start=(lower + upper) / 2), lower, upper)
    variation = float(np.square(exact - predictions).sum())
    cost = complexity + math.log(1 / delta) + math.log(RHO_RATES.size)
    rho = upper - lower
    psi = (-np.log1p(-RHO_RATES) - RHO_RATES) / rho**2
    widths = (cost + psi * variation) / (RHO_RATES / rho * exact.size)
    return float(exact.mean() + widths.min())


def _running_means(
    values: Float64[np.ndarray, " count"], start: float
) -> Float64[np.ndarray, " count"]:
    """Return for each value the mean of those before it and of one made-up first value."""
    before = np.concatenate([[start], values[:-1]])
    means: Float64[np.ndarray, " count"] = np.cumsum(before) / np.arange(1, values.size + 1)
    return means


def _width(deviation: float, cost: float, count: int, loss_range: float) -> float:
    return deviation * math.sqrt(2 * cost / count) + 7 * loss_range * cost / (3 * (count - 1))


def _require(spread: Spread, complexity: Nats, loss_range: float, delta: float) -> None:
    require_risk(spread.mean)
    require_count("the number of values", spread.count, 2)
    require_complexity(complexity)
    require_range(loss_range)
    require_delta(delta)
