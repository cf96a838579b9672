"""Tuning: the same number of tries for every arm, and the lowest validation loss wins."""

from dataclasses import replace
from pathlib import Path

import pytest

from hylorada.files import record_json
from hylorada.jobs.engine import Outcome, State, Task
from hylorada.jobs.ledger import Address, FolderLedger
from hylorada.records.runs import RunResult
from hylorada.studies import StudyOptions, plan_of
from hylorada.studies.plan import ArmPlan, Plan
from hylorada.studies.study import (
    Trial,
    best,
    grid,
    tried_rates,
    tuned_arms,
    with_loss,
    with_rates,
)

RESULT = RunResult(
    id="0",
    config="a",
    data="b",
    code="c",
    seed=7,
    steps=1,
    valid_loss=1.5,
    trainable_parameters=1,
)
DESIGNS = ("position_adaptive", "rank+1", "position_bias")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("landmarks", StudyOptions(designs=DESIGNS, tune=True))


def searched(plan: Plan, arm: ArmPlan, rates: dict[str, float]) -> list[Trial]:
    assert plan.tuning is not None
    return grid(plan.tuning, arm, rates)


def trials(plan: Plan, arm: str, *losses: float | None) -> list[Trial]:
    found = searched(plan, plan.arm(arm), {})[: len(losses)]
    return [replace(trial, loss=loss) for trial, loss in zip(found, losses, strict=True)]


def test_arms_without_a_rate_of_their_own_tune_the_base_rate(plan: Plan) -> None:
    assert [arm.name for arm in tuned_arms(plan, base=True)] == ["rsLoRA", "rank+1"]
    components = [arm.name for arm in tuned_arms(plan, base=False)]
    assert components == ["position_adaptive", "position_bias"]


def test_every_arm_has_five_tries_with_the_tuning_seed_and_no_test_text(plan: Plan) -> None:
    for arm in (*tuned_arms(plan, base=True), *tuned_arms(plan, base=False)):
        jobs = [trial.job for trial in searched(plan, arm, {})]
        assert len(jobs) == 5
        assert {job.config.training.seed for job in jobs} == {7}
        assert {job.evaluation for job in jobs} == {None}


def test_the_baseline_tries_multiples_of_the_base_rate(plan: Plan) -> None:
    rates = [
        trial.job.config.optimisation.learning_rate
        for trial in searched(plan, plan.arm("rsLoRA"), {"rsLoRA": 1.0})
    ]
    assert rates == pytest.approx([5e-4, 1e-3, 2e-3, 4e-3, 8e-3])


def test_a_component_is_tuned_at_the_rate_its_baseline_chose(plan: Plan) -> None:
    found = searched(plan, plan.arm("position_adaptive"), {"rsLoRA": 1e-3})
    assert {trial.job.config.optimisation.learning_rate for trial in found} == {1e-3}
    multipliers = [trial.job.config.optimisation.landmark_multiplier for trial in found]
    assert multipliers == [0.3, 1.0, 3.0, 10.0, 30.0]
    biases = searched(plan, plan.arm("position_bias"), {})
    assert biases[4].job.config.optimisation.position_bias_multiplier == 30.0


def test_the_lowest_loss_wins_and_a_diverged_try_does_not(plan: Plan) -> None:
    found = trials(plan, "rsLoRA", 3.0, None, 2.0, float("nan"), 2.5)
    winner = best(found)
    assert winner is found[2]
    assert best(trials(plan, "rsLoRA", None, None)) is None


def test_the_curve_names_rates_losses_and_the_choice(plan: Plan) -> None:
    found = tried_rates(trials(plan, "position_adaptive", 3.0, 2.0))
    assert [trial.rate for trial in found] == pytest.approx([1.5e-4, 5e-4])
    assert [trial.chosen for trial in found] == [False, True]
    assert [trial.loss for trial in found] == [3.0, 2.0]
    biases = tried_rates(trials(plan, "position_bias", 3.0, 2.0))
    assert [trial.rate for trial in biases] == pytest.approx([1.5e-4, 5e-4])


def test_chosen_rates_enter_the_plan_and_a_repetition_follows_its_baseline(plan: Plan) -> None:
    chosen = replace(plan.arms[0].config.optimisation, learning_rate=0.123)
    tuned = with_rates(plan, {"rsLoRA": chosen})
    assert tuned.arm("rsLoRA").config.optimisation.learning_rate == 0.123
    assert tuned.arm("A/A").config.optimisation.learning_rate == 0.123
    assert tuned.arm("rank+1").config == plan.arm("rank+1").config


def test_losses_come_from_the_ledger(plan: Plan, tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path)
    found = searched(plan, plan.arm("rsLoRA"), {})[:2]
    outcomes = []
    states: list[State] = ["finished", "failed"]
    for number, (trial, state) in enumerate(zip(found, states, strict=True)):
        address = Address(folder=str(number), files=("result.json",))
        task = Task(job=trial.job, address=address, label=trial.label)
        with ledger.claim(address) as folder:
            assert folder is not None
            (folder / "result.json").write_text(record_json(RESULT))
        outcomes.append(Outcome(task=task, state=state))
    losses = [with_loss(*pair, ledger).loss for pair in zip(found, outcomes, strict=True)]
    assert losses == [1.5, None]
    assert found[0].label == "rsLoRA ×1"
