"""Self-checks must be able to fail."""

from dataclasses import replace
from typing import Any

import pytest

from hylorada.records.runs import FutureLeak
from hylorada.records.studies import TriedRate
from hylorada.specs.study import StudyOptions
from hylorada.studies.checks import (
    adapters_are_float32,
    best_rates_are_inside,
    every_position_is_text,
    everything_trained,
    no_token_sees_the_future,
    repetition_is_noise,
    same_seed_same_numbers,
    self_checks,
)
from hylorada.studies.components import baseline
from hylorada.studies.plan import ArmPlan
from hylorada.studies.results import ArmRuns, FinishedRun
from hylorada.verdicts import Arm, judge
from tests.small_study import finished_run


def arm(*runs: FinishedRun, precision: Any = "float32") -> ArmRuns:
    plan: ArmPlan = baseline(StudyOptions())
    training = replace(plan.config.training, precision=precision)
    return ArmRuns(replace(plan, config=replace(plan.config, training=training)), runs)


def test_the_same_numbers_agree_exactly() -> None:
    found = same_seed_same_numbers(finished_run(), finished_run())
    assert (found.passed, found.detail) == (True, "seed 1 run again agrees exactly")


@pytest.mark.parametrize(("difference", "passed"), [(1e-5, True), (4e-4, True), (1e-3, False)])
def test_a_difference_of_half_a_thousandth_is_too_much(difference: float, passed: bool) -> None:
    found = same_seed_same_numbers(finished_run(), finished_run(loss=3.0 + difference))
    assert found.passed is passed
    assert "of the perplexity" in str(found.detail)


def test_a_parameter_that_did_not_train_fails_the_study() -> None:
    found = everything_trained(
        [arm(finished_run(), finished_run(2, audit="1 of 3 did not train: scale"))]
    )
    assert not found.passed
    assert found.detail == "rsLoRA, seed 2: 1 of 3 did not train: scale"


def test_data_that_is_mostly_padding_fails() -> None:
    found = every_position_is_text([arm(finished_run(valid_share=0.081))])
    assert not found.passed
    assert "8.1%" in str(found.detail)


def test_an_adapter_in_bfloat16_fails() -> None:
    assert not adapters_are_float32([arm(finished_run(adapter_dtypes=["BF16", "F32"]))]).passed
    assert adapters_are_float32([arm(finished_run())]).passed


@pytest.mark.parametrize(
    ("change", "precision", "passed"),
    [
        (1e-4, "float32", True),
        (1e-2, "float32", False),
        (1e-2, "autocast", True),
        (1.0, "bfloat16", False),
    ],
)
def test_a_leak_is_measured_by_the_size_of_the_logits(
    change: float, precision: str, passed: bool
) -> None:
    leak = FutureLeak(largest_change=change, largest_logit=10.0)
    found = no_token_sees_the_future([arm(finished_run(future_leak=leak), precision=precision)])
    assert found.passed is passed


@pytest.mark.parametrize(("gain", "passed"), [(0.0, True), (0.05, False), (-0.05, False)])
def test_a_repetition_that_helps_or_harms_fails(gain: float, passed: bool) -> None:
    noise = (0.0, 1e-4, -1e-4)
    arms = [
        Arm(name="base", role="baseline", log_perplexities=(3.0, 3.0, 3.0)),
        Arm(name="A/A", role="self_check", log_perplexities=tuple(3.0 - gain + n for n in noise)),
    ]
    found = repetition_is_noise(judge(arms, baseline="base").verdict("A/A"))
    assert found.passed is passed


def curve(chosen: int) -> list[TriedRate]:
    return [TriedRate(rate=1.0, loss=1.0, chosen=number == chosen) for number in range(3)]


def test_a_best_rate_at_the_end_of_its_grid_is_named() -> None:
    found = best_rates_are_inside({"low": curve(0), "inside": curve(1), "high": curve(2)})
    assert (found.passed, found.detail) == (False, "at the end: low, high")
    assert best_rates_are_inside({"inside": curve(1)}).passed


def test_a_sound_study_passes_every_check() -> None:
    for tuning, count in (({}, 5), ({"one": curve(1)}, 6)):
        found = self_checks([arm(finished_run())], [], (finished_run(), finished_run()), tuning)
        assert len(found) == count
        assert all(check.passed for check in found)
