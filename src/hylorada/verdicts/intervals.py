"""How far the mean effect of a few paired seeds may lie from the truth.

Everything works on many studies at once, so that the rule a study uses is the rule a simulation
checks. Arm 0 is the baseline.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import fdtrc, stdtrit

from hylorada.verdicts.labels import VerdictSpec, effect_nats

Compared = Float[np.ndarray, "studies compared"]
WILD = 0.001  # An arm whose own variance is this improbable among the others leaves the pool.
KEPT = 0.2  # Share of its error probability that a settled arm keeps to bound its own effect.
OWN_ARMS = 3  # An arm's own bound is adjusted for no more arms than this, or their square root.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Residual variance of the two-way model `value = arm + seed + noise` over its members."""

    members: Bool[np.ndarray, "studies arms"]
    mean_square: Float[np.ndarray, " studies"]

    @property
    def size(self) -> Int[np.ndarray, " studies"]:
        """Return the number of arms pooled, the baseline among them."""
        return self.members.sum(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Mean differences between arms in nats and what is known of their noise.

    Attributes:
        effects: Mean over seeds of `ln PPL` of the first arm less that of the second.
        own_variance: Variance over seeds of that difference.
        pooled_variance: The pool's variance of a difference.
        pooled: Whether both arms of the difference belong to the pool.
        pool_size: Arms in the pool.
        errors: Standard error over test documents, shared by all seeds.
        error_degrees: Degrees of freedom of those errors, infinite when they are known.
        seeds: Paired seeds.
        unadjusted: One-sided tail probability of a single interval, `(1 - confidence) / 2`.
    """

    effects: Compared
    own_variance: Compared
    pooled_variance: Compared
    pooled: Bool[np.ndarray, "studies compared"]
    pool_size: Int[np.ndarray, "studies 1"]
    errors: Compared
    error_degrees: float
    seeds: int
    unadjusted: float

    @property
    def standard_error(self) -> Compared:
        """Return the standard error of each effect in nats, over seeds and documents."""
        larger = np.maximum(self.own_variance, np.where(self.pooled, self.pooled_variance, 0.0))
        return np.sqrt(larger / self.seeds + self.errors**2)

    def reach(self, tail: Compared) -> Compared:
        """Return how far from each effect, in nats, a one-sided bound of that tail lies.

        A pooled arm gets the larger of the pooled t bound and its own t bound, so that an arm
        noisier than the pool, or a pool of look-alikes, cannot borrow certainty. Where many arms
        share the error probability, its own bound is adjusted for three of them, or the square
        root of their number: the few noisy arms it has to restrain are no more than that.
        """
        sharing = self.unadjusted / tail
        restrained = np.minimum(sharing, np.maximum(OWN_ARMS, np.sqrt(sharing)))
        own_tail = np.where(self.pooled, self.unadjusted / restrained, tail)
        own = stdtrit(self.seeds - 1, own_tail) ** 2 * self.own_variance
        degrees = np.maximum((self.pool_size - 1) * (self.seeds - 1), 1)
        together = stdtrit(degrees, tail) ** 2 * self.pooled_variance
        noise = np.where(self.pooled, np.maximum(own, together), own) / self.seeds
        return np.sqrt(noise + (stdtrit(self.error_degrees, tail) * self.errors) ** 2)


def pool(
    values: Float[np.ndarray, "studies arms seeds"],
    members: Bool[np.ndarray, "studies arms"],
    *,
    wild: float = WILD,
) -> Pool:
    """Return the pool of the given members without the arms far noisier than the rest.

    The noisiest member leaves while an F test finds its variance against the baseline improbable
    (below `wild`, Bonferroni over members) among those that stay.
    """
    variances = (values[:, [0]] - values).var(-1, ddof=1)
    members = members.copy()
    studies = np.arange(values.shape[0])
    for _ in range(values.shape[1] - 2):
        noisiest = np.where(members, variances, -1.0).argmax(1)
        rest = members.copy()
        rest[studies, noisiest] = False
        expected = _difference_variance(_mean_square(values, rest), variances[:, 1:], rest[:, 1:])
        size = rest.sum(1)
        degrees = np.maximum((size - 1) * (values.shape[2] - 1), 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = variances[studies, noisiest] / expected
        improbable = fdtrc(values.shape[2] - 1, degrees, ratio) * size < wild
        leaves = improbable & (size >= 2) & (noisiest > 0)
        if not leaves.any():
            break
        members[leaves] = rest[leaves]
    return Pool(members=members, mean_square=_mean_square(values, members))


def paired_differences(
    values: Float[np.ndarray, "studies arms seeds"],
    pooled: Pool,
    first: int,
    others: list[int],
    errors: Compared,
    error_degrees: float,
    confidence: float,
) -> Differences:
    """Return the differences between the first arm and each of the others, with their noise."""
    differences = values[:, [first]] - values[:, others]
    own = differences.var(-1, ddof=1)
    inside = pooled.members[:, others] & pooled.members[:, [first]]
    shared = _difference_variance(pooled.mean_square, own, inside)
    return Differences(
        effects=differences.mean(-1),
        own_variance=own,
        pooled_variance=np.broadcast_to(shared[:, None], own.shape),
        pooled=inside,
        pool_size=pooled.size[:, None],
        errors=errors,
        error_degrees=error_degrees,
        seeds=values.shape[2],
        unadjusted=(1 - confidence) / 2,
    )


def _mean_square(
    values: Float[np.ndarray, "studies arms seeds"], members: Bool[np.ndarray, "studies arms"]
) -> Float[np.ndarray, " studies"]:
    """Return the residual mean square of the additive model over the members, in nats²."""
    size = members.sum(1)
    inside = members[..., None]
    centred = values - values.mean(-1, keepdims=True)
    by_seed = (centred * inside).sum(1, keepdims=True) / np.maximum(size, 1)[:, None, None]
    squares = (((centred - by_seed) * inside) ** 2).sum((1, 2))
    return squares / np.maximum((size - 1) * (values.shape[2] - 1), 1)


def _difference_variance(
    mean_square: Float[np.ndarray, " studies"],
    own: Compared,
    inside: Bool[np.ndarray, "studies compared"],
) -> Float[np.ndarray, " studies"]:
    """Return the variance of a paired difference: the model's, or the arms' mean if larger.

    The model's `2 × mean square` is too small when the baseline is the noisy arm, or when the
    other arms resemble each other more than the baseline; the plain mean never is.
    """
    mean = (own * inside).sum(1) / np.maximum(inside.sum(1), 1)
    return np.maximum(2 * mean_square, mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of the simultaneous intervals in nats, and the tail probability each was given."""

    low: Compared
    high: Compared
    low_tail: Compared
    high_tail: Compared


def simultaneous_ends(found: Differences, spec: VerdictSpec) -> Ends:
    """Return interval ends that are right for every arm at once, except with `1 - confidence`.

    Lower and upper ends each step down with half the error probability. An arm whose lower end
    reaches the threshold of "strong" (upper end: of "harmful") is settled on that side and hands
    the larger part of its share to the arms still open; it is then only said to lie beyond that
    threshold, or beyond the bound that the share it kept allows.
    """
    strong, harmful = effect_nats(spec.strong), effect_nats(-spec.minimal)
    low, low_tail = _step_down(found.effects, strong, found.reach, found.unadjusted)
    high, high_tail = _step_down(-found.effects, -harmful, found.reach, found.unadjusted)
    return Ends(low=low, high=-high, low_tail=low_tail, high_tail=high_tail)


def _step_down(
    effects: Compared, threshold: float, reach: Callable[[Compared], Compared], budget: float
) -> tuple[Compared, Compared]:
    """Return lower ends whose joint error is at most `budget`, and the tail each was given."""
    arms = effects.shape[1]
    settled = np.zeros(effects.shape, dtype=bool)
    while True:
        still_open = np.maximum(arms - settled.sum(1, keepdims=True), 1)
        handed_on = (1 - KEPT) * (arms - still_open) / still_open
        tails = np.broadcast_to(budget / arms * (1 + handed_on), effects.shape)
        ends = effects - reach(tails)
        newly = (ends >= threshold) & ~settled
        if not newly.any():
            break
        settled |= newly
    # Once no arm is left to receive them, the shares stay where they were.
    kept = np.where(settled.all(1, keepdims=True), 1.0, KEPT) * budget / arms
    tails = np.where(settled, kept, tails)
    bounds = effects - reach(tails)
    return np.where(settled, np.maximum(threshold, bounds), ends), tails
