"""Self-checks must be able to fail."""

from dataclasses import replace
from typing import Any

import pytest

from hylorada.experiments.job import Address
from hylorada.experiments.studies.checks import (
    adapters_are_float32,
    best_rates_are_inside,
    every_position_is_text,
    everything_trained,
    no_token_sees_the_future,
    repetition_is_noise,
    same_seed_same_numbers,
    self_checks,
)
from hylorada.experiments.studies.components import baseline
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import ArmPlan
from hylorada.experiments.studies.records import ArmRecord, RunRecord
from hylorada.verdicts import Arm, judge


def record(seed: int = 1, loss: float = 3.0, **measured: Any) -> RunRecord:
    evaluation = {
        "metrics": {"ppl": {"tokens": 1000, "loss": {"value": loss}}},
        "valid_share": 1.0,
        "adapter_dtypes": ["F32"],
        "future_leak": {"largest_change": 0.0, "largest_logit": 10.0},
    }
    audit = measured.pop("audit", "all 3 trainable parameters are optimised")
    address = Address(folder="run", files=("result.json",))
    return RunRecord(seed, address, {"audit": audit}, evaluation | measured, ())


def arm(*runs: RunRecord, precision: Any = "float32") -> ArmRecord:
    plan: ArmPlan = baseline(StudyOptions())
    training = replace(plan.config.training, precision=precision)
    return ArmRecord(replace(plan, config=replace(plan.config, training=training)), runs)


def test_the_same_numbers_agree_exactly() -> None:
    found = same_seed_same_numbers(record(), record())
    assert (found["passed"], found["detail"]) == (True, "seed 1 run again agrees exactly")


@pytest.mark.parametrize(("difference", "passed"), [(1e-5, True), (4e-4, True), (1e-3, False)])
def test_a_difference_of_half_a_thousandth_is_too_much(difference: float, passed: bool) -> None:
    found = same_seed_same_numbers(record(), record(loss=3.0 + difference))
    assert found["passed"] is passed
    assert "of the perplexity" in found["detail"]


def test_a_parameter_that_did_not_train_fails_the_study() -> None:
    found = everything_trained([arm(record(), record(2, audit="1 of 3 did not train: scale"))])
    assert not found["passed"]
    assert found["detail"] == "rsLoRA, seed 2: 1 of 3 did not train: scale"


def test_data_that_is_mostly_padding_fails() -> None:
    found = every_position_is_text([arm(record(valid_share=0.081))])
    assert not found["passed"]
    assert "8.1%" in found["detail"]


def test_an_adapter_in_bfloat16_fails() -> None:
    assert not adapters_are_float32([arm(record(adapter_dtypes=["BF16", "F32"]))])["passed"]
    assert adapters_are_float32([arm(record())])["passed"]


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
    leak = {"largest_change": change, "largest_logit": 10.0}
    found = no_token_sees_the_future([arm(record(future_leak=leak), precision=precision)])
    assert found["passed"] is passed


@pytest.mark.parametrize(("gain", "passed"), [(0.0, True), (0.05, False), (-0.05, False)])
def test_a_repetition_that_helps_or_harms_fails(gain: float, passed: bool) -> None:
    noise = (0.0, 1e-4, -1e-4)
    arms = [
        Arm(name="base", role="baseline", log_perplexities=(3.0, 3.0, 3.0)),
        Arm(name="A/A", role="self_check", log_perplexities=tuple(3.0 - gain + n for n in noise)),
    ]
    found = repetition_is_noise(judge(arms, baseline="base").verdict("A/A"))
    assert found["passed"] is passed


def curve(chosen: int) -> list[dict[str, Any]]:
    return [{"chosen": number == chosen} for number in range(3)]


def test_a_best_rate_at_the_end_of_its_grid_is_named() -> None:
    found = best_rates_are_inside({"low": curve(0), "inside": curve(1), "high": curve(2)})
    assert (found["passed"], found["detail"]) == (False, "at the end: low, high")
    assert best_rates_are_inside({"inside": curve(1)})["passed"]


def test_a_sound_study_passes_every_check() -> None:
    for tuning, count in (({}, 5), ({"one": curve(1)}, 6)):
        found = self_checks([arm(record())], [], (record(), record()), tuning)
        assert len(found) == count
        assert all(check["passed"] for check in found)
