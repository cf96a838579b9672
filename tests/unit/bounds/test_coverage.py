"""Bounds over thousands of synthetic corpora: how often is the truth outside?"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from hylorada.bounds import (
    betting,
    empirical_bernstein,
    finite_hypothesis,
    kl_inverse_finite,
    mixture_bits,
    relative_gain,
    relative_gain_of_tokens,
    supermartingale_bernstein,
)
from hylorada.bounds.statements import WEIGHTS
from hylorada.units import Nats

DRAWS, DELTA = 2000, 0.1
FREE = Nats(0.0)
Bound = Callable[[np.ndarray, Nats], float]


def martingale(values: np.ndarray, complexity: Nats) -> float:
    return supermartingale_bernstein(values, complexity, lower=0.0, upper=1.0, delta=DELTA)


def bets(values: np.ndarray, complexity: Nats) -> float:
    return betting(values, complexity, upper=1.0, delta=DELTA)


WHOLE: dict[str, Bound] = {
    "finite_hypothesis": lambda v, c: finite_hypothesis(float(v.mean()), c, v.size, delta=DELTA),
    "kl_inverse": lambda v, c: kl_inverse_finite(float(v.mean()), c, v.size, delta=DELTA),
    "empirical_bernstein": lambda v, c: empirical_bernstein(v, c, delta=DELTA),
    "supermartingale_bernstein": martingale,
    "betting": bets,
}
STREAMS: dict[str, Bound] = {
    "azuma": lambda v, c: finite_hypothesis(float(v.mean()), c, v.size, delta=DELTA),
    "supermartingale_bernstein": martingale,
    "betting": bets,
}


def violations(
    bound: Bound, corpora: np.ndarray, truths: np.ndarray | float, complexity: Nats = FREE
) -> float:
    """Return the share of corpora whose bound lies below the truth.

    Corpora that differ in their order only have the same bound, except for the martingale's.
    """
    keys = np.arange(DRAWS) if bound is martingale else corpora.sum(axis=1)
    _, first, places = np.unique(keys, return_index=True, return_inverse=True)
    found = np.array([bound(corpora[index], complexity) for index in first])
    return float((found[places] < truths).mean())


def selected_coins(draws: np.random.Generator, models: int, count: int) -> np.ndarray:
    """Return the tosses of the luckiest of many fair coins, in random order, for every corpus."""
    ones = draws.binomial(count, 0.5, size=(DRAWS, models)).min(axis=1)
    tosses = (np.arange(count) < ones[:, None]).astype(np.float64)
    return draws.permuted(tosses, axis=1)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shape", ["coin", "rare", "skewed"])
def test_one_model_is_covered(name: str, shape: str) -> None:
    draws = np.random.default_rng(1)
    size = (DRAWS, 60)
    if shape == "skewed":
        corpora, truth = draws.beta(0.2, 0.8, size), 0.2
    else:
        truth = 0.5 if shape == "coin" else 0.03
        corpora = (draws.random(size) < truth).astype(np.float64)
    assert violations(WHOLE[name], corpora, truth) <= DELTA


@pytest.mark.parametrize("name", WHOLE)
def test_the_luckiest_of_many_models_is_covered_once_it_is_paid_for(name: str) -> None:
    models = 4096
    corpora = selected_coins(np.random.default_rng(2), models, 500)
    assert violations(WHOLE[name], corpora, 0.5, Nats(math.log(models))) <= DELTA
    # Without paying the same corpora break the bound: the test has teeth.
    assert violations(WHOLE[name], corpora, 0.5) > DELTA


@pytest.mark.parametrize("name", STREAMS)
def test_tokens_that_depend_on_their_past_are_covered(name: str) -> None:
    draws = np.random.default_rng(3)
    tokens = np.empty((DRAWS, 200))
    chances = np.empty_like(tokens)
    state = np.zeros(DRAWS)
    for step in range(tokens.shape[1]):
        chances[:, step] = 0.1 + 0.8 / (1 + np.exp(-state))  # each token raises the next's chance
        tokens[:, step] = draws.random(DRAWS) < chances[:, step]
        state = 0.9 * state + tokens[:, step] - 0.5
    truths = chances.mean(axis=1)
    assert violations(STREAMS[name], tokens, truths) <= DELTA


# Draws from a corpus


SUBSAMPLED: dict[str, Callable[[np.ndarray, int, Nats], float]] = {
    "finite_hypothesis": lambda v, n, c: finite_hypothesis(
        float(v.mean()), c, v.size, delta=DELTA, population=n
    ),
    "kl_inverse": lambda v, n, c: kl_inverse_finite(
        float(v.mean()), c, v.size, delta=DELTA, population=n
    ),
    "empirical_bernstein": lambda v, n, c: empirical_bernstein(v, c, delta=DELTA, population=n),
    "betting": lambda v, n, c: betting(v, c, upper=1.0, delta=DELTA, population=n),
}


@pytest.mark.parametrize("name", SUBSAMPLED)
def test_draws_from_a_selected_corpus_are_covered(name: str) -> None:
    models, population, sample = 256, 400, 200
    draws = np.random.default_rng(4)
    corpora = selected_coins(draws, models, population)
    picks = draws.integers(0, population, (DRAWS, sample))
    sampled = np.take_along_axis(corpora, picks, axis=1)

    def bound(values: np.ndarray, complexity: Nats) -> float:
        return SUBSAMPLED[name](values, population, complexity)

    assert violations(bound, sampled, 0.5, Nats(math.log(models))) <= DELTA


# Gains over a reference


def test_certified_gains_of_documents_are_covered_with_selection() -> None:
    """Short and long documents, on each of which a model gains or loses a bit a token by chance.

    Of many such models the one that gained most is picked; in truth all of them only lose.
    """
    models, half = 1000, 20
    draws = np.random.default_rng(6)
    lengths = np.repeat([2, 12], half)
    outcomes = np.array([2.0, -2.0, 12.0, -12.0])  # bits gained by a short or long document
    true_gain = {
        weight: float((-mixture_bits(-outcomes, np.zeros(4), weight) / [2, 2, 12, 12]).mean())
        for weight in WEIGHTS
    }
    wins = draws.binomial(half, 0.5, size=(DRAWS, models, 2))
    luckiest = wins.sum(axis=2).argmax(axis=1)
    kinds, places = np.unique(wins[np.arange(DRAWS), luckiest], axis=0, return_inverse=True)
    broken, flattered = [], []
    for kind in kinds:
        won = np.concatenate([np.arange(half) < count for count in kind])
        gain = relative_gain(
            np.where(won, -1.0, 1.0) * lengths,
            np.zeros(2 * half),
            lengths,
            Nats(math.log(models)),
            delta=DELTA,
        )
        broken.append(gain.certified > true_gain[gain.settings["weight"]])
        flattered.append(gain.measured > true_gain[gain.settings["weight"]])
    assert np.array(broken)[places].mean() <= DELTA
    assert np.array(flattered)[places].mean() > 0.9


def test_certified_gains_of_tokens_are_covered_with_selection() -> None:
    """Two tokens follow every context; the model bets on one of them without knowing better."""
    models, count = 100_000, 300
    draws = np.random.default_rng(7)
    bits = -np.log2([0.9, 0.1])
    true_gain = {
        weight: float(1 - mixture_bits(bits, np.ones(2), weight).mean()) for weight in WEIGHTS
    }
    # The luckiest of many binomial counts, by the quantile of the largest of uniform draws.
    largest = draws.random(DRAWS) ** (1 / models)
    hits, places = np.unique(binom.ppf(largest, count, 0.5), return_inverse=True)

    def broken(complexity: Nats) -> float:
        found = []
        for hit in hits:
            losses = np.where(np.arange(count) < hit, bits[0], bits[1])
            gain = relative_gain_of_tokens(losses, np.ones(count), complexity, delta=DELTA)
            found.append(gain.certified > true_gain[gain.settings["weight"]])
        return float(np.array(found)[places].mean())

    assert broken(Nats(math.log(models))) <= DELTA
    assert broken(FREE) > DELTA
