"""Estimates with intervals that respect clusters; needs neither torch nor a model."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate

Floats = NDArray[np.float64]
CONFIDENCE = 0.95  # of every interval
BOOTSTRAP_DRAWS = 1000


def ratio_estimate(numerators: Floats, denominators: Floats) -> Estimate:
    """Return `Σ numerators / Σ denominators` with a cluster-robust t interval.

    Each entry belongs to one independent cluster (a document, a block, an item). The error is the
    usual linearisation of a ratio, `sqrt(C/(C-1) Σ (n_c - r d_c)²) / Σ d_c`, with `C - 1` degrees
    of freedom; with all denominators equal it is the t interval of a mean.
    """
    if numerators.shape != denominators.shape or numerators.ndim != 1 or numerators.size == 0:
        raise SpecError(
            "a ratio needs two equally long, non-empty lists with one entry a cluster; "
            f"got shapes {numerators.shape} and {denominators.shape}"
        )
    total = float(denominators.sum())
    if total == 0.0:
        raise SpecError("the denominators of a ratio must not sum to zero")
    value = float(numerators.sum()) / total
    clusters = numerators.size
    if clusters < 2:
        return Estimate(value=value, clusters=clusters)
    residuals = numerators - value * denominators
    error = math.sqrt(clusters / (clusters - 1) * float(residuals @ residuals)) / abs(total)
    reach = float(stdtrit(clusters - 1, 0.5 + CONFIDENCE / 2)) * error
    ends = (value - reach, value + reach)
    return Estimate(value=value, standard_error=error, interval=ends, clusters=clusters)


def mean_estimate(values: Floats, weights: Floats | None = None) -> Estimate:
    """Return the weighted mean of one value a cluster, with its t interval."""
    weights = np.ones_like(values) if weights is None else weights
    return ratio_estimate(values * weights, weights)


def proportion_estimate(successes: float, trials: int) -> Estimate:
    """Return the share of successes with Wilson's interval, honest at 0 and 1.

    `successes` may be fractional: the sum of each independent item's own share.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise SpecError(
            f"successes must lie in 0..trials with trials >= 1; got {successes} of {trials}"
        )
    share = successes / trials
    z = float(ndtri(0.5 + CONFIDENCE / 2))
    shrink = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / shrink
    reach = z / shrink * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return Estimate(
        value=share,
        standard_error=math.sqrt(share * (1 - share) / trials),
        interval=(max(0.0, centre - reach), min(1.0, centre + reach)),
        clusters=trials,
    )


def bootstrap_estimate(
    rows: Floats, statistic: Callable[[Floats], float], *, seed: int
) -> Estimate:
    """Return `statistic(rows)` with the percentile interval over resampled clusters (rows)."""
    clusters = rows.shape[0]
    if clusters < 1:
        raise SpecError("a bootstrap needs at least 1 row; got none")
    value = float(statistic(rows))
    if clusters < 2:
        return Estimate(value=value, clusters=clusters)
    picks = np.random.default_rng(seed).integers(0, clusters, size=(BOOTSTRAP_DRAWS, clusters))
    replicates = np.array([statistic(rows[pick]) for pick in picks])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return Estimate(
        value=value,
        standard_error=float(replicates.std(ddof=1)),
        interval=(float(low), float(high)),
        clusters=clusters,
    )


def params_per_percent(added_parameters: int, ppl_without: float, ppl_with: float) -> float | None:
    """Return added trainable parameters per 1 % lower perplexity, or `None` without a gain.

    `ppl_without` belongs to the *trained* arm that lacks the component, never to a frozen model.
    """
    if added_parameters < 0 or min(ppl_without, ppl_with) <= 0:
        raise SpecError(
            "parameters must not be negative and perplexities must be positive; "
            f"got {added_parameters}, {ppl_without}, {ppl_with}"
        )
    percent = 100.0 * (1.0 - ppl_with / ppl_without)
    return added_parameters / percent if percent > 0 else None
