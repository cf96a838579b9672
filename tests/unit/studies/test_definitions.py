"""The studies that ship: their arms, their options, and what they refuse."""

import subprocess
import sys
from typing import Any

import pytest

from hylorada.errors import SpecError
from hylorada.studies import STUDIES, Definition, StudyOptions, plan_of
from hylorada.studies.components import components, single_components
from hylorada.studies.plan import Plan


def plan(study: str, **options: Any) -> Plan:
    return plan_of(study, StudyOptions(**options))


def names(found: Plan, role: str) -> list[str]:
    return [arm.name for arm in found.arms if arm.role == role]


def test_landmarks_compares_four_designs_and_five_controls() -> None:
    found = plan("landmarks")
    assert names(found, "baseline") == ["rsLoRA"]
    designs = ["original", "per_layer", "position_adaptive", "shared"]
    assert names(found, "candidate") == designs
    assert names(found, "control") == ["bias", "low_rank", "static", "rank+1", "norm_gain"]
    assert names(found, "self_check") == ["A/A"]


def test_bucketing_compares_log_uniform_and_learned_buckets() -> None:
    found = plan("bucketing")
    assert names(found, "candidate") == ["position_adaptive", "uniform", "learnable"]
    spacings = [found.arm(name).config.adapter.bucket_spacing for name in names(found, "candidate")]
    assert spacings[:2] == ["log", "uniform"]
    assert found.arm("learnable").config.adapter.landmark_design == "learnable"


def test_ablation_adds_one_component_after_the_other() -> None:
    found = plan("ablation")
    steps = ["+DoRA", "+position bias", "+position_adaptive", "+learnable"]
    assert names(found, "reference") == ["none"]
    assert names(found, "candidate") == steps
    parts = [found.arm(name).config.adapter for name in ("rsLoRA", *steps)]
    assert [part.use_dora for part in parts] == [False, True, True, True, True]
    assert [part.position_bias for part in parts] == [False, False, True, True, True]
    assert [part.landmark_enabled for part in parts] == [False, False, False, True, True]
    assert parts[-1].landmark_design == "learnable"
    assert found.arm("+learnable").description == "rsLoRA +DoRA +position bias +learnable"


def test_each_step_of_the_ablation_is_contrasted_with_the_one_before() -> None:
    pairs = [(contrast.name, contrast.against_name) for contrast in plan("ablation").contrasts]
    assert pairs == [
        ("+position bias", "+DoRA"),
        ("+position_adaptive", "+position bias"),
        ("+learnable", "+position bias"),
    ]


def test_an_ablation_of_chosen_steps_contrasts_only_those() -> None:
    found = plan("ablation", designs=("+DoRA", "+learnable"))
    assert names(found, "candidate") == ["+DoRA", "+learnable"]
    assert found.contrasts == ()


def test_the_steps_of_an_ablation_follow_each_other_however_they_are_named() -> None:
    found = plan("ablation", designs=("+position bias", "+DoRA"))
    (contrast,) = found.contrasts
    assert (contrast.name, contrast.against_name) == ("+position bias", "+DoRA")


def test_a_factorial_ablation_crosses_every_level() -> None:
    found = plan("ablation", factorial=True)
    assert len(found.arms) == 2 * 2 * 3 + 1
    assert found.arm("DoRA + position bias + learnable").config.adapter.use_dora
    effects = {contrast.name: contrast for contrast in found.contrasts}
    assert len(effects["with DoRA"].arms) == len(effects["with DoRA"].against) == 6
    assert len(effects["with learnable"].arms) == len(effects["with learnable"].against) == 4
    assert not any("position_adaptive" in name for name in effects["with learnable"].against)


def test_length_doubles_the_context_at_equal_tokens() -> None:
    found = plan("length", max_length=4096, designs=("position_adaptive",))
    candidates = [found.arm(name) for name in names(found, "candidate")]
    assert [arm.config.data.length for arm in candidates] == [512, 1024, 2048, 4096]
    assert {arm.config.training.batch_size * arm.config.data.length for arm in candidates} == {4096}
    trained = [(arm.config.data.num_train or 0) * arm.config.data.length for arm in candidates]
    assert max(trained) - min(trained) < 4096
    assert [arm.baseline for arm in candidates][:2] == ["rsLoRA @ 512", "rsLoRA @ 1024"]
    assert {arm.evaluation.max_tokens for arm in candidates} == {200 * 512}


def test_length_reaches_8192_by_itself_with_equal_tokens_in_every_step() -> None:
    arms = plan("length").arms
    assert arms[-2].config.data.length == 8192
    assert {arm.config.training.batch_size * arm.config.data.length for arm in arms} == {8192}


def test_the_repeated_baseline_is_the_baseline_in_another_order() -> None:
    found = plan("landmarks")
    assert found.arm("A/A").config == found.arm("rsLoRA").config
    assert (found.arm("A/A").repetition, found.arm("rsLoRA").repetition) == (1, 0)


def test_controls_are_no_larger_than_the_landmarks_and_sit_at_their_place() -> None:
    found = plan("landmarks", num_landmarks=4)
    assert found.arm("low_rank").config.adapter.num_landmarks == 4
    assert found.arm("low_rank").config.adapter.landmark_design == "low_rank"
    assert found.arm("rank+1").config.adapter.r == found.arm("rsLoRA").config.adapter.r + 1


@pytest.mark.parametrize("name", list(components()))
def test_every_design_can_be_chosen(name: str) -> None:
    found = plan("landmarks", designs=(name,))
    assert [arm.name for arm in found.arms] == ["rsLoRA", name, "A/A"]
    assert found.arm(name).config.adapter != found.arm("rsLoRA").config.adapter


def test_the_documented_command_is_what_it_says() -> None:
    options = StudyOptions(epochs=1, num_train=500, num_val=100, num_landmarks=8)
    config = plan_of("bucketing", options).arm("learnable").config
    assert (config.training.epochs, config.data.num_train, config.data.num_val) == (1, 500, 100)
    assert config.adapter.num_landmarks == 8


def test_text_rules_reach_every_run() -> None:
    found = plan("landmarks", replace={"<unk>": "unk"}, lines="double")
    assert {str(arm.config.data.replace) for arm in found.arms} == {"{'<unk>': 'unk'}"}
    assert {arm.config.data.lines for arm in found.arms} == {"double"}


def test_tuning_uses_a_seed_that_is_none_of_the_studys() -> None:
    tuning = plan("landmarks", tune=True, seeds=(7, 8, 1)).tuning
    assert tuning is not None
    assert tuning.seed == 9
    assert plan("landmarks").tuning is None


@pytest.mark.parametrize(
    ("study", "options", "message"),
    [
        ("lanmarks", {}, "unknown study 'lanmarks'; did you mean 'landmarks'?"),
        ("zzz", {}, "unknown study 'zzz'; known are "),
        ("landmarks", {"designs": ("sharde",)}, "unknown design 'sharde'; did you mean 'shared'?"),
        ("ablation", {"designs": ("+dora",)}, "unknown design '+dora'; known are +DoRA"),
        ("landmarks", {"num_test": 0}, "num_test must be at least 1; got 0"),
        (
            "landmarks",
            {"precision": "half"},
            "precision must be one of float32, bfloat16",
        ),
        ("landmarks", {"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ("landmarks", {"max_length": 0}, "max_length must be at least 2; got 0"),
        ("landmarks", {"learning_rate": 0.0}, "learning_rate must be positive and finite; got 0.0"),
        ("landmarks", {"epochs": float("inf")}, "epochs must be positive and finite; got inf"),
        ("landmarks", {"epochs": -1.0}, "epochs must be positive"),
    ],
)
def test_what_cannot_be_run_is_refused(
    study: str, options: dict[str, Any], message: str, unchecked: None
) -> None:
    with pytest.raises(SpecError) as error:
        plan(study, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_study_of_ones_own_is_planned_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STUDIES, "_entries", dict(STUDIES._entries))
    STUDIES.add(Definition(name="mine", title="Does a bias do?", parts=single_components("bias")))
    found = plan("mine", seeds=(3, 4))
    assert (found.study, found.title, found.seeds) == ("mine", "Does a bias do?", (3, 4))
    assert [arm.name for arm in found.arms] == ["rsLoRA", "bias", "A/A"]


def test_plans_need_no_deep_learning() -> None:
    told = "import sys, hylorada.studies; print([m for m in ('torch', 'peft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_study_has_a_question() -> None:
    assert all(definition.title.endswith("?") for definition in STUDIES.values())
