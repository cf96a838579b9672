"""A plan is registered before it runs, and never changes unseen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.files import parsed_record, read_record
from hylorada.identity import settings_hash
from hylorada.records.studies import RateGrids, Study
from hylorada.specs.adapters import AdapterSection
from hylorada.studies import StudyOptions, plan_of
from hylorada.studies.plan import ArmPlan, Plan, Plans, register


def plan_hash(plan: Plan) -> str:
    return settings_hash(plan.settings())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("landmarks", StudyOptions(designs=("bias",)))


def test_a_registered_plan_is_written_with_its_hash(plan: Plan, tmp_path: Path) -> None:
    found = register(plan, tmp_path)
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored["current"]["hash"] == found.hash == plan_hash(plan)
    assert stored["current"]["registered"] == found.registered
    assert found.changes == []
    assert stored["current"]["plan"]["seeds"] == [42, 123, 456]


def test_registering_the_same_plan_again_changes_nothing(plan: Plan, tmp_path: Path) -> None:
    first = register(plan, tmp_path)
    before = (tmp_path / "plan.json").read_bytes()
    assert register(plan, tmp_path) == first
    assert (tmp_path / "plan.json").read_bytes() == before


def test_a_changed_plan_names_what_changed_with_both_hashes(plan: Plan, tmp_path: Path) -> None:
    register(plan, tmp_path)
    changed = replace(plan, seeds=(42, 7))
    found = register(changed, tmp_path)
    (change,) = found.changes
    assert f"plan {plan_hash(plan)} became {plan_hash(changed)}" in change
    assert change.endswith("seeds from [42, 123, 456] to [42, 7]")


def test_every_change_is_kept_even_back_to_the_first_plan(plan: Plan, tmp_path: Path) -> None:
    for seeds in ((42,), (42, 7), (42,)):
        found = register(replace(plan, seeds=seeds), tmp_path)
    assert len(found.changes) == 2
    history = json.loads((tmp_path / "plan.json").read_text())["history"]
    assert [entry["plan"]["seeds"] for entry in history] == [[42], [42, 7]]


def test_an_arm_that_comes_or_goes_is_named(plan: Plan, tmp_path: Path) -> None:
    register(plan, tmp_path)
    found = register(plan_of("landmarks", StudyOptions(designs=("low_rank",))), tmp_path)
    assert "arm bias was removed" in found.changes[0]
    assert "arm low_rank was added" in found.changes[0]


def test_a_long_change_is_shortened(plan: Plan, tmp_path: Path) -> None:
    register(plan, tmp_path)
    found = register(replace(plan, title="?" * 200), tmp_path)
    assert "…" in found.changes[0]
    assert len(found.changes[0]) < 300


def test_progress_bars_and_the_placeholder_seed_are_no_part_of_a_plan(plan: Plan) -> None:
    arm = plan.arms[0]
    shown = replace(arm.config.training, progress=True, seed=99)
    other = replace(arm, config=replace(arm.config, training=shown))
    assert plan_hash(replace(plan, arms=(other, *plan.arms[1:]))) == plan_hash(plan)


def test_what_decides_numbers_is_part_of_a_plan(plan: Plan) -> None:
    arm = plan.arms[0]
    longer = replace(arm.evaluation, max_tokens=1)
    other = replace(plan, arms=(replace(arm, evaluation=longer), *plan.arms[1:]))
    assert plan_hash(other) != plan_hash(plan)


def test_an_arm_is_found_by_name(plan: Plan) -> None:
    assert plan.arm("bias").role == "control"


def test_a_frozen_arm_knows_it(plan: Plan) -> None:
    arm: ArmPlan = plan.arms[0]
    frozen = replace(arm, config=replace(arm.config, adapter=AdapterSection()))
    assert (arm.is_frozen, frozen.is_frozen) == (False, True)


def test_parts_that_do_not_fit_are_refused(plan: Plan) -> None:
    arm = plan.arms[0]
    with pytest.raises(SpecError, match="different names"):
        replace(plan, arms=(arm, arm))
    with pytest.raises(SpecError, match="baseline 'x' must be one of the arms"):
        replace(plan, baseline="x")
    with pytest.raises(SpecError, match="seeds must be given"):
        replace(plan, seeds=())
    with pytest.raises(SpecError, match="differ from each other"):
        replace(plan, seeds=(1, 1))
    with pytest.raises(SpecError, match="tuning seed must be none"):
        replace(plan, tuning=RateGrids(base=[1.0], component=[1.0], seed=42))
    with pytest.raises(SpecError, match="role must be one of"):
        replace(arm, role="hero")
    with pytest.raises(SpecError, match="tuned must be one of"):
        replace(arm, tuned="seed")


@pytest.mark.parametrize(("base", "component"), [([], []), ([1.0], [1.0, 2.0])])
def test_every_arm_has_the_same_budget(
    plan: Plan, base: list[float], component: list[float]
) -> None:
    with pytest.raises(SpecError, match="same number of rates"):
        replace(plan, tuning=RateGrids(base=base, component=component, seed=7))


STORED = sorted((Path(__file__).parents[3] / "benchmarks" / "results").rglob("plan.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.parent.name)
def test_plans_of_the_release_are_read(path: Path) -> None:
    study = read_record(path.with_name("study.json"), Study)
    plans = read_record(path, Plans)
    assert study.plan.hash == plans.current.hash
    assert [arm.name for arm in study.arms] == [one["name"] for one in plans.current.plan["arms"]]


def test_there_are_plans_of_the_release() -> None:
    assert [path.parent.name for path in STORED] == [
        *("ablation", "allocation", "bucketing", "landmarks")
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"schema": 1, "arms": [{"name": "a"}, {"nam": "b"}]}', "$.arms[1]"),
        ('{"arms": [{"name": "a", "gain": {"value": "much"}}]}', "$.arms[0].gain.value"),
        ('{"arms": [], "comments": []}', "`comments`"),
    ],
)
def test_what_is_wrong_in_a_study_is_one_line_with_its_place(text: str, place: str) -> None:
    with pytest.raises(SpecError) as error:
        parsed_record(text, Study, "study.json", "draw the study again")
    assert place in str(error.value)
    assert str(error.value).startswith("study.json must hold a Study")
    assert "\n" not in str(error.value)
