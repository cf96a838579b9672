import math

import pytest

from hylorada.verdicts import Arm, Judgement, judge

BASE = (3.0, 3.1, 2.9)
NOISE = {
    "lora": (0.0, 0.0, 0.0),
    "landmarks": (0.0004, -0.0002, -0.0002),
    "low_rank": (-0.0001, 0.0004, -0.0003),
    "bias": (0.0002, 0.0001, -0.0003),
    "other": (-0.0003, 0.0001, 0.0002),
}


def arm(name: str, gain: float, role: str, parameters: int | None = None) -> Arm:
    values = tuple(
        base + math.log1p(-gain) + one for base, one in zip(BASE, NOISE[name], strict=True)
    )
    return Arm(name=name, log_perplexities=values, role=role, parameters=parameters)


def study(*arms: Arm, errors: dict[tuple[str, str], float] | None = None) -> Judgement:
    lora = arm("lora", 0.0, "baseline")
    return judge([*arms, lora], baseline="lora", comparison_errors=errors)


LANDMARKS = arm("landmarks", 0.035, "candidate", 9473)


def test_a_control_that_does_more_explains_the_gain() -> None:
    judged = study(LANDMARKS, arm("low_rank", 0.081, "control", 9216))
    verdict = judged.verdict("landmarks")
    assert (verdict.label, verdict.explained_by) == ("A", ["low_rank"])
    assert verdict.sentence.startswith("landmarks: perplexity 3.50 % [3.")
    assert verdict.sentence.endswith(
        "lower than lora's (3 seeds): a strong gain. "
        "low_rank, a control of no larger size, does more, 8.10 %: it explains the gain."
    )
    assert judged.sentences[1].startswith("low_rank, a control of no larger size, does more")
    assert judged.comparisons[0].sentence.endswith("the control does more.")


def test_a_control_that_is_not_told_apart_may_explain_the_gain() -> None:
    judged = study(LANDMARKS, arm("low_rank", 0.0349, "control", 9216))
    assert judged.verdict("landmarks").explained_by == ["low_rank"]
    assert judged.verdict("landmarks").sentence.endswith("it may explain the gain.")
    assert judged.comparisons[0].sentence.endswith("not shown to beat this control.")


def test_a_beaten_control_explains_nothing() -> None:
    judged = study(LANDMARKS, arm("bias", 0.019, "control", 576))
    assert judged.verdict("landmarks").explained_by == []
    assert judged.comparisons[0].beaten
    assert judged.comparisons[0].gain.value == pytest.approx(100 * (1 - 0.965 / 0.981))
    assert judged.sentences[1].startswith("It beats every control of no larger size")


def test_a_larger_control_is_compared_and_explains_nothing() -> None:
    judged = study(LANDMARKS, arm("low_rank", 0.081, "control", 115_200))
    assert judged.verdict("landmarks").explained_by == []
    assert (judged.comparisons[0].beaten, judged.comparisons[0].no_larger) == (False, False)
    assert "No control of no larger size" in judged.sentences[1]


def test_a_control_of_unknown_size_counts_as_no_larger() -> None:
    judged = study(LANDMARKS, arm("low_rank", 0.081, "control"))
    assert judged.verdict("landmarks").explained_by == ["low_rank"]


def test_without_a_gain_there_is_nothing_to_explain() -> None:
    judged = study(arm("landmarks", 0.0, "candidate"), arm("low_rank", 0.081, "control"))
    assert judged.verdict("landmarks").explained_by == []


def test_the_strongest_control_is_named_first() -> None:
    judged = study(
        LANDMARKS, arm("bias", 0.05, "control", 576), arm("low_rank", 0.081, "control", 9216)
    )
    sentence = judged.verdict("landmarks").sentence
    assert sentence.index("low_rank") < sentence.index("bias")


def test_document_noise_of_the_comparison_decides_whether_a_control_is_beaten() -> None:
    bias = arm("bias", 0.019, "control", 576)
    assert not study(LANDMARKS, bias, errors={("landmarks", "bias"): 0.02}).comparisons[0].beaten


def test_without_its_own_error_a_comparison_gets_the_sum_of_both() -> None:
    arms = [arm("lora", 0.0, "baseline"), LANDMARKS, arm("bias", 0.019, "control", 576)]
    both = {"landmarks": 0.003, "bias": 0.004}
    bounded = judge(arms, baseline="lora", evaluation_errors=both)
    given = judge(
        arms,
        baseline="lora",
        evaluation_errors=both,
        comparison_errors={("landmarks", "bias"): 0.007},
    )
    assert bounded.comparisons == given.comparisons


def test_several_candidates_are_counted_and_the_best_is_named() -> None:
    judged = study(LANDMARKS, arm("other", 0.0, "candidate"), arm("bias", 0.019, "control", 576))
    assert judged.sentences[0].startswith(
        "1 of 2 candidates lower perplexity; the largest gain is landmarks: perplexity 3.50 %"
    )


def test_candidates_without_effect_are_said_to_be_settled() -> None:
    judged = study(arm("landmarks", 0.0, "candidate"), arm("other", 0.0, "candidate"))
    assert judged.sentences[0].startswith(
        "None of 2 candidates is shown to lower perplexity by 0.5 % or more"
    )
    assert judged.sentences[1].startswith("Every arm was settled")


def test_open_candidates_are_told_with_the_seeds_they_need() -> None:
    judged = study(arm("landmarks", 0.0058, "candidate"), arm("other", 0.0, "candidate"))
    assert "1 of 2 stay open; about " in judged.sentences[1]


def test_a_candidate_that_seeds_cannot_settle_gives_its_reason() -> None:
    judged = study(arm("landmarks", 0.005, "candidate"))
    assert judged.sentences[1].startswith("landmarks stays open: the estimate lies on a threshold")


def test_a_study_of_controls_alone_speaks_of_arms() -> None:
    judged = study(arm("bias", 0.03, "control"), arm("low_rank", 0.05, "control"))
    assert judged.comparisons == ()
    assert judged.sentences[0].startswith("2 of 2 arms lower perplexity")


def test_a_self_check_with_an_effect_spoils_the_study() -> None:
    judged = study(LANDMARKS, arm("other", 0.03, "self_check"))
    assert judged.sentences[1].startswith("Do not rely on it: the self-check other")


def test_a_self_check_without_effect_spoils_nothing() -> None:
    judged = study(LANDMARKS, arm("other", 0.0, "self_check"))
    assert "self-check" not in " ".join(judged.sentences)


def test_a_harmful_arm_is_said_to_raise_perplexity() -> None:
    verdict = study(arm("landmarks", -0.02, "candidate")).verdict("landmarks")
    assert verdict.sentence.startswith("landmarks: perplexity 2.00 % [1.")
    assert verdict.sentence.endswith("higher than lora's (3 seeds): harmful.")


@pytest.mark.parametrize(
    ("gain", "scenario"),
    [
        (0.06, "A: scale up, core feature (sd 0.03 %, below 1 %)"),
        (0.025, "A: scale up (sd 0.03 %, below 1 %)"),
        (0.012, "B: viable, consider sharing (sd 0.03 %, below 1 %)"),
        (0.007, "C: keep as ablation (sd 0.03 %, below 1 %)"),
        (-0.05, "D: pivot (sd 0.04 %, below 1 %)"),
    ],
)
def test_the_point_rule_looks_at_the_mean_alone(gain: float, scenario: str) -> None:
    judged = study(arm("landmarks", gain, "candidate"))
    assert judged.verdict("landmarks").point_scenario == scenario


def test_the_point_rule_calls_noise_strong_where_the_interval_does_not() -> None:
    noisy = Arm(name="noisy", log_perplexities=(2.99, 3.04, 2.9), role="candidate")
    verdict = study(noisy).verdict("noisy")
    assert verdict.point_scenario == "A: scale up (sd 3.11 %, not below 1 %)"
    assert verdict.label == "inconclusive"


def test_the_point_rule_of_one_seed_knows_no_deviation() -> None:
    arms = [
        Arm(name="lora", log_perplexities=(3.0,), role="baseline"),
        Arm(name="a", log_perplexities=(2.9,), role="candidate"),
    ]
    scenario = judge(arms, baseline="lora").verdict("a").point_scenario
    assert scenario == "A: scale up, core feature (one seed, sd unknown)"
