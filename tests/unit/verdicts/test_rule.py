"""The rule itself, on studies whose truth is known; `benchmarks` holds the long simulation."""

import math

import numpy as np
import pytest
from benchmarks.verdict_simulation import NOISES, judged_cell, study_cell
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit
from scipy.stats import nct

from hylorada.errors import SpecError
from hylorada.verdicts.intervals import (
    Differences,
    Pool,
    paired_differences,
    pool,
    simultaneous_ends,
)
from hylorada.verdicts.labels import VerdictSpec, effect_nats, gain_percent, labels
from hylorada.verdicts.power import judged_ends, judged_labels, power

SPEC = VerdictSpec()
# Strong from 0.02 nats on, harmful from -0.005 nats on.
IN_NATS = VerdictSpec(strong=-math.expm1(-0.02), minimal=math.expm1(0.005))
STUDIES = 600
# Three standard errors above 5 % of 600 studies; the plain pooled rule errs in 10 to 25 % of them.
TOO_OFTEN = 0.05 + 3 * math.sqrt(0.05 * 0.95 / STUDIES)


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("noise", NOISES)
def test_no_kind_of_noise_makes_arms_without_effect_help(noise: str, seeds: int) -> None:
    cell = study_cell(noise, STUDIES, 10, seeds, 0.05, (0.0,), 0)
    assert cell["wrong_help"] <= TOO_OFTEN
    assert 1 - cell["coverage"] <= TOO_OFTEN


@pytest.mark.parametrize("effects", [(0.05, 0.0), (0.025, 0.025, 0.0), (0.06, 0.015, 0.0, -0.03)])
def test_intervals_cover_true_effects_while_the_step_down_steps(effects: tuple[float, ...]) -> None:
    cell = study_cell("equal", STUDIES, 4, 5, 0.005, effects, 0)
    assert 1 - cell["coverage"] <= TOO_OFTEN
    assert cell["wrong_label"] <= TOO_OFTEN


def test_the_simulation_would_notice_a_rule_without_adjustment() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(STUDIES, 10, 5))
    compared = differences(values)
    reach = compared.reach(np.full(compared.effects.shape, compared.unadjusted))
    assert (abs(compared.effects) > reach).any(1).mean() > TOO_OFTEN


def test_the_simulation_would_notice_that_a_wild_arm_borrows_from_the_pool() -> None:
    values = np.random.default_rng(0).normal(size=(STUDIES, 10, 5))
    values[:, -1] *= 10
    reach = stdtrit(36, 1 - 0.025 / 9) * np.sqrt(2 * mean_square(values) / 5)
    effects = (values[:, :1] - values[:, 1:]).mean(-1)
    assert (abs(effects) > reach[:, None]).any(1).mean() > TOO_OFTEN


def mean_square(values: np.ndarray) -> np.ndarray:
    """The residual mean square of the two-way table, written out."""
    rows, columns = values.mean(2, keepdims=True), values.mean(1, keepdims=True)
    residuals = values - rows - columns + values.mean((1, 2), keepdims=True)
    degrees = (values.shape[1] - 1) * (values.shape[2] - 1)
    return np.asarray((residuals**2).sum((1, 2)) / degrees)


def test_one_study_and_many_at_once_get_the_same_labels() -> None:
    cell = judged_cell(0, studies=8)
    assert cell["same_labels"] == cell["studies"]


def differences(values: np.ndarray, members: np.ndarray | None = None) -> Differences:
    inside = np.ones(values.shape[:2], dtype=bool) if members is None else members
    return paired_differences(
        values,
        pool(values, inside),
        first=0,
        others=list(range(1, values.shape[1])),
        errors=np.zeros((values.shape[0], values.shape[1] - 1)),
        error_degrees=math.inf,
        confidence=0.95,
    )


def test_pooled_variance_is_twice_the_residual_mean_square_of_the_two_way_table() -> None:
    table = np.array([[[1.0, 2.0, 3.0], [1.5, 2.0, 4.0], [0.0, 1.0, 5.0]]])
    pooled = pool(table, np.ones((1, 3), dtype=bool))
    assert pooled.mean_square == pytest.approx(mean_square(table))
    assert pooled.size.tolist() == [3]


def test_pooled_variance_is_no_smaller_than_the_mean_of_the_arms_own() -> None:
    noisy_baseline = np.array([[[0.0, 9.0, -9.0], [0.1, 0.0, 0.2], [0.0, 0.2, 0.1]]])
    compared = differences(noisy_baseline)
    assert compared.pooled_variance[0, 0] == pytest.approx(compared.own_variance.mean())
    assert (
        compared.pooled_variance[0, 0]
        > 2 * pool(noisy_baseline, np.ones((1, 3), dtype=bool)).mean_square.item()
    )


def test_an_arm_outside_the_pool_has_its_own_t_bound() -> None:
    values = np.random.default_rng(1).normal(size=(1, 4, 3))
    members = np.array([[True, True, True, False]])
    compared = differences(values, members)
    tail = np.full((1, 3), 0.01)
    own = stdtrit(2, 0.99) * math.sqrt(compared.own_variance[0, 2] / 3)
    assert compared.reach(tail)[0, 2] == pytest.approx(own)
    assert compared.pooled.tolist() == [[True, True, False]]


@pytest.mark.parametrize(("sharing", "restrained"), [(1, 1), (2, 2), (6, 3), (9, 3), (25, 5)])
def test_an_arms_own_bound_is_adjusted_for_a_few_arms(sharing: int, restrained: int) -> None:
    noisy = Differences(
        effects=np.zeros((1, 1)),
        own_variance=np.ones((1, 1)),
        pooled_variance=np.zeros((1, 1)),
        pooled=np.ones((1, 1), dtype=bool),
        pool_size=np.full((1, 1), 5),
        errors=np.zeros((1, 1)),
        error_degrees=math.inf,
        seeds=4,
        unadjusted=0.025,
    )
    reach = noisy.reach(np.array([[0.025 / sharing]])).item()
    assert reach == pytest.approx(-stdtrit(3, 0.025 / restrained) / 2)


def exact(effects: list[float]) -> Differences:
    """Effects with a known standard error of 0.001 nats."""
    shape = (1, len(effects))
    return Differences(
        effects=np.array([effects]),
        own_variance=np.zeros(shape),
        pooled_variance=np.zeros(shape),
        pooled=np.zeros(shape, dtype=bool),
        pool_size=np.full((1, 1), 1),
        errors=np.full(shape, 0.001),
        error_degrees=math.inf,
        seeds=3,
        unadjusted=0.025,
    )


def test_open_arms_share_the_error_probability_equally() -> None:
    ends = simultaneous_ends(exact([0.0, 0.001, 0.002]), IN_NATS)
    assert ends.low_tail == pytest.approx(0.025 / 3)
    assert ends.high_tail == pytest.approx(0.025 / 3)
    # The upper 1/120 point of the normal distribution is 2.39398.
    assert ends.low[0].tolist() == pytest.approx([-0.00239398, -0.00139398, -0.00039398])


def test_a_settled_arm_hands_four_fifths_of_its_share_on() -> None:
    ends = simultaneous_ends(exact([0.0, 0.001, 0.05]), IN_NATS)
    assert ends.low_tail[0].tolist() == pytest.approx([0.025 / 3 * 1.4, 0.025 / 3 * 1.4, 0.005 / 3])
    assert ends.low_tail.sum() == pytest.approx(0.025)
    assert ends.high_tail == pytest.approx(0.025 / 3)


def test_an_arm_settled_by_what_others_handed_on_is_said_to_reach_the_threshold() -> None:
    reach = 0.00227  # Between the reaches at 1.4/3 and at 1/3 of the error probability.
    ends = simultaneous_ends(exact([0.0, 0.02 + reach, 0.05]), IN_NATS)
    assert ends.low[0, 1] == pytest.approx(0.02, abs=1e-15)
    alone = simultaneous_ends(exact([0.0, 0.02 + reach, 0.0]), IN_NATS)
    assert alone.low[0, 1] < 0.0199


def test_when_all_arms_are_settled_each_keeps_its_share() -> None:
    ends = simultaneous_ends(exact([0.04, 0.05]), IN_NATS)
    assert ends.low_tail == pytest.approx(0.0125)


def test_harmful_arms_step_down_on_the_other_side() -> None:
    ends = simultaneous_ends(exact([-0.05, 0.0]), IN_NATS)
    assert ends.high_tail[0].tolist() == pytest.approx([0.0025, 0.0225])
    assert ends.high[0, 0] < -0.005


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=9))
def test_error_probabilities_never_exceed_the_budget(effects: list[float]) -> None:
    ends = simultaneous_ends(exact(effects), IN_NATS)
    assert ends.low_tail.sum() <= 0.025 + 1e-12
    assert ends.high_tail.sum() <= 0.025 + 1e-12
    assert (ends.low <= np.array(effects)).all()
    assert (ends.high >= np.array(effects)).all()


def test_an_interval_that_ends_on_a_threshold_has_its_label() -> None:
    low = gain_percent(np.array([effect_nats(share) for share in (0.02, 0.01, 0.005, -0.005)]))
    high = gain_percent(np.array([effect_nats(share) for share in (0.5, 0.5, 0.5, 0.005)]))
    assert labels(low, high, SPEC).tolist() == ["A", "B", "C", "D"]


@pytest.mark.parametrize(("effect", "sd", "seeds"), [(0.03, 0.003, 3), (0.025, 0.005, 8)])
def test_power_of_a_single_comparison_is_that_of_the_noncentral_t(
    effect: float, sd: float, seeds: int
) -> None:
    distance = (effect_nats(effect) - effect_nats(0.02)) / sd * math.sqrt(seeds)
    expected = nct.sf(stdtrit(seeds - 1, 0.975), seeds - 1, distance)
    assert power(effect, sd, seeds, 2)["A"] == pytest.approx(expected, abs=0.015)


def test_power_is_the_share_of_labels_in_other_draws() -> None:
    random = np.random.default_rng(9)
    values = random.normal(3.0, 0.005 / math.sqrt(2), (3000, 4, 5)) + random.normal(
        size=(3000, 1, 5)
    )
    values[:, 1] -= effect_nats(0.02)
    found = judged_labels(values, np.zeros((3000, 3)), SPEC)[:, 0]
    for label, stated in power(0.02, 0.005, 5, 4).items():
        assert stated == pytest.approx((found == label).mean(), abs=0.03)


def test_probabilities_of_all_labels_sum_to_one_and_grow_with_seeds() -> None:
    few, many = (power(0.03, 0.005, seeds, 4, draws=2000) for seeds in (3, 8))
    assert sum(few.values()) == pytest.approx(1.0)
    assert many["A"] > few["A"]


def test_document_noise_costs_power() -> None:
    quiet = power(0.03, 0.002, 5, 4, draws=2000)["A"]
    assert power(0.03, 0.002, 5, 4, evaluation_error=0.01, draws=2000)["A"] < quiet


@pytest.mark.parametrize(
    ("effect", "sd", "seeds", "arms"), [(0.1, 0.1, 1, 4), (0.1, 0.1, 3, 1), (0.1, -1.0, 3, 4)]
)
def test_power_of_an_impossible_study_is_refused(
    effect: float, sd: float, seeds: int, arms: int
) -> None:
    with pytest.raises(SpecError, match="got"):
        power(effect, sd, seeds, arms)


def test_intervals_do_not_depend_on_the_seeds_own_level() -> None:
    values = np.random.default_rng(2).normal(size=(5, 4, 3))
    raised = values + 7 * np.array([1.0, -2.0, 3.0])
    errors = np.zeros((5, 3))
    ends, same = (judged_ends(one, errors, SPEC) for one in (values, raised))
    assert ends.low == pytest.approx(same.low)
    assert ends.high == pytest.approx(same.high)


def test_a_pool_without_members_says_nothing() -> None:
    nobody = Pool(members=np.zeros((1, 2), dtype=bool), mean_square=np.zeros(1))
    assert nobody.size.tolist() == [0]
