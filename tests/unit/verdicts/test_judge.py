import json
import math
from pathlib import Path

import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.files import record_json
from hylorada.verdicts import Arm, Judgement, VerdictSpec, judge

BASE = (3.0, 3.1, 2.9)


def arm(name: str, gain: float, role: str = "candidate", parameters: int | None = None) -> Arm:
    """An arm whose perplexity is lower by the given share, with a little noise of its own."""
    angle = sum(name.encode())
    noise = [0.0002 * math.cos(angle + third * math.tau / 3) for third in range(3)]
    values = tuple(base + math.log1p(-gain) + one for base, one in zip(BASE, noise, strict=True))
    return Arm(name=name, log_perplexities=values, role=role, parameters=parameters)


def baseline() -> Arm:
    return Arm(name="lora", log_perplexities=BASE, role="baseline")


def study(*arms: Arm, **settings: float) -> Judgement:
    return judge([baseline(), *arms], baseline="lora", spec=VerdictSpec(**settings))


def test_a_single_comparison_has_the_plain_paired_t_interval() -> None:
    values = (2.9, 3.02, 2.81)
    judged = judge(
        [baseline(), Arm(name="a", log_perplexities=values, role="candidate")], baseline="lora"
    )
    # Effects 0.10, 0.08, 0.09: mean 0.09, sd 0.01, reach 4.302653 * 0.01 / sqrt(3).
    low, high = judged.verdict("a").gain.interval or (0.0, 0.0)
    reach = 4.302653 * 0.01 / math.sqrt(3)
    assert judged.verdict("a").gain.value == pytest.approx(100 * (1 - math.exp(-0.09)))
    assert low == pytest.approx(100 * (1 - math.exp(-0.09 + reach)), abs=1e-4)
    assert high == pytest.approx(100 * (1 - math.exp(-0.09 - reach)), abs=1e-4)


@pytest.mark.parametrize(
    ("gain", "label", "meaning"),
    [
        (0.04, "A", "strong"),
        (0.015, "B", "moderate"),
        (0.0075, "C", "minimal"),
        (0.0, "D", "none"),
        (-0.02, "E", "harmful"),
        (0.005, "inconclusive", "inconclusive"),
    ],
)
def test_each_label_is_given_where_the_interval_lies(gain: float, label: str, meaning: str) -> None:
    verdict = study(arm("a", gain)).verdict("a")
    assert (verdict.label, verdict.meaning) == (label, meaning)


def test_thresholds_can_be_set() -> None:
    assert study(arm("a", 0.04), strong=0.05).verdict("a").label == "B"


def test_labels_agree_with_the_printed_interval() -> None:
    gains = (0.06, 0.025, 0.021, 0.02, 0.012, 0.006, 0.0, -0.004, -0.03)
    judged = study(*(arm(f"a{index}", gain) for index, gain in enumerate(gains)))
    for verdict in judged.verdicts:
        low, high = verdict.gain.interval or (math.nan, math.nan)
        assert low <= verdict.gain.value <= high
        assert (verdict.label == "A") == (low >= 2)
        assert (verdict.label == "E") == (high <= -0.5)
        assert (verdict.label == "D") == (low >= -0.5 and high <= 0.5)
    assert {verdict.label for verdict in judged.verdicts} >= {"A", "E"}


def test_one_seed_is_inconclusive_and_says_why() -> None:
    arms = [
        Arm(name="lora", log_perplexities=(3.0,), role="baseline"),
        Arm(name="a", log_perplexities=(2.9,), role="candidate"),
        Arm(name="bias", log_perplexities=(2.95,), role="control"),
        Arm(name="frozen", log_perplexities=(3.3,), role="reference"),
    ]
    judged = judge(arms, baseline="lora")
    verdict = judged.verdict("a")
    assert (verdict.label, verdict.gain.interval) == ("inconclusive", None)
    assert verdict.seeds_needed is None
    assert "one seed has no spread" in verdict.sentence
    assert judged.comparisons[0].beaten is False
    assert judged.verdict("frozen").label is None


def test_seeds_that_changed_nothing_are_no_evidence() -> None:
    values = tuple(base - 0.1 for base in BASE)
    verdict = study(Arm(name="a", log_perplexities=values, role="candidate")).verdict("a")
    assert (verdict.label, verdict.gain.interval) == ("inconclusive", None)
    assert "same difference" in (verdict.reason or "")


def test_an_exact_copy_of_the_baseline_has_no_effect_and_costs_the_others_nothing() -> None:
    copy = Arm(name="a/a", log_perplexities=BASE, role="self_check")
    judged = study(arm("a", 0.03), arm("b", 0.0), copy)
    assert judged.verdict("a/a").label == "D"
    assert judged.unpooled == ("a/a",)
    assert judged.verdict("a").gain == study(arm("a", 0.03), arm("b", 0.0)).verdict("a").gain


def test_a_reference_is_shown_and_not_judged() -> None:
    frozen = Arm(name="frozen", log_perplexities=(3.4, 3.4, 3.4), role="reference")
    judged = study(arm("a", 0.03), frozen)
    assert judged.verdict("frozen").label is None
    assert "for reference" in judged.verdict("frozen").sentence
    alone = study(arm("a", 0.03)).verdict("a").gain
    assert judged.verdict("a").gain.interval == pytest.approx(alone.interval)


def test_a_study_of_references_alone_judges_nothing() -> None:
    judged = study(Arm(name="frozen", log_perplexities=(3.4, 3.45, 3.41), role="reference"))
    assert judged.sentences[0] == "No arm was judged."


def test_more_arms_widen_the_interval_of_each() -> None:
    def width(judged: Judgement) -> float:
        low, high = judged.verdict("a").gain.interval or (0.0, 0.0)
        return high - low

    alone = width(study(arm("a", 0.01)))
    crowded = width(study(arm("a", 0.01), *(arm(f"b{index}", 0.0) for index in range(8))))
    assert crowded > 1.2 * alone


def test_a_wild_arm_neither_spoils_the_others_nor_borrows_from_them() -> None:
    wild = Arm(name="wild", log_perplexities=(3.4, 2.9, 3.9), role="candidate")
    quiet = [arm(f"b{index}", 0.0) for index in range(4)]
    judged = study(*quiet, wild)
    assert judged.unpooled == ("wild",)
    assert judged.verdict("b0").label == "D"
    assert judged.verdict("wild").label == "inconclusive"
    low, high = judged.verdict("wild").gain.interval or (0.0, 0.0)
    assert low < -100
    assert high > 0


def test_document_noise_widens_the_interval_by_the_square_root_of_the_sum() -> None:
    error = 0.002
    quiet = study(arm("a", 0.03)).verdict("a").gain.interval or (0.0, 0.0)
    noisy = (
        judge([baseline(), arm("a", 0.03)], baseline="lora", evaluation_errors={"a": error})
        .verdict("a")
        .gain.interval
    ) or (0.0, 0.0)
    near = math.log1p(-quiet[0] / 100) - math.log1p(-0.03)
    far = math.log1p(-noisy[0] / 100) - math.log1p(-0.03)
    assert far == pytest.approx(math.hypot(near, 1.959964 * error), rel=1e-4)


def test_few_documents_count_for_less() -> None:
    arms = [baseline(), arm("a", 0.03)]
    many = judge(arms, baseline="lora", evaluation_errors={"a": 0.002})
    few = judge(arms, baseline="lora", evaluation_errors={"a": 0.002}, documents=5)
    wide, narrow = (one.verdict("a").gain.interval or (0.0, 0.0) for one in (few, many))
    assert wide[0] < narrow[0]
    assert wide[1] > narrow[1]


def test_too_few_documents_cannot_be_cured_by_seeds() -> None:
    judged = judge(
        [baseline(), arm("a", 0.0075)], baseline="lora", evaluation_errors={"a": 0.01}
    ).verdict("a")
    assert (judged.label, judged.seeds_needed) == ("inconclusive", None)
    assert "more test documents" in judged.sentence


def test_an_estimate_on_a_threshold_cannot_be_settled_by_seeds() -> None:
    verdict = study(arm("a", 0.005)).verdict("a")
    assert (verdict.label, verdict.seeds_needed) == ("inconclusive", None)
    assert "threshold" in verdict.sentence


def test_seeds_needed_are_the_fewest_that_settle_the_present_estimate() -> None:
    effects = np.array([0.016, 0.008, 0.012])
    arms = [
        baseline(),
        Arm(
            name="a",
            log_perplexities=tuple((np.array(BASE) - effects).tolist()),
            role="candidate",
        ),
    ]
    judged = judge(arms, baseline="lora")
    verdict = judged.verdict("a")
    # Mean 0.012, sd 0.004; "minimal" starts at 0.0050125 nats, so t * 0.004 / sqrt(n) must fall
    # to 0.0069875: n = 4 gives 3.1824 * 0.002 = 0.00636, n = 3 gives 0.00994.
    assert (verdict.label, verdict.seeds_needed) == ("inconclusive", 1)
    assert "about 1 more seed would settle it" in verdict.sentence
    assert judged.sentences[1].endswith("about 1 more seed would settle the nearest.")


@pytest.mark.parametrize("exploded", [60.0, 5000.0])
def test_an_arm_that_exploded_under_one_of_two_seeds_still_gives_finite_numbers(
    exploded: float,
) -> None:
    arms = [
        Arm(name="lora", log_perplexities=(3.0, 3.1), role="baseline"),
        Arm(name="a", log_perplexities=(3.0, exploded), role="candidate"),
        Arm(name="b", log_perplexities=(2.9, 3.01), role="candidate"),
    ]
    judged = judge(arms, baseline="lora")
    assert "null" not in record_json(judged.verdict("a").gain)  # how JSON holds what is not finite
    assert len(judged.verdict("a").sentence) < 200


def test_a_nan_names_arm_and_seed() -> None:
    broken = Arm(name="a", log_perplexities=(3.0, math.nan, 3.0), role="candidate")
    with pytest.raises(SpecError, match="'a' has nan at seed 123"):
        judge([baseline(), broken], baseline="lora", seeds=[42, 123, 456])
    with pytest.raises(SpecError, match="seed number 2"):
        judge([baseline(), broken], baseline="lora")


@pytest.mark.parametrize(
    ("arms", "settings", "message"),
    [
        ([], {}, "no arm is called 'lora'"),
        ([baseline()], {}, "beside the baseline"),
        ([baseline(), baseline()], {}, "different names"),
        ([baseline(), Arm(name="a", log_perplexities=(1.0,), role="control")], {}, "'a' has 1"),
        ([baseline(), arm("a", 0.0)], {"seeds": [1, 2]}, "each of the 2 seeds"),
        ([baseline(), arm("a", 0.0)], {"evaluation_errors": {"b": 0.1}}, "every arm or for none"),
        ([baseline(), arm("a", 0.0)], {"evaluation_errors": {"a": -1.0}}, "not negative; a has"),
        ([baseline(), arm("a", 0.0)], {"documents": 1}, "at least 2"),
        (
            [baseline(), arm("a", 0.0)],
            {"comparison_errors": {("a", "c"): 0.1}},
            "one of \\(candidate, control\\)",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arms: list[Arm], settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        judge(arms, baseline="lora", **settings)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(SpecError, match="'villain'"):
        Arm(name="a", log_perplexities=(1.0,), role="villain")


def test_an_arm_without_seeds_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one seed"):
        Arm(name="a", log_perplexities=(), role="control")


def test_the_verdict_on_an_unknown_arm_is_refused() -> None:
    with pytest.raises(SpecError, match="no arm 'b' was judged"):
        study(arm("a", 0.0)).verdict("b")


@pytest.mark.parametrize(
    "settings", [{"confidence": 1.0}, {"strong": 0.01}, {"minimal": 0.0}, {"steady": 0.0}]
)
def test_thresholds_out_of_order_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SpecError):
        VerdictSpec(**settings)


def test_one_of_five_families_has_a_fifth_of_the_error_probability() -> None:
    assert VerdictSpec(strong=0.03).part(0.2).confidence == pytest.approx(0.99)
    assert VerdictSpec(strong=0.03).part(0.2).strong == 0.03


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_of_the_error_probability_is_a_share(share: float) -> None:
    with pytest.raises(SpecError, match="share of the error probability"):
        VerdictSpec().part(share)


def test_a_judgement_is_plain_data() -> None:
    judged = study(arm("a", 0.03), arm("bias", 0.01, "control"))
    data = json.loads(record_json(judged))
    assert [one["arm"] for one in data["verdicts"]] == ["a", "bias"]
    assert data["comparisons"][0]["against"] == "bias"
    assert len(data["sentences"]) == 2


def test_the_example_in_the_documentation_prints_what_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = Path(__file__).parents[3].joinpath("docs/verdicts.md").read_text(encoding="utf-8")
    _, code, _, printed, *_ = text.split("```")
    exec(code.removeprefix("python"), {})
    assert capsys.readouterr().out.strip() == printed.strip()
