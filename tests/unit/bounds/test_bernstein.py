import math

import numpy as np
import pytest

from hylorada.bounds import (
    empirical_bernstein,
    loss_range,
    supermartingale_bernstein,
)
from hylorada.errors import SpecError
from hylorada.units import Bits, Nats, nats_from_bits


def test_empirical_bernstein_by_hand() -> None:
    # Mean 0.5, variance 1/3 over 4 values; c = 3 + ln 40.
    values = np.array([0.0, 0.0, 1.0, 1.0])
    cost = 3 + math.log(40)
    expected = 0.5 + math.sqrt(1 / 3) * math.sqrt(2 * cost / 4) + 7 * cost / 9
    assert empirical_bernstein(values, Nats(3.0)) == pytest.approx(expected)


@pytest.mark.parametrize(("deviation", "bound"), [(0.7, 11.263032), (1.0, 11.316971)])
def test_the_subsampled_form_of_the_audit(deviation: float, bound: float) -> None:
    drawn = np.repeat([-1.0, 1.0], 5_000)
    found = empirical_bernstein(
        10.6 + deviation * drawn / drawn.std(ddof=1),
        nats_from_bits(Bits(128_015)),
        loss_range(0.25, 50257),
        population=8_009_762,
    )
    assert found == pytest.approx(bound, abs=1e-5)


def test_a_subsample_never_bounds_better_than_the_whole() -> None:
    values = np.linspace(0, 1, 400)
    whole = empirical_bernstein(values, Nats(5.0))
    assert empirical_bernstein(values, Nats(5.0), population=400) > whole


def test_values_that_do_not_vary_are_bounded_by_their_count_alone() -> None:
    # Every prediction is exact: V = 0, so the largest rate is best and costs rho c / (0.98 N).
    values = np.full(1000, 0.5)
    rate = 1 / (1 + math.exp(-4))
    cost = 2.0 + math.log(20) + math.log(64)
    found = supermartingale_bernstein(values, Nats(2.0), lower=0.0, upper=1.0)
    assert found == pytest.approx(0.5 + cost / (rate * 1000))


def test_the_first_prediction_is_the_middle_and_the_next_follow_the_values() -> None:
    # Predictions 0.5, (0.5 + 1)/2 = 0.75; errors 0.5, 0.25.
    values = np.array([1.0, 1.0])
    rates = 1 / (1 + np.exp(-np.linspace(-12, 4, 64)))
    psi = -np.log1p(-rates) - rates
    cost = math.log(20) + math.log(64)
    expected = 1.0 + ((cost + psi * 0.3125) / (2 * rates)).min()
    found = supermartingale_bernstein(values, Nats(0.0), lower=0.0, upper=1.0)
    assert found == pytest.approx(expected)


def test_a_value_may_lie_below_every_prediction() -> None:
    values = np.concatenate([np.zeros(999), [-50.0]])
    assert math.isfinite(supermartingale_bernstein(values, Nats(0.0), lower=-1.0, upper=1.0))


def test_a_value_above_the_end_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no value may exceed upper, 1.0; got 1.5"):
        supermartingale_bernstein(np.array([0.0, 1.5]), Nats(0.0), lower=0.0, upper=1.0)


def test_one_value_has_no_variance() -> None:
    with pytest.raises(SpecError, match="at least 2; got 1"):
        empirical_bernstein(np.array([0.5]), Nats(0.0))


def test_losses_without_a_bound_are_refused() -> None:
    with pytest.raises(SpecError, match="every value must be finite"):
        empirical_bernstein(np.array([0.5, math.inf]), Nats(0.0))
