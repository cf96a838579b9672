"""What the page shows of an allocation study: statements, a summary, gates, gradients, files."""

import csv
import io
import re
from typing import Any

import numpy as np
import pytest

from hylorada.records.studies import (
    Arm,
    BoundPart,
    BoundParts,
    FactorGradients,
    FiguresData,
    Hypothesis,
    NamedCurve,
    NamedTable,
    SeedMean,
    Study,
)
from hylorada.report.axes import Label, label_near
from hylorada.report.canvas import NARROW, WIDE, Sheet, styled
from hylorada.report.figures import as_csv, as_latex, tables_of
from hylorada.report.page import render
from hylorada.studies.allocation import figures, gate_figures
from hylorada.studies.allocation.figures import bits_per_coordinate
from hylorada.studies.allocation.gate_figures import GatedLayer, gated_layers
from tests.unit.report.allocation_study import (
    DIVISIONS,
    LAYERS,
    SEEDS,
    allocation_of,
    allocation_study,
)
from tests.unit.report.drawn import is_drawn, words

STUDY = allocation_study()
TABLES = tables_of(STUDY)


def with_data(**data: Any) -> Study:
    return Study(arms=[], figures_data=FiguresData(**data))


def arm(**parts: Any) -> Arm:
    return Arm(name="one", role="candidate", allocation=allocation_of(**parts))


def test_statements_are_told_with_label_estimate_interval_and_sentence() -> None:
    text = " ".join(re.sub("<[^>]*>", " ", render(allocation_study())).split())
    first = allocation_study().statements[0]
    assert f"{first.label} H1 an asymmetric split beats an equal one: +" in text
    assert "% lower perplexity" in text
    assert first.sentence is not None
    assert first.sentence.partition(":")[0] in text
    assert "Judged with an error probability of" in text


def test_a_statement_without_an_estimate_has_none() -> None:
    bare = Hypothesis(name="H3", label="inconclusive", claim="γ trends")
    page = render(Study(arms=[], statements=[bare]))
    assert re.search(r"<strong>H3</strong> γ trends\s*</span>", page)


def test_statements_are_a_table_in_files() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLES["statements"]))))
    assert [row["statement"] for row in rows] == ["H1", "H2", "H3"]
    assert [row["label"] for row in rows] == [one.label for one in STUDY.statements]
    low, value, high = (
        float(rows[1][key]) for key in ("estimate_low", "estimate", "estimate_high")
    )
    assert low < value < high
    assert r"H2 (learned gates differ from one half, consistently) & supported" in as_latex(
        TABLES["statements"]
    )


def test_the_summary_has_a_row_an_arm_with_bits_risks_and_bound() -> None:
    rows = {row["arm"]: row for row in csv.DictReader(io.StringIO(as_csv(TABLES["allocation"])))}
    assert len(rows) == 2 * len(DIVISIONS) + 1
    heavy = rows["B-heavy d=2000"]
    assert float(heavy["bits_per_coordinate"]) == pytest.approx(float(heavy["bits"]) / 2000)
    assert float(heavy["share_of_b"]) == 0.8
    assert float(heavy["risk_unquantised"]) < float(heavy["risk"]) < float(heavy["bound"])
    assert heavy["certificates"] == "3"
    assert rows["uniform d=1000"]["share_of_b"] == ""


@pytest.mark.parametrize(
    ("fixed", "trained", "shown"), [(0.5, 0.61, 0.61), (0.5, None, 0.5), (None, None, None)]
)
def test_a_learned_share_stands_before_a_fixed_one(
    fixed: float | None, trained: float | None, shown: float | None
) -> None:
    one = arm(ratio=fixed, share_of_b=SeedMean(value=trained))
    assert figures.summary(Study(arms=[one])).rows[0][2] == shown


def test_bits_per_coordinate_need_bits_and_coordinates() -> None:
    assert bits_per_coordinate(allocation_of(bits=SeedMean(value=3500))) == 3.5
    assert bits_per_coordinate(allocation_of(bits=SeedMean())) is None
    assert bits_per_coordinate(allocation_of(bits=SeedMean(value=3500), budget=0)) is None


def test_gates_have_a_row_a_layer_and_a_column_a_run() -> None:
    table = TABLES["layer_gates"]
    assert [row[0] for row in table.rows] == LAYERS
    assert len(table.columns) == 1 + 2 * len(SEEDS)


def test_bound_parts_add_up_in_the_table() -> None:
    for row in TABLES["bound_parts"].rows:
        numbers = [value for value in row if isinstance(value, float)]
        assert sum(numbers[:-1]) == pytest.approx(numbers[-1])


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_arm_but_the_repetition_is_in_the_compression_figure(width: float) -> None:
    said, drawn = words(figures.compression, STUDY, width)
    names = [one.name for one in STUDY.arms if one.role != "self_check"]
    assert set(names) <= set(drawn)
    assert "A/A" not in drawn
    assert "uniform d=1000 3.21 bits, 3,205 bits, file 544 bytes" in said


def test_the_frontier_is_over_all_budgets() -> None:
    said, drawn = words(figures.bits_against_risk, STUDY)
    assert "On the frontier: uniform d=1000 (" in said
    assert "uniform d=2000" in said
    assert {f"{name} d=2000" for name in DIVISIONS} <= set(drawn)


def parts(*values: float) -> BoundParts:
    named = zip(("empirical risk", "quantisation", "complexity"), values, strict=True)
    return BoundParts(
        name="one", parts=[BoundPart(name=name, value=value) for name, value in named]
    )


def test_bars_of_a_bound_end_in_their_sum() -> None:
    said, drawn = words(figures.bound_parts, with_data(bound_parts=[parts(4.0, 0.08, 1.5)]))
    assert "one 5.580" in said
    assert {"5.580", "■ complexity", "bits per token"} <= set(drawn)
    assert "cut" not in said


def test_a_first_part_that_dwarfs_the_others_is_cut_and_said_to_be() -> None:
    rows = [parts(11.0, -0.001, 0.03), parts(11.01, 0.002, 0.03)]
    said, drawn = words(figures.bound_parts, with_data(bound_parts=rows))
    assert "they start at 10.983, not at 0" in said
    assert drawn.count("//") == 2


def test_the_slope_of_gates_is_told_without_the_head() -> None:
    rows = [*(f"layer {index}" for index in range(3)), "head"]
    weights = [[0.5, 0.52], [0.55, 0.57], [0.6, 0.62], [0.9, 0.9]]
    row = NamedTable(name="learned", rows=rows, columns=["seed 1", "seed 2"], weights=weights)
    said, drawn = words(gate_figures.gate_trend, with_data(layer_gates=[row]))
    assert "learned +0.100" in said
    assert {"0", "1", "2", "head", "γ, learned"} <= set(drawn)


def test_one_layer_has_no_trend() -> None:
    weights = [[1.0], [1.0]]
    row = NamedTable(name="x", rows=["layer 0", "head"], columns=["seed 1"], weights=weights)
    assert not is_drawn(gate_figures.gate_trend, with_data(layer_gates=[row]))


def test_small_departures_are_not_blown_up_by_the_scale() -> None:
    row = NamedTable(name="x", rows=["layer 0"], columns=["seed 1"], weights=[[0.501]])
    said, _ = words(gate_figures.layer_gates, with_data(layer_gates=[row]))
    assert "from 0.480 to 0.520" in said


def test_gradients_of_one_arm_stand_together_under_its_final_gate() -> None:
    said, drawn = words(gate_figures.gradient_norms, STUDY)
    assert sum(text.startswith("learned d=1000, final γ 0.58") for text in drawn) == 1
    assert drawn.count("A") == drawn.count("B") == 2
    assert "A, learned d=1000 0.0715; B, learned d=1000 0.171" in said


def test_gradients_of_unpaired_names_share_a_plot() -> None:
    points = [(1.0, 2.0), (2.0, 1.0)]
    rows = [NamedCurve(name=name, points=points) for name in ("all parameters", "C, x")]
    said, drawn = words(gate_figures.gradient_norms, with_data(gradient_norms=rows))
    assert {"all parameters", "C, x", "norm of the gradient"} <= set(drawn)
    assert "γ" not in said


def test_gates_are_drawn_against_the_ratio_of_gradients() -> None:
    said, drawn = words(gate_figures.gradient_gates, STUDY)
    assert "Rank correlation over layers: learned d=1000 +1.00; learned d=2000 +1.00." in said
    assert {"0", "5", "head", "final γ, learned d=1000"} <= set(drawn)


def test_ratios_many_times_each_other_are_drawn_on_a_logarithmic_axis() -> None:
    norms = FactorGradients(A=[1.0, 1.0, 1.0], B=[1.5, 2.0, 16.0])
    found = arm(layers=["layer 0", "layer 1", "head"], gamma=[[0.5, 0.5, 0.6]], gradients=norms)
    _, drawn = words(gate_figures.gradient_gates, Study(arms=[found]))
    assert {"3", "10", "head"} <= set(drawn)


def test_a_layer_has_the_ratio_and_the_mean_gate() -> None:
    norms = FactorGradients(A=[0.5, 0.0], B=[1.5, 1.0])
    found = gated_layers(
        arm(layers=["layer 0", "layer 1"], gamma=[[0.6, 0.5], [0.7, 0.5]], gradients=norms)
    )
    assert found == [GatedLayer("layer 0", (0.5, 1.5), [0.6, 0.7])]
    assert (found[0].ratio, found[0].gate) == (3.0, pytest.approx(0.65))


def test_a_single_layer_has_no_rank_correlation() -> None:
    assert gate_figures.rank_correlation([GatedLayer("layer 0", (1.0, 2.0), [0.5])]) is None
    falling = [GatedLayer(str(n), (1.0, 1.0 + n), [0.9 - n / 10]) for n in range(4)]
    assert gate_figures.rank_correlation(falling) == pytest.approx(-1.0)


def test_twelve_points_in_a_heap_have_labels_apart() -> None:
    random = np.random.default_rng(3)
    with styled():
        sheet = Sheet(NARROW)
        (axes,) = sheet.panels(1, columns=1, height=366, left=52, right=26)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        places = 0.4 + 0.2 * random.random((12, 2))
        points = [(float(x), float(y)) for x, y in places]
        ends = [(y - 0.03, y + 0.03) for _, y in points]
        named = zip(points, ends, strict=True)
        label_near(axes, [Label(*one, "B-heavy d=1000", "#000000", end) for one, end in named])
        tops = sorted((text.get_position() for text in axes.texts), key=lambda place: place[1])
    assert len({(round(x, 3), round(y, 3)) for x, y in tops}) == 12
    assert all(0 <= y <= 1.05 for _, y in tops)
