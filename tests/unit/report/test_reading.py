"""Studies and runs are found, and what cannot be shown is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from hylorada.errors import SpecError
from hylorada.report.reading import checked, load
from tests.unit.report.example import example

RUN = {
    "schema": 1,
    "id": "7c6ab3fd98e2cc60",
    "seed": 42,
    "steps": 20,
    "valid_perplexity": 28.2019,
    "valid_tokens": 16320,
    "trainable_parameters": 53505,
    "audit": "all 20 trainable parameters moved",
    "seconds": 8.1,
}


def put(folder: Path, study: Any, name: str = "study.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(study if isinstance(study, str) else json.dumps(study))
    return file


def refusal(place: Path) -> str:
    with pytest.raises(SpecError) as error:
        load(place)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_study_is_read_from_its_folder_or_its_file(tmp_path: Path) -> None:
    file = put(tmp_path, example())
    assert load(tmp_path) == load(file)
    assert load(file)[0]["title"] == "Do landmarks earn their parameters?"


def test_a_folder_gives_all_studies_below_it_in_the_order_of_their_paths(tmp_path: Path) -> None:
    put(tmp_path / "b", example(study="second"))
    put(tmp_path / "a" / "deep", example(study="first"))
    put(tmp_path / ".partial-c", example(study="half-written"))
    assert [study["study"] for study in load(tmp_path)] == ["first", "second"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no" in refusal(tmp_path / "nowhere")


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    assert "holds neither" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"schema": 1', "\x00"])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    assert "must hold JSON" in refusal(put(tmp_path, text))


@pytest.mark.parametrize("study", [[], "text", {}, {"schema": 2}, {"schema": None}])
def test_another_schema_is_refused(tmp_path: Path, study: Any) -> None:
    assert "must have schema 1" in refusal(put(tmp_path, json.dumps(study)))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"arms": [{"name": None}]}, "arms[0].name must be text; got None"),
        (
            {"arms": [{"name": "a", "tuning": [{"rate": float("nan"), "loss": 1}]}]},
            "rate must be a finite number; got nan",
        ),
        ({"arms": None}, "study.json.arms must be a list; got None"),
        ({"arms": ["rsLoRA"]}, "arms[0] must be an object; got 'rsLoRA'"),
        ({"arms": [{"role": "baseline"}]}, "arms[0] must have 'name'; it has role"),
        ({"arms": [{"name": "twice"}, {"name": "twice"}]}, "a name of its own"),
        ({"arms": [{"name": "a", "gain": {"value": "1"}}]}, "arms[0].gain.value must be a number"),
        ({"arms": [{"name": "a", "training_curve": {"42": [[1]]}}]}, "42[0] must be a list of 2"),
        ({"arms": [{"name": "a", "added_parameters": True}]}, "must be a number; got True"),
        ({"plan": ["text"]}, "plan must be an object"),
        ({"checks": {"name": "A/A"}}, "checks must be a list"),
        ({"comparisons": [{"arm": "a"}]}, "comparisons[0] must have 'against'; it has arm"),
        (
            {"figures_data": {"layer_gates": [{"name": "a", "rows": []}]}},
            "layer_gates[0].rows must be a list of at least 1; got []",
        ),
    ],
)
def test_parts_of_another_form_are_refused(
    tmp_path: Path, changes: dict[str, Any], part: str
) -> None:
    assert part in refusal(put(tmp_path, example(**changes)))


def test_what_a_study_leaves_out_is_empty() -> None:
    study = checked({"schema": 1, "arms": [{"name": "only"}]})
    assert study["sentences"] == study["comparisons"] == study["checks"] == []
    assert study["plan"] == study["provenance"] == {}
    assert study["title"] is None
    assert study["arms"][0]["gain"] is None


def test_characters_that_break_or_reorder_a_page_are_replaced() -> None:
    study = checked(example(title="a\x00b\u202ec", arms=[{"name": "x\x1b"}]))
    assert study["title"] == "a\ufffdb\ufffdc"
    assert study["arms"][0]["name"] == "x\ufffd"


def test_a_run_is_a_study_of_one_arm(tmp_path: Path) -> None:
    put(tmp_path / "first", RUN, "result.json")
    rows = [
        {"step": 10, "loss": 3.5, "grad_norm": 0.4},
        {"step": 20, "loss": 3.4, "grad_norm": 0.3},
        {"step": 20, "loss": 3.4, "grad_norm": 0.3},
        {"step": 20, "eval_loss": 3.3},
    ]
    put(tmp_path / "first", "\n".join(map(json.dumps, rows)), "metrics.jsonl")
    (study,) = load(tmp_path / "first")
    (arm,) = study["arms"]
    assert arm["training_curve"] == {"42": [[10, 3.5], [20, 3.4]]}
    assert arm["perplexity"]["value"] == 28.2019
    assert "Perplexity 28.20 on 16,320 validation tokens after 20 steps" in study["sentences"][0]
    assert study["figures_data"]["gradient_norms"][0]["points"] == [[10, 0.4], [20, 0.3]]
    assert load(tmp_path / "first" / "result.json") == [study]


def test_a_run_without_validation_or_log_says_so(tmp_path: Path) -> None:
    put(tmp_path, RUN | {"valid_perplexity": None, "audit": None}, "result.json")
    (study,) = load(tmp_path)
    assert "nothing was validated" in study["sentences"][0]
    assert study["checks"] == []
    assert study["arms"][0]["training_curve"] is None


def test_a_result_that_is_no_run_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"arms": {}}, "result.json")
    assert "must be the result of a training run" in refusal(tmp_path)


def test_a_run_of_another_schema_is_refused(tmp_path: Path) -> None:
    put(tmp_path, RUN | {"schema": 7}, "result.json")
    assert "must have schema 1; got 7" in refusal(tmp_path)


def test_a_torn_log_is_refused(tmp_path: Path) -> None:
    put(tmp_path, RUN, "result.json")
    put(tmp_path, '{"step": 1}\n{"st', "metrics.jsonl")
    assert "must hold lines of JSON" in refusal(tmp_path)
