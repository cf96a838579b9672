"""Figures say in numbers what they show, and studies without the data have none."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hylorada.errors import SpecError
from hylorada.records.evaluations import Estimate
from hylorada.records.runs import Table
from hylorada.records.studies import (
    Arm,
    Boundaries,
    Comparison,
    CurvePoint,
    DepthMean,
    RegisteredPlan,
    SeedMean,
    Study,
    Thresholds,
    TriedRate,
)
from hylorada.report import conduct, curves, effects, frontiers, landmarks
from hylorada.report.axes import SERIES, Label, strokes
from hylorada.report.canvas import WIDE, Sheet, styled
from hylorada.report.curves import Mark
from hylorada.report.figures import FIGURES, Figure, drawing, in_order, save_figures
from hylorada.report.frontiers import unsurpassed
from tests.unit.report.drawn import is_drawn, words
from tests.unit.report.example import allocation, example

FULL = allocation()
BARE = Study(arms=[Arm(name="only")])
DRAWN = [figure for figure in in_order() if figure.draw]


def arms(*parts: dict[str, Any], **more: Any) -> Study:
    named = [Arm(name=f"arm {index}", **part) for index, part in enumerate(parts)]
    return Study(arms=named, **more)


@pytest.mark.parametrize("figure", DRAWN, ids=lambda figure: figure.name)
def test_every_figure_is_drawn_and_tells_numbers(figure: Figure) -> None:
    assert figure.draw is not None
    said, drawn = words(figure.draw, FULL)
    assert re.search(r"\d", said)
    assert said.rstrip().endswith(".")
    assert drawn


@pytest.mark.parametrize("figure", DRAWN, ids=lambda figure: figure.name)
def test_a_study_without_the_data_has_no_figure(figure: Figure) -> None:
    assert drawing(figure, BARE, "x") is None


def test_the_page_has_one_order_whichever_figure_was_imported_first() -> None:
    code = (
        "import sys, hylorada.report.conduct, hylorada.report.curves; "
        "from hylorada.report.figures import in_order; "
        "print([figure.name for figure in in_order()], 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"{[figure.name for figure in in_order()]} False"
    assert in_order()[-1].name == "checks"


def test_a_figure_of_another_package_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(study: Study, sheet: object) -> None:
        return None

    monkeypatch.setitem(FIGURES._entries, "mine", Figure("mine", "Mine", mine))
    assert in_order()[-1].name == "mine"


def test_a_figure_stands_after_the_one_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [figure.name for figure in in_order()]
    assert names[names.index("results") + 1] == "allocation"
    mine = Figure("mine", "Mine", FIGURES["gates"].draw, after="costs")
    monkeypatch.setitem(FIGURES._entries, "mine", mine)
    with pytest.raises(SpecError, match="did you mean 'cost'"):
        in_order()


def test_a_drawing_describes_both_of_its_pictures() -> None:
    found = drawing(FIGURES["effects"], FULL, "study-effects")
    assert found is not None
    for picture in (found.wide, found.narrow):
        assert 'aria-label="Effects. Per cent lower perplexity than rsLoRA' in picture
    assert found.caption.startswith("Per cent lower perplexity than rsLoRA")


def test_figures_become_files_of_every_format(tmp_path: Path) -> None:
    assert save_figures(BARE, tmp_path, ["png"]) == []
    files = save_figures(example(arms=[]), tmp_path, ["svg", "png", "pdf"], "x-")
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
    gain = Estimate(value=1.0)
    pairs = [("a", "x"), ("b", "x"), ("a", "y")]
    study = arms(comparisons=[Comparison(arm=a, against=b, gain=gain) for a, b in pairs])
    said, _ = words(effects.comparisons, study)
    assert said.endswith("a against x +1.00 %; a against y +1.00 %; b against x +1.00 %.")


def test_an_effect_without_an_interval_is_a_point() -> None:
    said, drawn = words(effects.forest, arms({"gain": Estimate(value=1.0)}))
    assert "arm 0 +1.00 %." in said
    assert "+1.00 %" in drawn


def test_an_interval_that_leaves_the_plot_is_cut() -> None:
    gain = Estimate(value=1.0, interval=(-40.0, 42.0))
    found = [effects.Effect("wide", gain, "", "#000000")]
    low, high = effects._range(found, effects.thresholds(BARE))
    assert -7 < low < -6
    assert 6 < high < 7
    said, _ = words(effects.forest, arms({"gain": gain}))
    assert "[−40.00, 42.00]" in said


def test_thresholds_are_those_registered_in_per_cent() -> None:
    study = arms(plan=RegisteredPlan(thresholds=Thresholds(strong=0.03, moderate=0.015)))
    assert effects.thresholds(study) == {"minimal": 0.5, "moderate": 1.5, "strong": 3.0}


def test_training_is_compared_with_the_baseline_of_the_same_seed() -> None:
    base = {"1": [(10, 3.0), (20, 2.0)], "2": [(10, 5.0), (20, 4.0)]}
    arm = {"1": [(10, 2.5), (20, 1.0)], "2": [(10, 4.9), (20, 3.8)]}
    by_step = [{seed: dict(logged) for seed, logged in one.items()} for one in (arm, base)]
    mean = curves.mean(curves.minus(*by_step))
    assert [(mark.x, pytest.approx(mark.y)) for mark in mean] == [(10, -0.3), (20, -0.6)]
    assert mean[1].interval == (pytest.approx(-1.0), pytest.approx(-0.2))
    said, drawn = words(
        curves.training,
        arms({"role": "baseline", "training_curve": base}, {"training_curve": arm}),
    )
    assert "At the last logged step: arm 0 3.000; arm 1 2.400." in said
    assert "minus arm 0; below 0 is better" in drawn


def test_a_run_alone_has_no_difference() -> None:
    said, drawn = words(curves.training, arms({"training_curve": {"1": [(1, 2.0), (2, 1.0)]}}))
    assert "1 seed." in said
    assert not any("minus" in word for word in drawn)


def test_runs_logged_at_other_steps_are_not_subtracted() -> None:
    assert curves.minus({"1": {10: 1.0}}, {"1": {20: 1.0}}) == {}
    assert curves.minus({"1": {10: 1.0}}, {"2": {10: 1.0}}) == {}


def test_losses_that_are_not_known_are_left_out() -> None:
    logged = {"1": [(1, 4.0), (3, 2.0), (5, None)]}
    said, _ = words(curves.training, arms({"training_curve": logged}))
    assert "At the last logged step: arm 0 2.000." in said
    assert not is_drawn(curves.training, arms({"training_curve": {"1": [(1, None)]}}))


def test_the_last_loss_of_a_long_run_is_the_one_that_was_logged() -> None:
    logged = [(step, 1000.0 - step) for step in range(400)]
    said, _ = words(curves.training, arms({"training_curve": {"1": logged}}))
    assert "At the last logged step: arm 0 601.000." in said


def test_the_largest_difference_is_told_with_its_place() -> None:
    first, last = (CurvePoint(start=n, end=n + 8, value=4.0 - n / 8) for n in (0, 8))
    other = [first, CurvePoint(start=8, end=16, value=2.9)]
    study = arms({"role": "baseline", "position_curve": [first, last]}, {"position_curve": other})
    said, _ = words(curves.positions, study)
    assert "4.000 at positions 0–7, 3.000 at 8–15" in said
    assert "Largest difference from the baseline: arm 1, −0.100 nats at position 12.0" in said


def depths(losses: dict[float, float]) -> list[DepthMean]:
    return [DepthMean(depth=depth, value=loss) for depth, loss in losses.items()]


def test_what_is_lost_in_the_middle_is_told() -> None:
    said, _ = words(curves.depths, arms({"depth_curve": depths({0: 2.0, 0.5: 2.6, 1: 2.2})}))
    assert "Middle minus edges: arm 0 +0.500." in said


def test_a_middle_like_its_edges_is_told_too() -> None:
    said, _ = words(curves.depths, arms({"depth_curve": depths({0: 2.0, 0.5: 2.0, 1: 2.0})}))
    assert "Middle minus edges: arm 0 0.000." in said


def test_depths_at_the_edges_alone_have_no_middle() -> None:
    said, _ = words(curves.depths, arms({"depth_curve": depths({0: 2.0})}))
    assert "not measured" in said


def test_the_chosen_rate_is_told() -> None:
    tried = [TriedRate(rate=1e-4, loss=3.0), TriedRate(rate=1e-3, loss=2.0, chosen=True)]
    said, drawn = words(conduct.tuning, arms({"tuning": tried}))
    assert "Chosen: arm 0 at 0.001." in said
    assert {"1e−4", "1e−3"} <= set(drawn)


def test_a_chosen_rate_in_the_middle_has_its_own_tick() -> None:
    tried = [TriedRate(rate=rate, loss=2.0, chosen=rate == 1e-3) for rate in (1e-4, 1e-3, 1e-2)]
    assert {"1e−4", "1e−3", "1e−2"} <= set(words(conduct.tuning, arms({"tuning": tried}))[1])
    tried = [TriedRate(rate=rate, loss=2.0, chosen=rate == 2e-4) for rate in (1e-4, 2e-4, 1e-2)]
    drawn = words(conduct.tuning, arms({"tuning": tried}))[1]
    assert {"1e−4", "1e−2"} <= set(drawn)
    assert "2e−4" not in drawn


def test_a_loss_far_above_the_others_is_a_triangle_at_the_edge() -> None:
    losses = (2.0, 2.01, 2.02, 2.03, 400.0)
    tried = [TriedRate(rate=10.0**-n, loss=loss) for n, loss in enumerate(losses)]
    _, drawn = words(conduct.tuning, arms({"tuning": tried}))
    ticks = [float(word) for word in drawn if re.fullmatch(r"\d\.\d+", word)]
    assert ticks
    assert max(ticks) < 2.2


def test_one_rate_alone_is_drawn() -> None:
    tried = [TriedRate(rate=1e-3, loss=2.0, chosen=True), TriedRate(rate=1.0, loss=None)]
    said, drawn = words(conduct.tuning, arms({"tuning": tried}))
    assert "Chosen: arm 0 at 0.001." in said
    assert drawn.count("1e−3") == 1
    assert "1" not in drawn


def test_the_shift_of_boundaries_is_a_mean_over_seeds() -> None:
    learned = [[10.0, 30.0], [14.0, 32.0]]
    found = Boundaries(learned=learned, uniform=[16.0, 32.0], context=48)
    said, drawn = words(landmarks.boundaries, arms({"boundaries": found}))
    assert "arm 0 2.50 tokens (2 seeds)" in said
    assert {"uniform", "run 1", "run 2"} <= set(drawn)


def test_the_strongest_gate_is_told() -> None:
    weights = [[0.1, 0.9], [0.5, 0.5]]
    found = Table(rows=["0–7", "8–15"], columns=["one", "two"], weights=weights)
    said, drawn = words(landmarks.gates, arms({"gates": found}))
    assert "from 0.100 to 0.900" in said
    assert "arm 0: most for two at 0–7, 0.900." in said
    assert {"0–7", "8–15", "one", "two", "0.100", "0.900"} <= set(drawn)


def test_many_columns_without_a_name_are_drawn() -> None:
    blank = Table(rows=["0–7"], columns=[" " * 9] * 30, weights=[[0.5] * 30])
    assert "from 0.500 to 0.500" in words(landmarks.gates, arms({"gates": blank}))[0]


def test_equal_gates_have_full_strength() -> None:
    assert landmarks.strength(0.5, 0.5, 0.5) == 1.0
    assert landmarks.strength(0.0, 0.0, 1.0) == landmarks.FAINTEST


def test_an_arm_is_on_the_frontier_unless_another_is_no_worse_in_both_ways() -> None:
    def offer(name: str, cost: float, result: float) -> Label:
        return Label(cost, result, name, "#000000")

    a, b, c, d = offer("a", 1, 9), offer("b", 2, 9), offer("c", 2, 7), offer("d", 5, 7.5)
    assert unsurpassed([d, c, b, a]) == [a, c]
    assert unsurpassed([a]) == [a]


def test_parameters_over_decades_are_drawn_on_a_logarithmic_axis() -> None:
    study = arms(
        *(
            {"trainable_parameters": 10**n, "perplexity": SeedMean(value=30.0 - n)}
            for n in (3, 4, 5)
        )
    )
    said, drawn = words(frontiers.parameters, study)
    assert "arm 0 (1,000 parameters, perplexity 27.00)" in said
    assert {"1,000", "10,000", "100,000"} <= set(drawn)


def test_an_arm_is_compared_with_its_own_baseline() -> None:
    study = arms(
        {"role": "baseline", "depth_curve": depths({0.5: 3.0})},
        {"role": "reference", "depth_curve": depths({0.5: 2.0})},
        {"baseline": "arm 0", "depth_curve": depths({0.5: 2.9})},
        {"baseline": "arm 1", "depth_curve": depths({0.5: 1.8})},
    )
    values = {"arm 0": 3.0, "arm 1": 2.0, "arm 2": 2.9, "arm 3": 1.8}
    measured = {name: [Mark(0.5, value)] for name, value in values.items()}
    found = curves.against(study, measured)
    assert {name: pytest.approx(marks[0].y) for name, marks in found.items()} == {
        "arm 2": -0.1,
        "arm 3": -0.2,
    }
    assert "minus baseline; below 0 is better" in words(curves.depths, study)[1]


def test_effects_against_several_baselines_say_so() -> None:
    gain = Estimate(value=1.0, interval=(0.5, 1.5))
    study = arms({"gain": gain, "baseline": "a"}, {"gain": gain, "baseline": "b"})
    assert words(effects.forest, study)[0].startswith("Per cent lower perplexity than its baseline")


def test_gains_along_the_context_are_told_in_order() -> None:
    said, drawn = words(curves.gain_curves, FULL)
    assert "position_adaptive: +1.60 % at 512, +1.10 % at 1,024, +0.40 % at 2,048" in said
    assert {"512", "1,024", "2,048", "context, tokens"} <= set(drawn)


def test_bars_of_the_frontier_are_intervals_of_the_gain() -> None:
    gain = Estimate(value=2.0, interval=(1.0, 3.0))
    sized = [
        {"trainable_parameters": 10 * n, "perplexity": SeedMean(value=50.0 - n)} for n in (1, 2, 3)
    ]
    judged, unjudged = {**sized[1], "gain": gain}, sized[2]
    assert bars(arms({**sized[0], "role": "baseline"}, judged, unjudged)) == [
        (pytest.approx(47.53), pytest.approx(48.51))
    ]
    assert bars(arms(judged, unjudged)) == []  # no baseline, no perplexity to start from


def bars(study: Study) -> list[tuple[float, float]]:
    """Return the ends of the vertical bars that the frontier draws."""
    with styled():
        sheet = Sheet(WIDE)
        frontiers.parameters(study, sheet)
    assert sheet.figure is not None
    lines = [line.get_xydata() for line in sheet.figure.axes[0].lines]
    upright = [line for line in lines if len(line) == 2 and line[0][0] == line[1][0]]
    return [(float(line[0][1]), float(line[1][1])) for line in upright]


def test_an_untrained_arm_is_not_on_the_frontier() -> None:
    found = [{"trainable_parameters": n, "perplexity": SeedMean(value=9.0)} for n in (0, 10)]
    assert not is_drawn(frontiers.parameters, arms(*found))


def test_a_gate_with_nothing_to_choose_from_is_not_drawn() -> None:
    found = Table(rows=["0–7"], columns=["landmark 1"], weights=[[1.0]])
    assert not is_drawn(landmarks.gates, arms({"gates": found}))


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
