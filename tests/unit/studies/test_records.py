"""Averages over seeds, and the noise of the text in paired differences."""

import math

import numpy as np
import pytest

from hylorada.cli.tables import change
from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate
from hylorada.records.runs import RunCost
from hylorada.specs.study import StudyOptions
from hylorada.studies.components import baseline
from hylorada.studies.results import ArmRuns, FinishedRun, cost, over_seeds, paired_error
from tests.small_study import finished_run


def run(seed: int, nats: list[float]) -> FinishedRun:
    return finished_run(seed, sum(nats) / (10 * len(nats)), nats=nats)


def arm(*runs: FinishedRun) -> ArmRuns:
    return ArmRuns(baseline(StudyOptions()), runs)


def estimate(value: float, error: float | None) -> Estimate:
    return Estimate(value=value, standard_error=error)


def test_the_noise_of_the_text_does_not_average_out_over_seeds() -> None:
    found = over_seeds([estimate(1.0, 0.1)] * 4)
    assert found.value == 1.0
    assert found.interval == pytest.approx([1 - 0.196, 1 + 0.196], abs=1e-4)


def test_the_spread_of_seeds_is_added() -> None:
    estimates = [estimate(value, 0.0) for value in (1.0, 3.0)]
    reach = 12.706  # the t quantile with one degree of freedom, times a standard error of 1
    assert over_seeds(estimates).interval == pytest.approx([2 - reach, 2 + reach], abs=1e-3)


def test_without_an_error_there_is_no_interval() -> None:
    assert over_seeds([estimate(1.0, None)]).interval is None


def test_one_seed_has_the_noise_of_the_text_alone() -> None:
    found = over_seeds([estimate(1.0, 0.5)])
    assert found.interval == pytest.approx([0.02, 1.98], abs=1e-2)


def test_perplexities_are_averaged_by_their_logarithms() -> None:
    found = arm(run(1, [10.0]), run(2, [30.0])).perplexity()
    assert found.by_seed == pytest.approx([math.e, math.e**3])
    assert found.value == pytest.approx(math.e**2)
    assert found.interval is not None
    assert found.value is not None
    assert found.interval[0] < found.value < found.interval[1]


def test_equal_differences_in_every_document_have_no_error() -> None:
    base, other = arm(run(1, [10.0, 20.0, 60.0])), arm(run(1, [9.0, 19.0, 59.0]))
    assert paired_error([other], [base]) == pytest.approx(0.0, abs=1e-12)


def test_unequal_differences_have_the_error_of_their_mean() -> None:
    base, other = arm(run(1, [10.0, 20.0, 60.0])), arm(run(1, [10.0, 21.0, 62.0]))
    differences = np.array([0.0, 0.1, 0.2])  # nats per token of each document
    expected = differences.std(ddof=1) / math.sqrt(3)
    assert paired_error([other], [base]) == pytest.approx(expected)


def test_a_single_document_tells_nothing_of_the_noise() -> None:
    with pytest.raises(SpecError, match="at least two test documents or blocks"):
        paired_error([arm(run(1, [9.0]))], [arm(run(1, [10.0]))])


def test_costs_are_means_and_largest_sizes_where_they_are_known() -> None:
    def timed(seconds: float | None, memory: int | None) -> FinishedRun:
        measured = RunCost(train_seconds=seconds, peak_memory_bytes=memory, adapter_bytes=5)
        return finished_run(cost=measured)

    found = cost([timed(1.0, 7), timed(3.0, 9), timed(None, None)])
    assert found == RunCost(train_seconds=2.0, peak_memory_bytes=9, adapter_bytes=5)


def test_a_gain_is_shown_as_a_change_of_perplexity() -> None:
    assert change(Estimate(value=2.0, interval=(1.5, 2.5))) == "-2.00 % [-2.50, -1.50]"
    assert change(Estimate(value=-1.0)) == "+1.00 %"
