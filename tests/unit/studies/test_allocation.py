"""The plan of the allocation study: which divisions, at which budgets, against what."""

from pathlib import Path

import pytest
from transformers import GPTNeoXConfig

from hylorada.errors import SpecError
from hylorada.specs.run import OptimisationSpec
from hylorada.specs.study import StudyOptions
from hylorada.studies import plan_of
from hylorada.studies.allocation.arms import (
    ASYMMETRIC,
    DIVISIONS,
    RATES,
    allocation_parts,
    division_of,
    targets_of,
)
from hylorada.studies.plan import Plan
from hylorada.studies.study import grid, tuned_arms
from tests.small_run import write_model

MICRO = "random:gpt2-micro,seed=3,tokenizer=tiny"
SEEDS = (42, 123, 999)


def planned(**more: object) -> Plan:
    settings: dict[str, object] = {"model": MICRO, "seeds": SEEDS, "budgets": (20, 40)}
    return plan_of("allocation", StudyOptions(**(settings | more)))


def test_ten_documented_configurations_and_a_reference_for_each_budget() -> None:
    names = [arm.name for arm in planned().arms]
    each = ("equal", "uniform", "B-heavy", "A-heavy", "learned", "size-neutral")
    assert names == [*(f"{name} d={d}" for d in (20, 40) for name in each), "A/A"]


def test_the_ratio_is_the_share_of_b() -> None:
    plan = planned()
    fixed = {name: plan.arm(f"{name} d=20").config.adapter for name in DIVISIONS}
    assert fixed["B-heavy"].allocation_ratio == 0.8
    assert fixed["equal"].allocation_ratio == 0.5
    assert fixed["A-heavy"].allocation_ratio == 0.2
    modes = [fixed[name].allocation_mode for name in ("uniform", "B-heavy", "learned")]
    assert modes == ["uniform", "fixed", "learned"]
    assert all(section.intrinsic_dim == 20 for section in fixed.values())


def test_the_size_neutral_ratio_of_gpt2_small_is_that_of_its_tensors() -> None:
    targets = targets_of("random:gpt2-small,tokenizer=tiny")
    assert targets.share_of_b == pytest.approx(274_944 / 351_744)
    assert (targets.modules, targets.fused_parts) == (("c_attn", "lm_head"), "qv")


def test_a_pretrained_llama_is_adapted_at_q_v_and_head(tmp_path: Path) -> None:
    write_model(tmp_path)
    targets = targets_of(str(tmp_path))
    assert (targets.modules, targets.fused_parts) == (("q_proj", "v_proj", "lm_head"), None)
    a, b = 5 * 4 * 16, 4 * (4 * 16 + 257)  # two layers of q and v, and a head of 257 rows
    assert targets.share_of_b == pytest.approx(b / (a + b))


def test_a_model_without_q_and_v_is_refused(tmp_path: Path) -> None:
    GPTNeoXConfig(
        vocab_size=2048, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    ).save_pretrained(tmp_path)
    with pytest.raises(SpecError, match=r"adapts q and v.*has neither"):
        targets_of(f"random:{tmp_path},tokenizer=tiny")


def test_every_arm_is_compared_with_the_equal_one_of_its_budget() -> None:
    plan = planned()
    assert (plan.baseline, plan.arm("A/A").baseline) == ("equal d=20", "equal d=20")
    for budget in (20, 40):
        base = f"equal d={budget}"
        assert plan.arm(base).baseline is None
        assert all(
            plan.arm(f"{name} d={budget}").baseline == base for name in DIVISIONS if name != "equal"
        )
    roles = [plan.arm(name).role for name in ("equal d=20", "equal d=40", "size-neutral d=40")]
    assert roles == ["baseline", "reference", "reference"]


def test_contrasts_go_over_all_budgets_and_asymmetric_ones_stand_alone() -> None:
    found = {one.name: one for one in planned().contrasts}
    assert found["B-heavy"].arms == ("B-heavy d=20", "B-heavy d=40")
    assert found["learned"].against == ("equal d=20", "equal d=40")
    asymmetric = [name for name, one in found.items() if one.question == ASYMMETRIC]
    assert asymmetric == ["B-heavy", "A-heavy"]
    assert found.keys() == DIVISIONS.keys() - {"equal"}


def test_all_arms_share_everything_but_the_division() -> None:
    plan = planned()
    assert len({(str(one.config.data), str(one.config.training)) for one in plan.arms}) == 1
    divided = ("intrinsic_dim", "allocation_mode", "allocation_ratio")
    sections = [one.config.adapter.settings() for one in plan.arms]
    shared = [{k: v for k, v in one.items() if k not in divided} for one in sections]
    assert all(one == shared[0] for one in shared)
    adapter = plan.arms[0].config.adapter
    assert (adapter.method, adapter.r, adapter.lora_alpha) == ("sublora", 4, 32.0)
    assert len({arm.config.optimisation for arm in plan.arms}) == 1


def test_the_vector_steps_at_a_tenth_unless_told_otherwise() -> None:
    usual = planned().arms[0].config.optimisation
    assert usual.learning_rate * usual.subspace_multiplier == pytest.approx(0.1)
    assert usual.learning_rate * usual.gate_multiplier == pytest.approx(0.01)
    told = planned(learning_rate=2e-3).arms[0].config.optimisation
    assert told.learning_rate == 2e-3
    landmarks = plan_of("landmarks", StudyOptions()).arms[0].config.optimisation
    assert landmarks == OptimisationSpec()


def test_every_arm_tries_the_same_rates() -> None:
    plan = planned(tune=True)
    assert plan.tuning is not None
    assert plan.tuning.base == plan.tuning.component == list(RATES)
    arms = tuned_arms(plan, base=True)
    assert len(arms) == 12
    tried = {tuple(trial.rate for trial in grid(plan.tuning, arm, {})) for arm in arms}
    (rates,) = tried
    assert rates == pytest.approx([0.1 * multiple for multiple in RATES])


def test_certificates_pay_for_configurations_and_rates() -> None:
    plain, tuned = planned().arms[0].certificate, planned(tune=True).arms[0].certificate
    assert plain is not None
    assert tuned is not None
    assert plain.choices == {"configuration": 12}
    assert tuned.choices == {"configuration": 12, "learning rate": len(RATES)}
    assert plain.documents == 10_000
    fewer = planned(certified_documents=50).arms[3].certificate
    assert fewer is not None
    assert fewer.documents == 50
    assert planned().arm("A/A").certificate == plain


def test_certificates_are_a_part_of_the_registered_plan() -> None:
    first, second = (planned(certified_documents=count).settings() for count in (50, 60))
    assert first["arms"][0]["certificate"]["documents"] == 50
    assert first != second


def test_designs_choose_divisions_and_equal_is_always_there() -> None:
    parts = allocation_parts(StudyOptions(model=MICRO, budgets=(20,), designs=("learned",)))
    assert [arm.name for arm in parts.arms] == ["equal d=20", "learned d=20", "A/A"]


def test_an_arm_says_which_division_it_is() -> None:
    assert division_of("B-heavy d=1000") == "B-heavy"
    assert division_of("A/A") == "equal"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"designs": ("B-heavi",)}, "unknown design 'B-heavi'; did you mean 'B-heavy'?"),
        ({"designs": ("x",)}, "unknown design 'x'; known are equal, uniform"),
        ({"budgets": ()}, "needs at least one budget"),
        ({"budgets": (1,)}, "must leave a coordinate to A and one to B"),
        ({"replace": {"<unk>": "unk"}}, "an allocation study replaces nothing"),
        ({"certified_documents": 1}, "certified_documents must be at least 2; got 1"),
    ],
)
def test_what_cannot_be_studied_is_refused(more: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("?", r"\?")):
        planned(**more)
