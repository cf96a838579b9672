"""Bounds that know only the range of a loss: Hoeffding for documents, Azuma for tokens.

This is the published procedure (Lotfi et al. 2024).
"""

import math

from hylorada.bounds.inequalities import INEQUALITIES, clipped, of_mean, require, steps
from hylorada.units import Nats


def loss_range(alpha: float, vocabulary: int) -> float:
    """Return the width of the interval of the smoothed loss, in bits per token.

    Predicting with `(1 - alpha) p + alpha / vocabulary` keeps the loss between
    `-log2(1 - alpha + alpha / vocabulary)` and `log2(vocabulary / alpha)`.
    """
    require(vocabulary=vocabulary, alpha=alpha)
    return math.log2(1 + (1 - alpha) * vocabulary / alpha)


def finite_hypothesis(
    risk: float,
    complexity: Nats,
    samples: int,
    loss_range: float = 1.0,
    delta: float = 0.05,
    *,
    population: int | None = None,
    compared: int = 1,
) -> float:
    """Return the compression bound on the true risk, in the unit of `risk`.

    With probability at least `1 - delta` it holds for all models at once (Hoeffding's inequality
    and a union over models): `risk + range * sqrt((complexity + ln 1/delta) / 2m)`. For all tokens
    of a text, in its order, it bounds the mean over positions of the expected loss of a *fresh*
    token after the same past, without any independence (Azuma's inequality).

    Args:
        risk: Mean loss over the sample.
        complexity: -ln of the model's probability under a prior fixed before the data were seen.
        samples: Number `m` of independent draws (documents), or of tokens.
        loss_range: Width of the interval that holds the loss.
        delta: Probability with which the statement may fail.
        population: Number of independent documents of the corpus, if the samples were drawn from
            it with replacement; None if they are the whole corpus. See `steps`.
        compared: Numbers (models, smoothing values) measured on the same draws, of which the best
            is reported; the prior pays only for the step from the corpus to the truth.
    """
    require(loss_range=loss_range, risk=risk)
    found = steps(complexity, samples, delta, population, compared)
    return risk + loss_range * sum(math.sqrt(budget / (2 * count)) for budget, count in found)


INEQUALITIES.add(
    clipped(
        "hoeffding",
        "The range of the loss alone, as published: Hoeffding for documents, Azuma for tokens.",
        of_documents=of_mean(finite_hypothesis),
        of_tokens=of_mean(finite_hypothesis),
    )
)
