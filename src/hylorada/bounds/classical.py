"""Bounds that know only the range of a loss: Hoeffding, Azuma and the kl-inverse.

Each holds with probability at least `1 - delta` for all models at once, where `complexity` is -ln
of the model's probability under a prior that was fixed before the data were seen (union bound).
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from hylorada.bounds.rules import (
    require_complexity,
    require_count,
    require_delta,
    require_fraction,
    require_range,
    require_risk,
)
from hylorada.errors import SpecError
from hylorada.units import Nats


def loss_range(alpha: float, vocabulary: int) -> float:
    """Return the width of the interval of the smoothed loss, in bits per token.

    Predicting with `(1 - alpha) p + alpha / vocabulary` keeps the loss between
    `-log2(1 - alpha + alpha / vocabulary)` and `log2(vocabulary / alpha)`.
    """
    require_count("vocabulary", vocabulary, 2)
    if not 0 < alpha < 1:
        raise SpecError(f"alpha must lie strictly between 0 and 1; got {alpha}")
    return math.log2(1 + (1 - alpha) * vocabulary / alpha)


def finite_hypothesis(
    risk: float,
    complexity: Nats,
    samples: int,
    loss_range: float = 1.0,
    delta: float = 0.05,
) -> float:
    """Return the compression bound on the true risk, in the unit of `risk`.

    Hoeffding's inequality: `risk + range * sqrt((complexity + ln 1/delta) / 2m)`.

    Args:
        risk: Mean loss over the whole sample.
        complexity: -ln of the model's prior probability.
        samples: Number `m` of independent draws; documents, not tokens.
        loss_range: Width of the interval that holds the loss.
        delta: Probability with which the statement may fail.
    """
    _require(risk, complexity, samples, loss_range, delta)
    return risk + loss_range * math.sqrt((complexity + math.log(1 / delta)) / (2 * samples))


def subsampled(
    risk: float,
    complexity: Nats,
    population: int,
    sample: int,
    loss_range: float = 1.0,
    delta: float = 0.05,
    *,
    compared: int = 1,
) -> float:
    """Return the compression bound from a sample of the sample, in the unit of `risk`.

    `delta` is shared between the step from the corpus to the truth (`s`) and the step from the
    evaluated documents to the corpus (`1 - s`), `s = n / (n + N)` (Lotfi et al. 2024). A corpus
    that is evaluated as a whole has no second step: use `finite_hypothesis`.

    Args:
        risk: Mean loss over `sample` documents drawn from the corpus with replacement.
        complexity: -ln of the model's prior probability.
        population: Number `N` of independent documents in the corpus.
        sample: Number `n` of documents drawn.
        loss_range: Width of the interval that holds the loss.
        delta: Probability with which the statement may fail.
        compared: Numbers (models, smoothing values) measured on the same draws, of which the best
            is reported; the prior pays only for the first step.
    """
    _require(risk, complexity, population, loss_range, delta)
    corpus, draws = shared_budgets(complexity, population, sample, delta, compared)
    steps = math.sqrt(corpus / (2 * population)) + math.sqrt(draws / (2 * sample))
    return risk + loss_range * steps


def shared_budgets(
    complexity: Nats, population: int, sample: int, delta: float, compared: int
) -> tuple[float, float]:
    """Return what the two steps of a subsampled bound may use of -ln(probability), in nats."""
    require_count("sample", sample)
    require_count("compared", compared)
    share = sample / (sample + population)
    return (
        complexity - math.log(share * delta),
        math.log(compared) - math.log((1 - share) * delta),
    )


def token_level(
    risk: float,
    complexity: Nats,
    tokens: int,
    loss_range: float | Float[np.ndarray, " tokens"] = 1.0,
    delta: float = 0.05,
) -> float:
    """Return a bound on the loss of next tokens at the corpus' own contexts, in its unit.

    The risk bounded is the mean over positions `i` of the expected loss of a *fresh* token drawn
    after the same past: it says nothing about new documents, and needs no independence at all
    (Azuma's inequality; Lotfi et al. 2024b).

    Args:
        risk: Mean loss over all tokens.
        complexity: -ln of the model's prior probability.
        tokens: Number of tokens that were scored, in the order of the corpus.
        loss_range: Width of the loss's interval; one for all, or one for each position if they
            were fixed before the text was seen.
        delta: Probability with which the statement may fail.
    """
    if isinstance(loss_range, np.ndarray):
        if loss_range.size != tokens:
            raise SpecError(f"{tokens} tokens need as many ranges; got {loss_range.size}")
        loss_range = math.sqrt(float(np.mean(np.square(loss_range, dtype=np.float64))))
    return finite_hypothesis(risk, complexity, tokens, loss_range, delta)


def kl_inverse(risk: float, budget: Nats) -> float:
    """Return the largest `p` with `kl(risk || p) <= budget`, for risks in [0, 1].

    `kl(q || p)` is the divergence of two coins, in nats. If `risk` is the mean of `m` draws in
    [0, 1] and `budget = ln(1/delta) / m`, the true mean exceeds the result with probability at
    most `delta` (Chernoff).
    """
    require_fraction(risk)
    require_complexity(budget)
    if risk == 1.0 or budget == 0.0:
        return risk
    top = 1.0 - 1e-15
    if _coin_divergence(risk, top) <= budget:
        return 1.0
    root = brentq(lambda p: _coin_divergence(risk, p) - budget, risk, top, xtol=1e-14)
    return float(root)


def kl_inverse_finite(risk: float, complexity: Nats, samples: int, delta: float = 0.05) -> float:
    """Return the Chernoff form of `finite_hypothesis` for losses in [0, 1]; never looser."""
    _require(risk, complexity, samples, 1.0, delta)
    return kl_inverse(risk, Nats((complexity + math.log(1 / delta)) / samples))


def kl_inverse_subsampled(
    risk: float,
    complexity: Nats,
    population: int,
    sample: int,
    delta: float = 0.05,
    *,
    compared: int = 1,
) -> float:
    """Return the Chernoff form of `subsampled` for losses in [0, 1]; arguments as there."""
    _require(risk, complexity, population, 1.0, delta)
    corpus, draws = shared_budgets(complexity, population, sample, delta, compared)
    in_corpus = kl_inverse(risk, Nats(draws / sample))
    return kl_inverse(in_corpus, Nats(corpus / population))


def _coin_divergence(first: float, second: float) -> float:
    total = 0.0
    for p, q in ((first, second), (1 - first, 1 - second)):
        if p > 0:
            total += p * math.log(p / q)
    return total


def _require(risk: float, complexity: Nats, samples: int, loss_range: float, delta: float) -> None:
    require_risk(risk)
    require_complexity(complexity)
    require_count("samples", samples)
    require_range(loss_range)
    require_delta(delta)
