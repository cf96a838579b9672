"""The command line of studies: workers carry them out, mistakes end in one line."""

import json
from pathlib import Path

import pytest

from hylorada.cli import COMMANDS, main
from hylorada.cli.command import parsed
from hylorada.cli.study import EXAMPLES
from tests.small_study import write_sources

DOCUMENTED = (
    "bucketing --epochs 1 --num_train 500 --num_val 100 --num_landmarks 8 --seeds 42 123 456"
)


@pytest.mark.parametrize("words", [DOCUMENTED, DOCUMENTED.replace("num_", "num-")])
def test_the_documented_command_is_accepted_verbatim(words: str) -> None:
    options = parsed("compare", COMMANDS["compare"], words.split())
    assert (options.study, options.epochs, options.num_train) == ("bucketing", 1.0, 500)
    assert (options.num_val, options.num_landmarks) == (100, 8)
    assert list(options.seeds) == [42, 123, 456]


def test_the_documented_allocation_study_is_accepted_verbatim() -> None:
    words = EXAMPLES.splitlines()[-1].removeprefix("  hylorada compare ")
    options = parsed("compare", COMMANDS["compare"], words.split())
    assert (options.study, list(options.budgets)) == ("allocation", [1000, 2000])
    assert (list(options.seeds), options.tune) == ([42, 123, 999], True)
    assert (options.certified_documents, options.learning_rate) == (10_000, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lanmarks", "unknown study 'lanmarks'; did you mean 'landmarks'?"),
        ("landmarks --designs sharde", "unknown design 'sharde'; did you mean 'shared'?"),
        ("landmarks --engine rai", "unknown engine 'rai'; did you mean 'ray'?"),
        ("landmarks --data nowhere/at/all", "nowhere/at/all"),
        ("landmarks --model nowhere/at/all/", "nowhere/at/all"),
        ("landmarks --seeds 1 1", "seeds must be given and differ"),
        ("allocation --designs even", "unknown design 'even'; known are equal"),
        ("allocation --budgets 1", "must leave a coordinate to A and one to B"),
        ("landmarks --num_train 0", "num_train must be at least 1; got 0"),
        ("landmarks --num_landmarks 1", "num_landmarks must be at least"),
        ("landmarks --ledger nowhere://runs", "storage that fsspec knows"),
    ],
)
def test_a_mistake_ends_in_one_line_code_2_and_leaves_nothing(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    assert main(["compare", *words.split(), "--cpu"]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not (tmp_path / "studies").exists()
    assert not (tmp_path / "runs").exists()


def test_a_study_is_carried_out_by_workers_and_says_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    words = (
        "compare landmarks --model model --data text --designs bias --seeds 1 --max-length 24 "
        "--num_train 8 --num_val 4 --num_test 4 --batch_size 4 --evidence_items 1 --workers 2 --cpu"
    )
    assert main(words.split()) == 0
    study = json.loads((tmp_path / "studies" / "landmarks" / "study.json").read_text())
    assert study["command"] == f"hylorada {words}"
    assert study["provenance"]["engine"].startswith("local, 2 workers (CPU")
    assert [arm["name"] for arm in study["arms"]] == ["rsLoRA", "bias", "A/A"]
    runs = {run["id"] for arm in study["arms"] for run in arm["runs"]}
    assert runs < {path.name for path in (tmp_path / "runs").iterdir()}
    assert "hylorada report studies/landmarks draws the page." in capsys.readouterr().out
