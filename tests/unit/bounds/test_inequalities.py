"""Every inequality: valid, comparable, and refused where it does not hold."""

import math

import numpy as np
import pytest

from hylorada.bounds import (
    INEQUALITIES,
    Sample,
    payment,
    relative_gain,
    relative_gain_of_tokens,
    statements,
)
from hylorada.errors import SpecError
from hylorada.units import Nats
from tests.unit.bounds.losses import issued, losses

DRAWS, DELTA = 300, 0.1
OF_TOKENS = [one.name for one in INEQUALITIES.values() if one.of_tokens is not None]


def heavy_tailed(draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return values of mean 1 that no number bounds: most are small, some are large."""
    return draws.gamma(0.25, 4.0, shape)


def test_they_are_listed_in_the_order_of_their_modules_with_the_bet_first() -> None:
    here = [name for name in INEQUALITIES if INEQUALITIES.origin(name) is None]
    modules = [module.rpartition(".")[2] for module in INEQUALITIES.modules]
    assert [name.replace("-", "_") for name in here] == modules
    assert here[0] == "betting"


@pytest.mark.parametrize("name", INEQUALITIES)
def test_the_true_mean_of_documents_is_covered(name: str) -> None:
    corpora = heavy_tailed(np.random.default_rng(0), (DRAWS, 300))
    bound = INEQUALITIES[name].at("document")
    found = [bound(Sample(values=v), Nats(0.0), DELTA).mean_at_least for v in corpora]
    assert np.mean(np.array(found) > 1.0) <= DELTA
    assert np.mean(found) > 0.2


@pytest.mark.parametrize("name", INEQUALITIES)
def test_draws_of_the_luckiest_model_are_covered_once_it_is_paid_for(name: str) -> None:
    models, population = 64, 100
    draws = np.random.default_rng(1)
    bound = INEQUALITIES[name].at("document")
    broken = []
    for _ in range(DRAWS // 2):
        corpora = heavy_tailed(draws, (models, population))
        luckiest = corpora[corpora.mean(axis=1).argmax()]
        values = draws.choice(luckiest, population)
        sample = Sample(values=values, population=population)
        broken.append(bound(sample, Nats(math.log(models)), DELTA).mean_at_least > 1.0)
    assert np.mean(broken) <= DELTA


@pytest.mark.parametrize("name", OF_TOKENS)
def test_tokens_that_depend_on_their_past_are_covered(name: str) -> None:
    draws = np.random.default_rng(2)
    tokens, means = np.empty((DRAWS, 150)), np.empty((DRAWS, 150))
    state = np.zeros(DRAWS)
    for step in range(tokens.shape[1]):
        means[:, step] = 0.2 + 2 / (1 + np.exp(-state))  # each value raises the next's mean
        tokens[:, step] = draws.exponential(means[:, step])
        state = 0.9 * state + tokens[:, step] - means[:, step]
    bound = INEQUALITIES[name].at("token")
    found = [bound(Sample(values=v), Nats(0.0), DELTA).mean_at_least for v in tokens]
    assert np.mean(np.array(found) > means.mean(axis=1)) <= DELTA


@pytest.mark.parametrize("name", INEQUALITIES)
@pytest.mark.parametrize("population", [None, 5000])
def test_a_known_end_is_used_and_the_mean_stays_above_the_bound(
    name: str, population: int | None
) -> None:
    values = np.random.default_rng(3).beta(5.0, 1.0, 2000)
    sample = Sample(values=values, upper=1.0, population=population)
    found = INEQUALITIES[name].at("document")(sample, Nats(10.0), 0.05)
    assert 0.5 < found.mean_at_least < values.mean()


@pytest.mark.parametrize("name", INEQUALITIES)
def test_what_nothing_can_pay_bounds_nothing(name: str) -> None:
    found = INEQUALITIES[name].at("document")(Sample(values=np.ones(10)), Nats(1e6), 0.05)
    assert found.mean_at_least == 0.0


def test_many_values_choose_their_cap_by_some_of_them() -> None:
    values = np.random.default_rng(4).gamma(4.0, 0.25, 2**17)
    found = INEQUALITIES["hoeffding"].at("token")(Sample(values=values), Nats(1000.0), 0.05)
    caps = (
        cap * (1 - (1 - np.minimum(values, cap) / cap).mean() - math.sqrt(cost / (2 * values.size)))
        for cap in 2.0 ** (np.arange(-12, 12) / 2)
        for cost in [1000.0 + math.log(24) + math.log(20)]
    )
    assert found.mean_at_least == pytest.approx(max(caps), rel=1e-3)


@pytest.mark.parametrize("level", ["document", "token"])
def test_the_bet_certifies_the_largest_gain(level: str) -> None:
    able = INEQUALITIES if level == "document" else OF_TOKENS
    gains = {name: issued(losses(), level=level, inequality=name).headline.bound for name in able}
    assert max(gains, key=lambda name: gains[name]) == "betting"
    assert all(gain > 0 for gain in gains.values())


@pytest.mark.parametrize("name", INEQUALITIES)
def test_every_statement_lies_on_its_side_of_what_was_measured(name: str) -> None:
    for one in statements(losses(), payment(200), level="document", inequality=name):
        assert (one.bound < one.measured) == (one.name == "gain")


def test_documents_and_tokens_pass_their_inequality_on() -> None:
    found = losses()
    assert found.frozen is not None
    adapted, frozen = found.of_documents(found.adapted), found.of_documents(found.frozen)
    of_documents = relative_gain(adapted, frozen, found.lengths, Nats(9.0), inequality="kl-inverse")
    of_tokens = relative_gain_of_tokens(
        found.adapted, found.frozen, Nats(9.0), inequality="empirical-bernstein"
    )
    assert of_documents.settings.keys() == of_tokens.settings.keys() == {"weight", "cap"}


# Refusals


def test_an_inequality_for_independent_values_is_refused_at_token_level() -> None:
    with pytest.raises(SpecError, match="kl-inverse needs independent values, which tokens are"):
        issued(losses(50), level="token", inequality="kl-inverse")


def test_an_unknown_inequality_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown inequality 'beting'; did you mean 'betting'"):
        issued(losses(50), inequality="beting")
