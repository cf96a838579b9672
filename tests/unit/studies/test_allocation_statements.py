"""Statements on the division of coordinates: hand-computed labels, and how often they err."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate
from hylorada.records.studies import Comparison, Hypothesis
from hylorada.studies.allocation import SMALLEST_SHARE, SMALLEST_SLOPE, LearnedGates, hypotheses
from hylorada.studies.allocation.gates import OPEN
from hylorada.studies.allocation.hypotheses import number, rescaled
from hylorada.verdicts import Arm, VerdictSpec, judge
from hylorada.verdicts.labels import effect_nats, gain_percent

SEEDS = (42, 123, 999)
STACK = [f"transformer.h.{index}" for index in range(6)]
STUDIES = 200
# Three standard errors above 5 % of 200 studies.
TOO_OFTEN = 0.05 + 3 * math.sqrt(0.05 * 0.95 / STUDIES)


def contrast(
    arm: str, low: float, high: float, *, error: float | None = 0.2, seeds: int = 3
) -> Comparison:
    gain = Estimate(
        value=(low + high) / 2, standard_error=error, interval=(low, high), clusters=seeds
    )
    return Comparison(arm=arm, against=arm.replace("B-heavy", "equal"), gain=gain)


def run(
    seed: int, gamma: list[float], *, budget: int = 1000, head: float | None = None
) -> LearnedGates:
    return LearnedGates(
        name=f"learned {budget}",
        budget=budget,
        seed=seed,
        layers=[*STACK[: len(gamma)], *([] if head is None else ["rest"])],
        gamma=gamma + ([] if head is None else [head]),
    )


def level_runs(*departures: float, budget: int = 1000) -> list[LearnedGates]:
    """Runs whose six gates all depart from one half by the same."""
    return [
        run(seed, [0.5 + departure] * 6, budget=budget)
        for seed, departure in zip(range(len(departures)), departures, strict=True)
    ]


def sloped_runs(*slopes: float, budget: int = 1000) -> list[LearnedGates]:
    return [
        run(seed, [0.5 + slope * (layer / 5 - 0.5) for layer in range(6)], budget=budget)
        for seed, slope in enumerate(slopes)
    ]


def statement(name: str, contrasts: list[Comparison], gates: list[LearnedGates]) -> Hypothesis:
    return {entry.name: entry for entry in hypotheses(contrasts, gates)}[name]


def test_there_are_three_statements_with_their_claims() -> None:
    found = hypotheses([], [])
    assert [entry.name for entry in found] == ["H1", "H2", "H3"]
    assert {entry.label for entry in found} == {OPEN}
    assert all(entry.estimate is None and entry.interval is None for entry in found)
    assert found[0].sentence.endswith("No asymmetric split was compared with an equal one.")
    assert found[1].sentence.endswith("No gates were learned.")


def test_one_contrast_above_the_least_gain_supports_asymmetry() -> None:
    rows = [contrast("B-heavy 1000", 2.5, 3.5), contrast("A-heavy 1000", -3.0, -2.0)]
    found = statement("H1", rows, [])
    assert found.label == "supported"
    assert found.estimate == 3.0
    assert "B-heavy 1000 has perplexity 3.00 %" in found.sentence
    assert "B-heavy wins 1 of 1, A-heavy wins 0 of 1 and loses 1" in found.sentence


def test_contrasts_that_all_lie_below_the_least_gain_refute_asymmetry() -> None:
    rows = [contrast("B-heavy 1000", -0.2, 0.2, error=0.04), contrast("A-heavy 1000", -3.0, -2.0)]
    found = statement("H1", rows, [])
    assert found.label == "refuted"
    assert found.sentence.startswith("No asymmetric split beats an equal one by 0.5 % or more")


def test_a_contrast_across_the_least_gain_leaves_asymmetry_open() -> None:
    found = statement("H1", [contrast("B-heavy", 0.2, 1.8)], [])
    assert found.label == OPEN
    assert "the most promising: B-heavy has perplexity 1.00 %" in found.sentence


def test_a_contrast_without_an_interval_cannot_refute() -> None:
    unknown = Comparison(arm="B-heavy", against="equal", gain=Estimate(value=0.0))
    assert statement("H1", [unknown], []).label == OPEN
    assert statement("H1", [contrast("B-heavy", 0.0, 0.0, error=0.0)], []).label == OPEN


def test_contrasts_of_two_seeds_are_open_and_say_how_many_are_missing() -> None:
    found = statement("H1", [contrast("B-heavy", 8.0, 9.0, seeds=2)], [])
    assert found.label == OPEN
    assert "3 seeds are needed at least, 1 more seed." in found.sentence


def test_a_split_without_a_side_in_its_name_keeps_its_name() -> None:
    assert "neutral wins 1 of 1" in statement("H1", [contrast("neutral", 3.0, 4.0)], []).sentence


def test_an_interval_needs_its_standard_error() -> None:
    with pytest.raises(SpecError, match="needs its standard error"):
        hypotheses([contrast("B-heavy", 1.0, 2.0, error=None)], [])


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_interval_of_a_contrast_is_the_one_for_a_third_of_the_error(seeds: int) -> None:
    values = np.random.default_rng(0).normal(0.03, 0.004, seeds)
    arms = [
        Arm(name="equal", role="baseline", log_perplexities=(3.0,) * seeds),
        Arm(name="B-heavy", role="candidate", log_perplexities=tuple((3.0 - values).tolist())),
    ]
    given, wanted = (
        judge(arms, baseline="equal", spec=VerdictSpec(confidence=confidence)).verdicts[0].gain
        for confidence in (0.95, 1 - 0.05 / 3)
    )
    row = Comparison(arm="B-heavy", against="equal", gain=given)
    assert statement("H1", [row], []).interval == pytest.approx(wanted.interval, rel=1e-6)


@pytest.mark.parametrize(("error", "stretch"), [(1.0, 1.2214), (0.001, 3.0)])
def test_intervals_no_t_distribution_explains_are_stretched_as_the_nearest(
    error: float, stretch: float
) -> None:
    # 2.39398 / 1.95996 for the normal distribution; Cauchy's tails are cut to a third in 3 steps.
    found = statement("H1", [contrast("B-heavy", -1.0, 1.0, error=error)], []).interval
    assert found is not None
    low, high = found
    assert (effect_nats(high / 100) - effect_nats(low / 100)) / (
        effect_nats(0.01) - effect_nats(-0.01)
    ) == pytest.approx(stretch, rel=2e-3)


def test_widened_ends_are_missed_no_more_than_allowed_with_noise_of_documents() -> None:
    random, draws, tail = np.random.default_rng(5), 4000, 0.025
    seeds_part, documents_part = 0.3, 0.7  # of the variance of an effect, 0.01² nats²
    squares = np.stack(
        [seeds_part * random.chisquare(2, draws) / 2, documents_part * np.ones(draws)]
    )
    errors = 0.01 * np.sqrt(squares.sum(0))
    quantiles = np.array([[stdtrit(2, 1 - tail)], [stdtrit(np.inf, 1 - tail)]])
    reaches = 0.01 * np.sqrt((quantiles**2 * squares).sum(0))
    effects = random.normal(0, 0.01, draws)
    missed = 0
    for effect, reach, error in zip(effects, reaches, errors, strict=True):
        low, value, high = gain_percent(effect + reach * np.array([-1.0, 0.0, 1.0])).tolist()
        gain = Estimate(
            value=value, interval=(low, high), standard_error=float(error) * (100 - value)
        )
        missed += rescaled(gain, 0.05 / 3, VerdictSpec(), 1)[0] > 0
    assert missed / draws <= tail / 3 + 3 * math.sqrt(tail / 3 / draws)


def test_a_departure_is_a_mean_over_seeds_with_its_t_interval() -> None:
    found = statement("H2", [], level_runs(0.10, 0.11, 0.12))
    assert found.estimate == pytest.approx(0.11)
    # t with 2 degrees of freedom, 1/60 in both tails: 7.6488; standard error 0.01 / √3.
    assert found.interval == pytest.approx([0.11 - 0.044160, 0.11 + 0.044160], abs=1e-5)
    assert found.label == "supported"
    assert found.sentence.startswith("Learned gates favour B: γ averages 0.610, +0.110 [")
    assert "6 of 6 gates lie on that side in every run" in found.sentence


def test_gates_below_one_half_favour_a() -> None:
    found = statement("H2", [], level_runs(-0.10, -0.11, -0.12))
    assert found.label == "supported"
    assert "favour A" in found.sentence


def test_runs_of_one_seed_are_one_replicate() -> None:
    once = level_runs(0.10, 0.11, 0.12)
    twice = [*once, *level_runs(0.10, 0.11, 0.12, budget=2000)]
    assert statement("H2", [], twice).interval == statement("H2", [], once).interval
    assert "3 seeds and 2 budgets" in statement("H2", [], twice).sentence


def test_a_steady_departure_too_small_to_matter_is_refuted_with_its_size() -> None:
    found = statement("H2", [], level_runs(0.0050, 0.0051, 0.0052))
    assert found.label == "refuted"
    assert "steady but less than the 0.02 worth the name" in found.sentence
    assert "+0.005" in found.sentence


def test_gates_around_one_half_are_refuted_without_a_steady_difference() -> None:
    found = statement("H2", [], level_runs(-0.001, 0.0, 0.001))
    assert found.label == "refuted"
    assert "steady" not in found.sentence


def test_layers_that_depart_to_both_sides_are_not_called_one_half() -> None:
    gates = [run(seed, [0.4, 0.6] * 3) for seed in range(3)]
    for index, one in enumerate(gates):
        one.gamma[0] += 0.001 * index
    found = statement("H2", [], gates)
    assert found.label == OPEN
    assert "on both sides" in found.sentence


def test_a_mean_carried_by_few_layers_is_not_consistent() -> None:
    gates = [run(seed, [0.9, 0.9, 0.49, 0.49, 0.49, 0.48 + 0.001 * seed]) for seed in range(3)]
    found = statement("H2", [], gates)
    assert found.label == OPEN
    assert "most gates do not lie on that side in every run" in found.sentence


def test_budgets_that_depart_to_opposite_sides_settle_nothing() -> None:
    gates = [
        *level_runs(0.10, 0.101, 0.102),
        *level_runs(-0.101, -0.10, -0.104, budget=2000),
    ]
    assert statement("H2", [], gates).label == OPEN


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_settle_nothing(seeds: int) -> None:
    gates = level_runs(*(0.2 + 0.001 * index for index in range(seeds)))
    for name in ("H2", "H3"):
        found = statement(name, [], gates)
        assert found.label == OPEN
        assert f"{3 - seeds} more seed" in found.sentence


def test_seeds_that_all_gave_the_same_settle_nothing() -> None:
    found = statement("H2", [], level_runs(0.1, 0.1, 0.1))
    assert (found.label, found.interval) == (OPEN, None)
    assert "its spread is unknown" in found.sentence


def test_an_open_statement_says_how_many_seeds_would_settle_it() -> None:
    found = statement("H2", [], level_runs(0.04, 0.05, 0.06))
    assert found.label == OPEN
    # t(3) at 1/120 is 4.8566; 0.01 · 4.8566 / √4 = 0.0243 < 0.03.
    assert "about 1 more seed would settle it" in found.sentence


def test_an_estimate_on_the_edge_is_not_settled_by_seeds() -> None:
    found = statement("H2", [], level_runs(0.01, 0.02, 0.03))
    assert "no number of seeds is likely to settle it" in found.sentence


def test_a_slope_is_the_change_from_the_first_layer_to_the_last() -> None:
    found = statement("H3", [], sloped_runs(0.20, 0.21, 0.22))
    assert found.label == "supported"
    assert found.estimate == pytest.approx(0.21)
    assert found.sentence.startswith("γ rises with depth")
    assert "1.00 on average, 1.00 to 1.00 over 3 runs" in found.detail


def test_a_falling_slope_falls() -> None:
    found = statement("H3", [], sloped_runs(-0.20, -0.21, -0.22))
    assert found.sentence.startswith("γ falls with depth")
    assert "−1.00 on average" in found.detail


def test_a_slope_inside_the_smallest_is_refuted() -> None:
    found = statement("H3", [], sloped_runs(-0.001, 0.001, 0.002))
    assert found.label == "refuted"
    assert f"less than the {SMALLEST_SLOPE:g} worth the name" in found.sentence


def test_what_lies_outside_the_stack_is_left_out_of_the_slope() -> None:
    bare = sloped_runs(0.20, 0.21, 0.22)
    headed = [run(one.seed, one.gamma, head=0.9) for one in bare]
    assert statement("H3", [], headed).estimate == pytest.approx(0.21)
    assert "left out of the slope: rest 0.900" in statement("H3", [], headed).detail
    assert statement("H2", [], headed).estimate == pytest.approx(0.4 / 7)


def test_two_layers_have_no_trend() -> None:
    found = statement("H3", [], [run(seed, [0.4, 0.6 + seed / 100]) for seed in range(3)])
    assert found.label == OPEN
    assert found.detail.startswith("A trend needs 3 layers; there are 2.")


def test_gates_that_never_moved_have_no_correlation() -> None:
    found = statement("H3", [], level_runs(0.0, 0.0, 0.0))
    assert "undefined, γ is the same everywhere" in found.detail


def test_a_settled_statement_leaves_more_error_to_the_others() -> None:
    alone = {one.name: one for one in hypotheses([], level_runs(0.04, 0.05, 0.06))}
    beside = {
        one.name: one
        for one in hypotheses([contrast("B-heavy", 3.0, 4.0)], level_runs(0.04, 0.05, 0.06))
    }
    assert "1.7 % (Holm over three statements)" in alone["H2"].detail
    assert "2.5 % (Holm over three statements)" in beside["H2"].detail
    width, narrower = (one["H2"].interval[1] for one in (alone, beside))
    ratio = stdtrit(2, 1 - 0.0125) / stdtrit(2, 1 - 0.05 / 6)
    assert (narrower - 0.05) / (width - 0.05) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": [0.5]}, "one gate a layer; got 6 layers and 1 gates"),
        ({"gamma": [0.5] * 5 + [math.nan]}, "share between 0 and 1"),
        ({"layers": [], "gamma": []}, "one gate a layer"),
    ],
)
def test_runs_with_impossible_gates_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(run(42, [0.5] * 6), **change)


def test_a_zero_has_no_sign() -> None:
    assert number(-0.0001) == "0.000"
    assert number(-0.25) == "−0.250"


def drawn_study(
    random: np.random.Generator, *, gain: float, departure: float, slope: float, seeds: int
) -> tuple[list[Comparison], list[LearnedGates]]:
    """A study whose six contrasts, gates and slopes have these truths."""
    rows, tail = [], 0.025 / 6
    for index in range(6):
        effects = effect_nats(gain) + random.normal(0, 0.004, seeds)
        mean, error = float(effects.mean()), float(effects.std(ddof=1)) / math.sqrt(seeds)
        reach = float(stdtrit(seeds - 1, 1 - tail)) * error
        low, value, high = gain_percent(np.array([mean - reach, mean, mean + reach])).tolist()
        found = Estimate(
            value=value,
            standard_error=error * (100 - value),
            interval=(low, high),
            clusters=seeds,
        )
        rows.append(Comparison(arm=f"B-heavy {index}", against="equal", gain=found))
    depth = np.linspace(-0.5, 0.5, 6)
    gates = []
    for seed in range(seeds):
        shared = random.normal(0, 0.006, 6)  # runs of one seed resemble each other
        for budget in (1000, 2000):
            noise = shared + random.normal(0, 0.004, 6)
            gamma = 0.5 + departure + slope * depth + noise
            gates.append(run(seed, gamma.tolist(), budget=budget))
    return rows, gates


def drawn_labels(studies: int = STUDIES, **truth: Any) -> dict[str, list[str]]:
    random = np.random.default_rng(7)
    found = [hypotheses(*drawn_study(random, **truth)) for _ in range(studies)]
    return {
        name: [one[index].label for one in found] for index, name in enumerate(("H1", "H2", "H3"))
    }


def test_where_nothing_is_there_any_support_is_rare() -> None:
    labels = drawn_labels(gain=0.0, departure=0.0, slope=0.0, seeds=3)
    any_support = ["supported" in three for three in zip(*labels.values(), strict=True)]
    assert np.mean(any_support) <= TOO_OFTEN


def test_at_the_smallest_sizes_any_verdict_is_rare() -> None:
    """Neither support nor refutation is true there, the hardest place for both."""
    labels = drawn_labels(gain=0.005, departure=SMALLEST_SHARE, slope=SMALLEST_SLOPE, seeds=3)
    any_verdict = [set(three) != {OPEN} for three in zip(*labels.values(), strict=True)]
    assert np.mean(any_verdict) <= TOO_OFTEN


def test_effects_far_beyond_the_smallest_are_mostly_found() -> None:
    labels = drawn_labels(60, gain=0.05, departure=0.08, slope=0.2, seeds=3)
    for name in labels:
        assert np.mean([label == "supported" for label in labels[name]]) > 0.8, name


def test_with_many_seeds_the_absence_of_effects_is_found() -> None:
    labels = drawn_labels(60, gain=-0.005, departure=0.0, slope=0.0, seeds=12)
    for name in labels:
        assert np.mean([label == "refuted" for label in labels[name]]) > 0.8, name
