import math
import subprocess
import sys

import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.evaluation.statistics import (
    bootstrap_estimate,
    mean_estimate,
    params_per_percent,
    proportion_estimate,
    ratio_estimate,
)
from hylorada.records.evaluations import Estimate


def test_mean_of_1_2_3_has_the_t_interval_of_two_degrees_of_freedom() -> None:
    estimate = mean_estimate(np.array([1.0, 2.0, 3.0]))
    error = 1 / math.sqrt(3)
    assert estimate.value == pytest.approx(2.0)
    assert estimate.standard_error == pytest.approx(error)
    assert estimate.interval == pytest.approx((2 - 4.302653 * error, 2 + 4.302653 * error))


def test_ratio_weights_clusters_by_their_size() -> None:
    estimate = ratio_estimate(np.array([10.0, 2.0]), np.array([9.0, 1.0]))
    # Residuals 10 - 1.2*9 and 2 - 1.2, so the error is sqrt(2 * (0.64 + 0.64)) / 10.
    assert estimate.value == pytest.approx(1.2)
    assert estimate.standard_error == pytest.approx(0.16)


def test_one_cluster_has_a_value_and_no_interval() -> None:
    estimate = mean_estimate(np.array([3.0]))
    assert estimate == Estimate(value=3.0, standard_error=None, interval=None, clusters=1)
    assert estimate.exponential().interval is None
    assert estimate.scaled(2.0).standard_error is None


def test_repeating_every_cluster_entry_narrows_the_interval_only_if_clusters_are_new() -> None:
    few = ratio_estimate(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    larger = ratio_estimate(np.array([10.0, 30.0]), np.array([10.0, 10.0]))
    assert larger.standard_error == pytest.approx(few.standard_error)


def test_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="non-empty"):
        ratio_estimate(np.array([]), np.array([]))


def test_ratio_over_zero_is_refused() -> None:
    with pytest.raises(SpecError, match="sum to zero"):
        ratio_estimate(np.array([1.0]), np.array([0.0]))


def test_exponential_maps_the_ends_and_scales_the_error() -> None:
    estimate = Estimate(value=1.0, standard_error=0.1, interval=(0.5, 1.5), clusters=4)
    raised = estimate.exponential()
    assert raised.value == pytest.approx(math.e)
    assert raised.standard_error == pytest.approx(0.1 * math.e)
    assert raised.interval == pytest.approx((math.exp(0.5), math.exp(1.5)))


def test_scaling_changes_the_unit_of_everything() -> None:
    estimate = Estimate(value=1.0, standard_error=0.1, interval=(0.5, 1.5), clusters=4)
    assert estimate.scaled(2.0) == Estimate(
        value=2.0, standard_error=0.2, interval=(1.0, 3.0), clusters=4
    )


def test_wilson_interval_of_no_success_in_ten_reaches_28_percent() -> None:
    estimate = proportion_estimate(0, 10)
    assert estimate.value == 0.0
    assert estimate.interval == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_wilson_interval_of_half_is_symmetric() -> None:
    low, high = proportion_estimate(5, 10).interval or (0.0, 0.0)
    assert low + high == pytest.approx(1.0)
    assert low == pytest.approx(0.2366, abs=1e-4)


def test_more_successes_than_trials_are_refused() -> None:
    with pytest.raises(SpecError, match="3 of 2"):
        proportion_estimate(3, 2)


def test_t_interval_covers_the_truth_95_times_in_100() -> None:
    draws = np.random.default_rng(0).exponential(size=(2000, 30))
    intervals = [mean_estimate(row).interval for row in draws]
    covered = np.mean([ends is not None and ends[0] <= 1.0 <= ends[1] for ends in intervals])
    assert 0.90 < covered < 0.97


def test_bootstrap_of_a_mean_agrees_with_its_standard_error() -> None:
    rows = np.random.default_rng(1).normal(size=(200, 1))
    estimate = bootstrap_estimate(rows, lambda sample: float(sample.mean()), seed=0)
    assert estimate.standard_error == pytest.approx(rows.std(ddof=1) / math.sqrt(200), rel=0.1)
    assert estimate == bootstrap_estimate(rows, lambda sample: float(sample.mean()), seed=0)


def test_bootstrap_of_one_cluster_has_no_interval() -> None:
    estimate = bootstrap_estimate(np.ones((1, 2)), lambda sample: float(sample.sum()), seed=0)
    assert (estimate.value, estimate.interval) == (2.0, None)


def test_bootstrap_without_rows_is_refused() -> None:
    with pytest.raises(SpecError, match="at least 1 row"):
        bootstrap_estimate(np.ones((0, 2)), lambda sample: 0.0, seed=0)


def test_9473_parameters_for_3_5_percent_cost_2707_a_percent() -> None:
    assert params_per_percent(9473, 100.0, 96.5) == pytest.approx(9473 / 3.5)


def test_a_component_without_gain_has_no_price() -> None:
    assert params_per_percent(10, 20.0, 20.0) is None


def test_a_perplexity_of_zero_is_refused() -> None:
    with pytest.raises(SpecError, match="positive"):
        params_per_percent(10, 0.0, 20.0)


def test_statistics_need_no_torch() -> None:
    command = "import sys, hylorada.evaluation.statistics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
