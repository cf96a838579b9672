import math

import numpy as np
import pytest

from hylorada.bounds import (
    bet,
    betting,
    empirical_bernstein,
    kl_inverse_finite,
    supermartingale_bernstein,
)
from hylorada.bounds.betting import STAKES
from hylorada.errors import SpecError
from hylorada.units import Nats


def test_equal_values_lose_the_budget_over_the_count() -> None:
    # mean ln(1 + s) = ln(1 + s), so the bound is ((1 + s) e^-cost - 1) / s, best at the largest s.
    cost = (3.0 + math.log(64)) / 100
    stake = float(STAKES[-1])
    found = bet(np.ones(100), Nats(3.0))
    assert found.settings == {"stake": stake}
    assert found.mean_at_least == pytest.approx(((1 + stake) * math.exp(-cost) - 1) / stake)


def test_a_bet_reads_every_value_by_hand() -> None:
    values = np.array([0.0, 1.0, 2.0, 5.0])
    cost = (0.5 + math.log(64)) / 4
    expected = max((math.exp(np.log1p(s * values).mean() - cost) - 1) / s for s in STAKES)
    assert bet(values, Nats(0.5)).mean_at_least == pytest.approx(max(0.0, expected))


def test_a_stake_picked_by_some_of_many_values_is_as_good_as_the_best() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=2**18)
    budget = 1000.0
    cost = (budget + math.log(64)) / values.size
    best = max(math.expm1(np.log1p(s * values).mean() - cost) / s for s in STAKES)
    assert bet(values, Nats(budget)).mean_at_least == pytest.approx(best, rel=1e-4)


def test_single_precision_is_added_up_in_double() -> None:
    values = np.full(3 * 2**20, 0.1, dtype=np.float32)
    assert bet(values, Nats(0.0)).mean_at_least == pytest.approx(0.1, rel=1e-4)


def test_values_far_above_the_mean_do_not_loosen_it() -> None:
    values = np.full(1000, 1.0)
    values[0] = 1e6
    assert bet(values, Nats(5.0)).mean_at_least >= bet(values[1:], Nats(5.0)).mean_at_least


def test_a_budget_beyond_the_data_certifies_nothing() -> None:
    assert bet(np.ones(10), Nats(1e6)).mean_at_least == 0.0
    assert betting(np.full(10, 0.2), Nats(1e6), upper=1.0) == 1.0


def test_coins_are_bounded_nearly_as_tightly_as_chernoff_allows() -> None:
    coins = np.zeros(2000)
    coins[:300] = 1.0
    chernoff = kl_inverse_finite(0.15, Nats(200.0 + math.log(64)), 2000)
    assert betting(coins, Nats(200.0), upper=1.0) == pytest.approx(chernoff, abs=2e-3)


def test_small_variance_and_large_range_favour_the_bet() -> None:
    losses = 5.0 + 0.5 * np.sin(np.arange(40_000.0))
    complexity = Nats(1500.0)
    bet_bound = betting(losses, complexity, upper=18.8)
    assert bet_bound < empirical_bernstein(losses, complexity, 18.8)
    assert bet_bound < supermartingale_bernstein(losses, complexity, lower=0.0, upper=18.8)


def test_draws_from_a_corpus_bound_less_than_the_corpus() -> None:
    losses = 0.5 + 0.1 * np.cos(np.arange(5000.0))
    whole = betting(losses, Nats(50.0), upper=1.0)
    drawn = betting(losses, Nats(50.0), population=5000, upper=1.0)
    assert whole < drawn < 1.0


def test_a_large_corpus_leaves_the_step_to_the_draws() -> None:
    losses = 0.5 + 0.1 * np.cos(np.arange(5000.0))
    drawn = betting(losses, Nats(1000.0), population=10**12, upper=1.0)
    assert drawn == pytest.approx(betting(losses, Nats(math.log(64)), upper=1.0), abs=5e-3)


def test_comparing_more_on_the_same_draws_costs_more() -> None:
    losses = 0.5 + 0.1 * np.cos(np.arange(500.0))
    one = betting(losses, Nats(5.0), population=5000, upper=1.0)
    assert betting(losses, Nats(5.0), population=5000, upper=1.0, compared=100) > one


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, -0.1], "not negative; got -0.1"),
        ([], "the number of values must be at least 1"),
        ([1.0, math.nan], "must be finite"),
    ],
)
def test_a_bet_refuses_other_values(values: list[float], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        bet(np.array(values), Nats(1.0))


def test_a_value_above_the_end_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no value may exceed upper, 1.0; got 2.0"):
        betting(np.array([2.0]), Nats(1.0), upper=1.0)


def test_a_corpus_has_documents() -> None:
    with pytest.raises(SpecError, match="population must be at least 1; got 0"):
        betting(np.ones(3), Nats(1.0), population=0, upper=1.0)
