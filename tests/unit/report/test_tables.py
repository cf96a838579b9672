"""Tables hold plain values, and leave out what no arm has."""

from typing import Any

from hylorada.records.studies import Arm, Boundaries, Check, CurvePoint, SeedMean, Study
from hylorada.report.figures import Table, tables_of
from tests.unit.report.example import ARMS, example

FOUND = tables_of(example())


def shown(table: Table, arm: str) -> dict[str, str]:
    row = next(row for row in table.shown if row[0][0] == arm)
    return {
        column.heading.replace("\u00a0", " "): " / ".join(filter(None, cell)).replace("\u00a0", " ")
        for column, cell in zip(table.columns, row, strict=True)
    }


def one_arm(**parts: Any) -> Study:
    return Study(arms=[Arm(name="only", **parts)])


def test_the_main_table_has_a_row_for_the_frozen_model_and_every_arm() -> None:
    names = [row[0][0] for row in FOUND["results"].shown]
    assert names == ["frozen model", *ARMS]


def test_a_result_is_shown_with_interval_price_time_and_verdict() -> None:
    assert shown(FOUND["results"], "position_adaptive") == {
        "Arm": "position_adaptive / a gate per bucket",
        "Perplexity": "27.91 / [27.75, 28.07]",
        "Gain": "+1.62 % / [1.21, 2.03]",
        "Parameters added": "4,353",
        "Parameters per 1 %": "2,687",
        "Training time": "8.5 s",
        "Verdict": "B moderate / explained by low_rank",
    }


def test_an_open_verdict_says_how_many_seeds_are_missing() -> None:
    assert shown(FOUND["results"], "per_layer")["Verdict"] == "inconclusive / 6 more seeds needed"


def test_a_control_is_called_one() -> None:
    assert shown(FOUND["results"], "bias")["Arm"].startswith("bias / control · ")


def test_a_description_that_says_control_says_it_once() -> None:
    study = one_arm(role="control", description="control: one vector")
    assert shown(tables_of(study)["results"], "only")["Arm"] == "only / control: one vector"


def test_a_self_check_needs_no_more_seeds() -> None:
    study = one_arm(role="self_check", label="inconclusive", seeds_needed=341)
    assert shown(tables_of(study)["results"], "only")["Verdict"] == "inconclusive"


def test_the_baseline_is_compared_with_nothing() -> None:
    baseline = shown(FOUND["results"], "rsLoRA")
    assert (baseline["Gain"], baseline["Verdict"]) == ("", "baseline")


def test_the_caption_counts_seeds_and_tokens() -> None:
    assert "on 32,640 test tokens, mean over 3 seeds" in FOUND["results"].caption


def test_columns_that_no_arm_fills_are_left_out() -> None:
    perplexity = SeedMean(value=20.0, by_seed=[20.0])
    table = tables_of(one_arm(perplexity=perplexity))["results"]
    assert [column.heading for column in table.columns] == ["Arm", "Perplexity"]
    assert table.rows == [[("only", ""), perplexity]]
    assert "gain" not in table.caption


def test_tables_without_data_are_left_out() -> None:
    assert list(tables_of(one_arm())) == ["results", "cost"]


def test_the_literal_rule_stands_beside_the_verdict() -> None:
    row = shown(FOUND["effects"], "learnable")
    assert row["Seeds"] == "3"
    assert row["Verdict"].startswith("B moderate")
    assert row["Literal rule"].startswith("B: ")


def test_positions_and_depths_have_a_column_an_arm() -> None:
    for key, first in (("positions", "0–3"), ("depths", "0.00")):
        table = FOUND[key]
        assert [column.name for column in table.columns][1:] == list(ARMS)
        assert table.shown[0][0][0] == first
    assert len(FOUND["depths"].rows) == 11


def test_an_arm_without_a_place_has_an_empty_cell_there() -> None:
    first, second = (CurvePoint(start=start, end=start + 8, value=3.0) for start in (0, 8))
    study = Study(
        arms=[
            Arm(name="short", position_curve=[first]),
            Arm(name="long", position_curve=[first, second]),
        ]
    )
    assert tables_of(study)["positions"].rows[1] == ["8–15", None, second]


def test_boundaries_stand_beside_the_uniform_ones() -> None:
    table = FOUND["boundaries"]
    names = [column.name for column in table.columns]
    seeds = [f"learnable seed {seed}" for seed in (42, 123, 456)]
    assert names == ["boundary", "learnable uniform", *seeds]
    assert [row[1] for row in table.rows] == [32.0 * step for step in range(1, 8)]


def test_boundaries_of_unnamed_runs_are_numbered() -> None:
    found = Boundaries(learned=[[10.0], [12.0, 20.0]], uniform=[16.0], context=32)
    table = tables_of(one_arm(boundaries=found))["boundaries"]
    assert [column.name for column in table.columns][2:] == ["only run 1", "only run 2"]
    assert table.rows == [[1, 16.0, 10.0, 12.0], [2, None, None, 20.0]]


def test_gates_have_a_row_a_bucket_and_a_column_a_landmark() -> None:
    table = FOUND["gates"]
    assert len(table.rows) == 16
    assert len(table.columns) == 10


def test_cost_has_units() -> None:
    assert shown(FOUND["cost"], "rsLoRA") == {
        "Arm": "rsLoRA",
        "Trainable parameters": "49,152",
        "Training time": "7.4 s",
        "Tokens per second": "5,300",
        "Peak memory": "392.9 MiB",
        "Adapter on disk": "192.0 KiB",
    }


def test_a_failed_check_is_told_by_a_word() -> None:
    study = example(checks=[Check(name="A/A", passed=False, detail="1 % [1, 1]")])
    assert tables_of(study)["checks"].rows == [["A/A", "FAILED", "1 % [1, 1]"]]


def test_tuning_marks_the_rate_that_was_chosen() -> None:
    rows = [row for row in FOUND["tuning"].rows if row[0] == "bias"]
    assert [row[3] for row in rows] == ["", "", "chosen", ""]
