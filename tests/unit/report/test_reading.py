"""Studies and runs are found, and what cannot be shown is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hylorada.errors import SpecError
from hylorada.files import record_json
from hylorada.records import Record
from hylorada.records.evaluations import Estimate
from hylorada.records.runs import RunResult
from hylorada.records.studies import Arm, Study
from hylorada.report.page import render
from hylorada.report.reading import checked, load
from tests.unit.report.example import example

RUN = RunResult(
    id="7c6ab3fd98e2cc60",
    config="a",
    data="b",
    code="c",
    seed=42,
    steps=20,
    valid_perplexity=28.2019,
    valid_tokens=16320,
    trainable_parameters=53505,
    audit="all 20 trainable parameters moved",
    seconds=8.1,
)


def put(folder: Path, content: str | Record, name: str = "study.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(content if isinstance(content, str) else record_json(content))
    return file


def put_changed(folder: Path, **changes: Any) -> Path:
    """Write a study in which parts are not what the record says."""
    return put(folder, json.dumps(json.loads(record_json(example())) | changes))


def refusal(place: Path) -> str:
    with pytest.raises(SpecError) as error:
        load(place)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_study_is_read_from_its_folder_or_its_file(tmp_path: Path) -> None:
    file = put(tmp_path, example())
    assert load(tmp_path) == load(file)
    assert load(file)[0].title == "Do landmarks earn their parameters?"


def test_a_folder_gives_all_studies_below_it_in_the_order_of_their_paths(tmp_path: Path) -> None:
    put(tmp_path / "b", example(study="second"))
    put(tmp_path / "a" / "deep", example(study="first"))
    put(tmp_path / ".partial-c", example(study="half-written"))
    assert [study.study for study in load(tmp_path)] == ["first", "second"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no" in refusal(tmp_path / "nowhere")


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    assert "holds neither" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1', "\x00", "[]", '"text"', "{}"])
def test_a_file_that_holds_no_study_is_refused(tmp_path: Path, text: str) -> None:
    file = put(tmp_path, text)
    assert f"{file} must hold a Study as this version writes it" in refusal(file)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    assert "Invalid enum value 2 - at `$.schema`" in refusal(put(tmp_path, example(schema=2)))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"arms": [{"name": None}]}, "got `null` - at `$.arms[0].name`"),
        ({"arms": None}, "`$.arms`"),
        ({"arms": ["rsLoRA"]}, "`$.arms[0]`"),
        ({"arms": [{"role": "baseline"}]}, "missing required field `name` - at `$.arms[0]`"),
        ({"arms": [{"name": "a", "gian": None}]}, "unknown field `gian` - at `$.arms[0]`"),
        ({"arms": [{"name": "a", "gain": {"value": "1"}}]}, "`$.arms[0].gain.value`"),
        ({"arms": [{"name": "a", "training_curve": {"42": [[1]]}}]}, "array` of length 2"),
        ({"arms": [{"name": "a", "added_parameters": True}]}, "`$.arms[0].added_parameters`"),
        ({"plan": ["text"]}, "`$.plan`"),
        ({"plan": {"tuning": {"split": "tuning", "rates": 4}}}, "`$.plan.tuning`"),
        ({"checks": {"name": "A/A"}}, "`$.checks`"),
        ({"comparisons": [{"arm": "a"}]}, "`against` - at `$.comparisons[0]`"),
        ({"figures_data": {"layer_gates": [{"name": "a"}]}}, "`$.figures_data.layer_gates[0]`"),
    ],
)
def test_an_unknown_or_wrong_field_is_named_by_its_place(
    tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    assert place in refusal(put_changed(tmp_path, **changes))


def test_two_arms_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = example(arms=[Arm(name="twice"), Arm(name="twice")])
    assert "a name of its own" in refusal(put(tmp_path, twice))


def test_characters_that_break_or_reorder_a_page_are_replaced() -> None:
    study = checked(example(title="a\x00b\u202ec", arms=[Arm(name="x\x1b")]))
    assert study.title == "a\ufffdb\ufffdc"
    assert study.arms[0].name == "x\ufffd"


def test_a_number_that_is_not_finite_is_missing() -> None:
    losses = [(1.0, 2.0), (2.0, float("nan")), (3.0, float("inf"))]
    study = checked(Study(arms=[Arm(name="a", training_curve={"1": losses})]))
    assert study.arms[0].training_curve == {"1": [(1.0, 2.0), (2.0, None), (3.0, None)]}
    broken = Study(arms=[Arm(name="a", gain=Estimate(value=float("nan")))])
    with pytest.raises(SpecError, match=r"at `\$\.arms\[0\]\.gain\.value`"):
        checked(broken)


def test_a_run_is_a_study_of_one_arm(tmp_path: Path) -> None:
    put(tmp_path / "first", RUN, "result.json")
    rows = [
        {"step": 10, "loss": 3.5, "grad_norm": 0.4},
        {"step": 20, "loss": 3.4, "grad_norm": 0.3},
        {"step": 20, "loss": 3.4, "grad_norm": 0.3},
        {"step": 20, "eval_loss": 3.3},
        {"step": 30, "loss": float("nan"), "grad_norm": None},
    ]
    put(tmp_path / "first", "\n".join(map(json.dumps, rows)), "metrics.jsonl")
    (study,) = load(tmp_path / "first")
    (arm,) = study.arms
    assert arm.training_curve == {"42": [(10, 3.5), (20, 3.4), (30, None)]}
    assert arm.perplexity is not None
    assert arm.perplexity.value == 28.2019
    assert "Perplexity 28.20 on 16,320 validation tokens after 20 steps" in study.sentences[0]
    assert study.figures_data.gradient_norms[0].points == [(10, 0.4), (20, 0.3)]
    assert load(tmp_path / "first" / "result.json") == [study]


def test_a_run_without_validation_or_log_says_so(tmp_path: Path) -> None:
    put(tmp_path, replace(RUN, valid_perplexity=None, valid_tokens=0, audit=None), "result.json")
    (study,) = load(tmp_path)
    assert "nothing was validated" in study.sentences[0]
    assert study.checks == []
    assert study.arms[0].training_curve is None


@pytest.mark.parametrize("written", ["NaN", "Infinity", "null"])
def test_a_run_that_diverged_has_a_page(tmp_path: Path, written: str) -> None:
    diverged = json.loads(record_json(RUN)) | {"valid_perplexity": json.loads(written)}
    put(tmp_path, json.dumps(diverged), "result.json")
    rows = [
        {"step": 1, "loss": 9.5, "grad_norm": float("nan")},
        {"step": 2, "loss": float("inf"), "grad_norm": 3.0},
        {"step": 3, "loss": float("nan"), "grad_norm": float("-inf"), "eval_loss": float("nan")},
    ]
    put(tmp_path, "\n".join(map(json.dumps, rows)), "metrics.jsonl")
    (study,) = load(tmp_path)
    assert study.sentences[0].startswith("Perplexity not finite on 16,320 validation tokens")
    assert study.arms[0].training_curve == {"42": [(1, 9.5), (2, None), (3, None)]}
    page = render(study)
    assert "Perplexity not finite" in page
    assert "At the last logged step: all parameters 3.00." in page


def test_a_result_that_is_no_run_is_refused(tmp_path: Path) -> None:
    put(tmp_path, '{"arms": {}}', "result.json")
    assert "must hold a RunResult" in refusal(tmp_path)


def test_a_run_of_another_schema_is_refused(tmp_path: Path) -> None:
    put(tmp_path, replace(RUN, schema=7), "result.json")
    assert "Invalid enum value 7 - at `$.schema`" in refusal(tmp_path)


def test_a_torn_log_is_refused(tmp_path: Path) -> None:
    put(tmp_path, RUN, "result.json")
    put(tmp_path, '{"step": 1}\n{"st', "metrics.jsonl")
    assert "must hold lines of JSON" in refusal(tmp_path)
