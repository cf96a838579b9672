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

import numpy as np
from jaxtyping import Float

from hylorada.bounds.inequalities import (
    INEQUALITIES,
    Inequality,
    LowerBound,
    Sample,
    require,
    require_values,
    scouts_of,
    steps,
)
from hylorada.errors import SpecError
from hylorada.units import Nats

# Half octaves: a stake between two of them would lower the cost by less than 2 %.
STAKES = 2.0 ** (np.arange(-32, 32) / 2)
BLOCK = 2**20  # values are read in blocks, since they may be many


def bet(values: Float[np.ndarray, " count"], budget: Nats) -> LowerBound:
    """Return a lower bound on the mean of non-negative values, in their unit, and its stake.

    It fails with probability at most `exp(-budget)`, the choice among `STAKES` included.

    Args:
        values: Measured values, none negative.
        budget: -ln of the allowed probability, with everything else that is chosen by looking.
    """
    require_values(values)
    require(complexity=budget)
    if float(values.min()) < 0:
        raise SpecError(f"a bet needs values that are not negative; got {float(values.min())}")
    cost = (budget + math.log(STAKES.size)) / values.size
    stake = _promising_stake(values, cost)
    total = math.fsum(
        float(np.log1p(stake * values[start : start + BLOCK].astype(np.float64)).sum())
        for start in range(0, values.size, BLOCK)
    )
    return LowerBound(max(0.0, math.expm1(total / values.size - cost) / stake), {"stake": stake})


def betting(
    values: Float[np.ndarray, " count"],
    complexity: Nats,
    *,
    upper: float,
    delta: float = 0.05,
    population: int | None = None,
    compared: int = 1,
) -> float:
    """Return a bound on the true mean of values that never exceed `upper`, in their unit.

    Holds with probability at least `1 - delta` for all models at once. It is at most `upper`,
    never much looser than `kl_inverse`, and adapts to the variance like empirical Bernstein.
    Arguments as for `finite_hypothesis`, with every loss for their mean.
    """
    require_values(values, upper=upper)
    spared = upper - values.astype(np.float64)
    sample = Sample(values=spared, population=population, compared=compared)
    return upper - bet_on(sample, complexity, delta).mean_at_least


def bet_on(sample: Sample, complexity: Nats, delta: float) -> LowerBound:
    """Return a lower bound on the mean of non-negative values, for all models at once.

    In draws from a corpus, the corpus' mean of `ln(1 + s W)` is itself the mean of values that are
    not negative, so a second bet on the draws bounds it; `delta` is shared as in `steps`.
    """
    values, tried = sample.values, sample.compared * STAKES.size
    found = steps(complexity, values.size, delta, sample.population, tried)
    if len(found) == 1:
        return bet(values, found[0][0])
    (draws, _), (corpus, population) = found
    cost = (corpus + math.log(STAKES.size)) / population
    stake = _promising_stake(values, cost)
    logs = np.log1p(stake * values.astype(np.float64))
    growth = math.expm1(bet(logs, draws).mean_at_least - cost)
    return LowerBound(max(0.0, growth / stake), {"stake": stake})


def _promising_stake(values: Float[np.ndarray, " count"], cost: float) -> float:
    # Any choice is valid, so some of many values are enough to make it.
    grown = np.log1p(np.multiply.outer(STAKES, scouts_of(values))).mean(axis=1) - cost
    return float(STAKES[np.argmax(np.expm1(grown) / STAKES)])


INEQUALITIES.add(
    Inequality(
        name="betting",
        words="A bet on the bits saved: no range, no variance, no order; the tightest here.",
        choices={"stake of the bet": STAKES.size},
        of_documents=bet_on,
        of_tokens=bet_on,
    )
)
