"""Figures say in numbers what they show, and studies without the data have none."""

import re
from pathlib import Path
from typing import Any

import pytest

from hylorada.report import curves, effects, frontiers, gains, landmarks
from hylorada.report.canvas import WIDE, Sheet, styled
from hylorada.report.frontiers import Offer, unsurpassed
from hylorada.report.marks import SERIES, ends, finite, strokes
from hylorada.report.plots import FIGURES, drawing, save
from hylorada.report.reading import checked
from tests.unit.report.drawn import words
from tests.unit.report.example import allocation, example

FULL = checked(allocation())
BARE = checked({"schema": 1, "arms": [{"name": "only"}]})


def arms(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [{"name": f"arm {index}", **part} for index, part in enumerate(parts)]
    return checked({"schema": 1, "arms": named, **more})


@pytest.mark.parametrize("plot", FIGURES, ids=lambda plot: plot.key)
def test_every_figure_is_drawn_and_tells_numbers(plot: Any) -> None:
    said, drawn = words(plot.draw, FULL)
    assert re.search(r"\d", said)
    assert said.rstrip().endswith(".")
    assert drawn


@pytest.mark.parametrize("plot", FIGURES, ids=lambda plot: plot.key)
def test_a_study_without_the_data_has_no_figure(plot: Any) -> None:
    assert drawing(plot, BARE, "x") is None


def test_figures_have_keys_of_their_own() -> None:
    keys = [plot.key for plot in FIGURES]
    assert len(set(keys)) == len(keys)


def test_a_drawing_describes_both_of_its_pictures() -> None:
    found = drawing(FIGURES[0], FULL, "study-effects")
    assert found is not None
    for picture in (found.wide, found.narrow):
        assert 'aria-label="Effects. Per cent lower perplexity than rsLoRA' in picture
    assert found.caption.startswith("Per cent lower perplexity than rsLoRA")


def test_figures_become_files_of_every_format(tmp_path: Path) -> None:
    files = save(arms({"perplexity": {"value": 1.0}, "trainable_parameters": 5}), tmp_path, ["png"])
    assert files == []
    study = checked(example(arms=[], comparisons=example()["comparisons"]))
    files = save(study, tmp_path, ["svg", "png", "pdf"], "x-")
    assert [file.name for file in files] == [
        "x-comparisons.svg",
        "x-comparisons.png",
        "x-comparisons.pdf",
    ]
    assert all(file.is_file() for file in files)


def test_the_forest_plot_names_arm_effect_interval_and_verdict() -> None:
    said, drawn = words(effects.forest, FULL)
    assert "position_adaptive +1.62 % [1.21, 2.03] B moderate" in said
    assert {"position_adaptive", "+1.62 % [1.21, 2.03]", "B moderate", "E harmful"} <= set(drawn)


def test_comparisons_of_one_arm_stand_together() -> None:
    gain = {"value": 1.0, "interval": None}
    pairs = [("a", "x"), ("b", "x"), ("a", "y")]
    study = arms(comparisons=[{"arm": a, "against": b, "gain": gain} for a, b in pairs])
    said, _ = words(effects.comparisons, study)
    assert said.endswith("a against x +1.00 %; a against y +1.00 %; b against x +1.00 %.")


def test_an_effect_without_an_interval_is_a_point() -> None:
    said, drawn = words(effects.forest, arms({"gain": {"value": 1.0, "interval": None}}))
    assert "arm 0 +1.00 %." in said
    assert "+1.00 %" in drawn


def test_an_interval_that_leaves_the_plot_is_cut() -> None:
    rows = [effects.Row("wide", 1.0, -40.0, 42.0, "", "#000000")]
    low, high = effects._range(rows, effects.thresholds(BARE))
    assert -7 < low < -6
    assert 6 < high < 7
    words(effects.forest, arms({"gain": {"value": 1.0, "interval": [-40.0, 42.0]}}))


def test_thresholds_are_those_registered_in_per_cent() -> None:
    study = arms(plan={"thresholds": {"strong": 0.03, "moderate": 0.015}})
    assert effects.thresholds(study) == {"minimal": 0.5, "moderate": 1.5, "strong": 3.0}


def test_a_gain_that_is_not_finite_is_not_drawn() -> None:
    with styled():
        assert effects.forest(arms({"gain": {"value": float("nan")}}), Sheet(WIDE)) is None


def test_training_is_compared_with_the_baseline_of_the_same_seed() -> None:
    base = {"1": [[10, 3.0], [20, 2.0]], "2": [[10, 5.0], [20, 4.0]]}
    arm = {"1": [[10, 2.5], [20, 1.0]], "2": [[10, 4.9], [20, 3.8]]}
    differences = curves._minus(curves._by_seed(arm), curves._by_seed(base))
    mean = curves._mean(differences)
    assert [(point.x, pytest.approx(point.y)) for point in mean] == [(10, -0.3), (20, -0.6)]
    assert (mean[1].low, mean[1].high) == (pytest.approx(-1.0), pytest.approx(-0.2))
    said, drawn = words(
        curves.training,
        arms({"role": "baseline", "training_curve": base}, {"training_curve": arm}),
    )
    assert "At the last logged step: arm 0 3.000; arm 1 2.400." in said
    assert "minus arm 0; below 0 is better" in drawn


def test_a_run_alone_has_no_difference() -> None:
    said, drawn = words(curves.training, arms({"training_curve": {"1": [[1, 2.0], [2, 1.0]]}}))
    assert "1 seed." in said
    assert not any("minus" in word for word in drawn)


def test_runs_logged_at_other_steps_are_not_subtracted() -> None:
    assert curves._minus({"1": {10: 1.0}}, {"1": {20: 1.0}}) == {}
    assert curves._minus({"1": {10: 1.0}}, {"2": {10: 1.0}}) == {}


def test_losses_that_are_not_finite_are_left_out() -> None:
    assert curves._by_seed({"1": [[1, None], [2, float("inf")], [3, 2.0]]}) == {"1": {3: 2.0}}


def test_a_long_curve_is_thinned_to_means() -> None:
    points = [curves.Point(float(step), float(step), None, None) for step in range(320)]
    thin = curves._thinned(points)
    assert len(thin) == 160
    assert thin[0][:2] == (0.5, 0.5)
    assert curves._thinned(points[:3])[1][:2] == (1.0, 1.0)
    assert curves._thinned([]) == []


def test_the_largest_difference_is_told_with_its_place() -> None:
    rows = [{"start": 0, "end": 8, "value": 4.0}, {"start": 8, "end": 16, "value": 3.0}]
    other = [rows[0], rows[1] | {"value": 2.9}]
    study = arms({"role": "baseline", "position_curve": rows}, {"position_curve": other})
    said, _ = words(curves.positions, study)
    assert "4.000 at positions 0–7, 3.000 at 8–15" in said
    assert "Largest difference from the baseline: arm 1, −0.100 nats at position 12.0" in said


def test_what_is_lost_in_the_middle_is_told() -> None:
    rows = [{"depth": depth, "value": value} for depth, value in ((0, 2.0), (0.5, 2.6), (1, 2.2))]
    said, _ = words(curves.depths, arms({"depth_curve": rows}))
    assert "Middle minus edges: arm 0 +0.500." in said


def test_a_middle_like_its_edges_is_told_too() -> None:
    rows = [{"depth": depth, "value": 2.0} for depth in (0, 0.5, 1)]
    said, _ = words(curves.depths, arms({"depth_curve": rows}))
    assert "Middle minus edges: arm 0 0.000." in said


def test_depths_at_the_edges_alone_have_no_middle() -> None:
    said, _ = words(curves.depths, arms({"depth_curve": [{"depth": 0, "value": 2.0}]}))
    assert "not measured" in said


def test_the_chosen_rate_is_told() -> None:
    rows = [{"rate": 1e-4, "loss": 3.0}, {"rate": 1e-3, "loss": 2.0, "chosen": True}]
    said, drawn = words(curves.tuning, arms({"tuning": rows}))
    assert "Chosen: arm 0 at 0.001." in said
    assert {"1e−4", "1e−3"} <= set(drawn)


def test_a_chosen_rate_in_the_middle_has_its_own_tick() -> None:
    rows = [{"rate": rate, "chosen": rate == 1e-3} for rate in (1e-4, 1e-3, 1e-2)]
    assert curves._apart(rows) == [1e-4, 1e-3, 1e-2]
    rows = [{"rate": rate, "chosen": rate == 2e-4} for rate in (1e-4, 2e-4, 1e-2)]
    assert curves._apart(rows) == [1e-4, 1e-2]


def test_a_loss_far_above_the_others_is_a_triangle_at_the_edge() -> None:
    losses = (2.0, 2.01, 2.02, 2.03, 400.0)
    rows = [{"rate": 10.0**-n, "loss": loss} for n, loss in enumerate(losses)]
    _, drawn = words(curves.tuning, arms({"tuning": rows}))
    ticks = [float(word) for word in drawn if re.fullmatch(r"\d\.\d+", word)]
    assert ticks
    assert max(ticks) < 2.2


def test_one_rate_alone_is_drawn() -> None:
    words(curves.tuning, arms({"tuning": [{"rate": 1e-3, "loss": 2.0, "chosen": True}]}))


def test_the_shift_of_boundaries_is_a_mean_over_seeds() -> None:
    found = {"learned": [[10.0, 30.0], [14.0, 32.0]], "uniform": [16.0, 32.0], "context": 48}
    said, drawn = words(landmarks.boundaries, arms({"boundaries": found}))
    assert "arm 0 2.50 tokens (2 seeds)" in said
    assert {"uniform", "run 1", "run 2"} <= set(drawn)


def test_the_strongest_gate_is_told() -> None:
    found = {
        "rows": ["0–7", "8–15"],
        "columns": ["one", "two"],
        "weights": [[0.1, 0.9], [0.5, 0.5]],
    }
    said, drawn = words(landmarks.gates, arms({"gates": found}))
    assert "from 0.100 to 0.900" in said
    assert "arm 0: most for two at 0–7, 0.900." in said
    assert {"0–7", "8–15", "one", "two", "0.100", "0.900"} <= set(drawn)


def test_many_columns_without_a_name_are_drawn() -> None:
    blank = {"rows": ["0–7"], "columns": [" " * 9] * 30, "weights": [[0.5] * 30]}
    assert "from 0.500 to 0.500" in words(landmarks.gates, arms({"gates": blank}))[0]


def test_equal_gates_have_full_strength() -> None:
    assert landmarks._strength(0.5, 0.5, 0.5) == 1.0
    assert landmarks._strength(0.0, 0.0, 1.0) == landmarks.FAINTEST


def test_an_arm_is_on_the_frontier_unless_another_is_no_worse_in_both_ways() -> None:
    def offer(name: str, cost: float, result: float) -> Offer:
        return Offer(name, cost, result, None, None, "#000000")

    a, b, c, d = offer("a", 1, 9), offer("b", 2, 9), offer("c", 2, 7), offer("d", 5, 7.5)
    assert unsurpassed([d, c, b, a]) == [a, c]
    assert unsurpassed([a]) == [a]


def test_parameters_over_decades_are_drawn_on_a_logarithmic_axis() -> None:
    study = arms(
        *({"trainable_parameters": 10**n, "perplexity": {"value": 30.0 - n}} for n in (3, 4, 5))
    )
    said, drawn = words(frontiers.parameters, study)
    assert "arm 0 (1,000 parameters, perplexity 27.00)" in said
    assert {"1,000", "10,000", "100,000"} <= set(drawn)


def test_an_arm_is_compared_with_its_own_baseline() -> None:
    curve = [{"depth": 0.5, "value": 3.0}]
    study = arms(
        {"role": "baseline", "depth_curve": curve},
        {"role": "reference", "depth_curve": [{"depth": 0.5, "value": 2.0}]},
        {"baseline": "arm 0", "depth_curve": [{"depth": 0.5, "value": 2.9}]},
        {"baseline": "arm 1", "depth_curve": [{"depth": 0.5, "value": 1.8}]},
    )
    found = curves._against(study, curves._measured(study, "depth_curve", lambda r: r["depth"]))
    assert {curve.name: pytest.approx(curve.points[0].y) for curve in found} == {
        "arm 2": -0.1,
        "arm 3": -0.2,
    }
    assert "minus baseline; below 0 is better" in words(curves.depths, study)[1]


def test_effects_against_several_baselines_say_so() -> None:
    gain = {"value": 1.0, "interval": [0.5, 1.5]}
    study = arms({"gain": gain, "baseline": "a"}, {"gain": gain, "baseline": "b"})
    assert words(effects.forest, study)[0].startswith("Per cent lower perplexity than its baseline")


def test_gains_along_the_context_are_told_in_order() -> None:
    said, drawn = words(gains.gain_curves, FULL)
    assert "position_adaptive: +1.60 % at 512, +1.10 % at 1,024, +0.40 % at 2,048" in said
    assert {"512", "1,024", "2,048", "context, tokens"} <= set(drawn)


def test_bars_of_the_frontier_are_intervals_of_the_gain() -> None:
    arm = arms({"gain": {"value": 2.0, "interval": [1.0, 3.0]}})["arms"][0]
    assert frontiers._paired(arm, 50.0) == (pytest.approx(48.5), pytest.approx(49.5))
    assert frontiers._paired(arm, None) == (None, None)
    assert frontiers._paired(arms({})["arms"][0], 50.0) == (None, None)


def test_an_untrained_arm_is_not_on_the_frontier() -> None:
    found = [{"trainable_parameters": size, "perplexity": {"value": 9.0}} for size in (0, 10)]
    with styled():
        assert frontiers.parameters(arms(*found), Sheet(WIDE)) is None


def test_a_gate_with_nothing_to_choose_from_is_not_drawn() -> None:
    found = {"rows": ["0–7"], "columns": ["landmark 1"], "weights": [[1.0]]}
    with styled():
        assert landmarks.gates(arms({"gates": found}), Sheet(WIDE)) is None


def test_candidates_have_colours_and_controls_have_dashes() -> None:
    found = strokes(FULL)
    candidates = [found[name] for name in ("original", "per_layer", "position_adaptive")]
    assert len({stroke.colour for stroke in candidates}) == 3
    controls = [found[name] for name in ("bias", "low_rank", "rank+1")]
    assert len({stroke.colour for stroke in controls}) == 1
    assert len({str(stroke.dash) for stroke in controls}) == 3


def test_more_candidates_than_colours_differ_by_dashes() -> None:
    found = list(strokes(arms(*({"role": "candidate"} for _ in range(len(SERIES) + 1)))).values())
    assert found[-1].colour == found[0].colour
    assert found[-1].dash != found[0].dash


def test_only_numbers_can_be_drawn() -> None:
    assert finite(1, 2.5)
    assert not finite(1, None)
    assert not finite("1")
    assert not finite(float("nan"))
    assert ends([1, 2]) == (1.0, 2.0)
    assert ends([1, None]) == ends(None) == (None, None)
