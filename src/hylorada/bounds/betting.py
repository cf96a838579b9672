"""The bound of this library: a bet on the mean of values that cannot be negative.

For `W_i >= 0` with means `m_i = E[W_i | past]` and a stake `s > 0` fixed in advance, the
product of `(1 + s W_i) / (1 + s m_i)` is a martingale of mean 1. Markov's inequality and Jensen's
(`ln(1 + s m)` is concave in m) give, with probability at least `1 - exp(-budget)`,

    mean(m_i)  >=  (exp(mean(ln(1 + s W_i)) - budget / N) - 1) / s

in whatever order the values come, without a variance, an upper end or a predicted mean. Independent
draws have `mean(m_i) = E[W]`; for the tokens of a text it is the mean over the text's own contexts.
The best of the stakes is taken and paid for. See docs/bounds.md for the proof and its relatives.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from hylorada.bounds.classical import shared_budgets
from hylorada.bounds.rules import (
    require_complexity,
    require_count,
    require_delta,
    require_values,
)
from hylorada.errors import SpecError
from hylorada.units import Nats

# Half octaves: a stake between two of them would lower the cost by less than 2 %.
STAKES = 2.0 ** (np.arange(-32, 32) / 2)
BLOCK = 2**20
# Enough values to pick a stake by; the bound itself reads them all.
SCOUTED = 2**14


@dataclass(frozen=True, slots=True)
class Bet:
    """A lower bound on a mean, in the unit of the values, and the stake that gave it."""

    mean_at_least: float
    stake: float


def bet(values: Float[np.ndarray, " count"], budget: Nats) -> Bet:
    """Return a lower bound on the mean of non-negative values, in their unit.

    It fails with probability at most `exp(-budget)`, the choice among `STAKES` included.

    Args:
        values: Measured values, none negative.
        budget: -ln of the allowed probability, with everything else that is chosen by looking.
    """
    require_values(values)
    require_complexity(budget)
    if float(values.min()) < 0:
        raise SpecError(f"a bet needs values that are not negative; got {float(values.min())}")
    cost = (budget + math.log(STAKES.size)) / values.size
    stake = _promising_stake(values, cost)
    return Bet(max(0.0, math.expm1(_mean_log(values, stake) - cost) / stake), stake)


def budget_of(complexity: Nats, delta: float) -> Nats:
    """Return what a statement about all models may use of -ln(probability), in nats."""
    require_complexity(complexity)
    require_delta(delta)
    return Nats(complexity + math.log(1 / delta))


def betting(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    *,
    upper: float,
    delta: float = 0.05,
) -> float:
    """Return a bound on the true mean of values that never exceed `upper`, in their unit.

    Holds with probability at least `1 - delta` for all models at once. It is at most `upper`,
    never much looser than `kl_inverse`, and adapts to the variance like empirical Bernstein.

    Args:
        values: The loss of every independent draw, or of every token of a text.
        complexity: -ln of the model's prior probability.
        upper: Number that no value can exceed.
        delta: Probability with which the statement may fail.
    """
    return upper - bet(_below(values, upper), budget_of(complexity, delta)).mean_at_least


def betting_subsampled(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    population: int,
    *,
    upper: float,
    delta: float = 0.05,
    compared: int = 1,
) -> float:
    """Return `betting` from draws (with replacement) out of a corpus, in the values' unit.

    Args:
        values: The losses of the documents drawn.
        complexity: -ln of the model's prior probability.
        population: Number of independent documents in the corpus.
        upper: Number that no loss can exceed.
        delta: Probability with which the statement may fail.
        compared: Numbers measured on the same draws, of which the best is reported.
    """
    spared = _below(values, upper)
    won = bet_on_draws(spared, complexity, population, delta=delta, compared=compared)
    return upper - won.mean_at_least


def bet_on_draws(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    population: int,
    *,
    delta: float,
    compared: int = 1,
) -> Bet:
    """Return a lower bound on the mean of non-negative values from draws out of a corpus.

    The corpus' mean of `ln(1 + s W)` is itself the mean of values that are not negative, so a
    second bet on the draws bounds it; `delta` is shared as in `subsampled`.
    """
    require_complexity(complexity)
    require_delta(delta)
    require_count("population", population)
    corpus, draws = shared_budgets(
        complexity, population, values.size, delta, compared * STAKES.size
    )
    cost = (corpus + math.log(STAKES.size)) / population
    stake = _promising_stake(values, cost)
    logs = np.log1p(stake * values.astype(np.float64))
    reached = math.expm1(bet(logs, Nats(draws)).mean_at_least - cost) / stake
    return Bet(max(0.0, reached), stake)


def _promising_stake(values: Float[np.ndarray, " count"], cost: float) -> float:
    """Return a good stake. Any choice is valid, so some of many values are enough to make it."""
    scouts = values[:: max(1, values.size // SCOUTED)].astype(np.float64)
    grown = np.log1p(np.multiply.outer(STAKES, scouts)).mean(axis=1) - cost
    return float(STAKES[np.argmax(np.expm1(grown) / STAKES)])


def _below(values: Float[np.ndarray, " count"], upper: float) -> Float[np.ndarray, " count"]:
    require_values(values)
    largest = float(values.max())
    if largest > upper:
        raise SpecError(f"no value may exceed upper, {upper}; got {largest}")
    return upper - values.astype(np.float64)


def _mean_log(values: Float[np.ndarray, " count"], stake: float) -> float:
    """Return the mean of `ln(1 + stake W)`, read in blocks so that the values may be many."""
    total = math.fsum(
        float(np.log1p(stake * values[start : start + BLOCK].astype(np.float64)).sum())
        for start in range(0, values.size, BLOCK)
    )
    return total / values.size
