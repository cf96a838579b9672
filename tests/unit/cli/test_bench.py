"""hylorada bench finds each bench, gives it its rounds, and shows or writes what it returns."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from hylorada.cli import main
from hylorada_benches import BENCHES, Bench, coder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Put a bench of one number in the place of the coder's, and return the rounds it is given."""
    rounds_given: list[int] = []

    def measure(*, rounds: int) -> dict[str, Any]:
        rounds_given.append(rounds)
        return {"rounds": rounds}

    def tables(result: dict[str, Any]) -> list[Table]:
        return [Table("column", title=f"{result['rounds']} rounds")]

    monkeypatch.setitem(BENCHES, "coder", Bench("coder", "a number", 3))
    monkeypatch.setattr(coder, "measure", measure)
    monkeypatch.setattr(coder, "tables", tables)
    return rounds_given


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_refuses_to_measure_nothing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", name, "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "hylorada: rounds must be at least 1; got 0\n"


def test_help_says_how_many_rounds_each_bench_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, each in BENCHES.items():
        assert f"{name} {each.rounds}" in text


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("bound", "unknown bench 'bound'; did you mean 'bounds'?"),
        ("long-context", "unknown bench 'long-context'; did you mean 'long_context'?"),
        ("xyzzy", f"unknown bench 'xyzzy'; known are {', '.join(BENCHES)}"),
    ],
)
def test_an_unknown_bench_is_one_line(
    word: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", word]) == 2
    assert capsys.readouterr().err == f"hylorada: {line}\n"


def test_a_bench_has_its_own_rounds_unless_told(asked: list[int]) -> None:
    assert main(["bench", "coder"]) == 0
    assert main(["bench", "coder", "--rounds", "8"]) == 0
    assert asked == [3, 8]


def test_tables_are_shown_and_numbers_written(
    asked: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "coder", "--json", str(tmp_path / "result.json")]) == 0
    assert "3 rounds" in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text()) == {"rounds": 3}
    assert asked == [3]


def test_numbers_alone_go_to_standard_output(
    asked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "coder", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rounds": 3}
    assert asked == [3]


def test_a_place_that_cannot_be_written_is_refused_before_measuring(
    asked: list[int], tmp_path: Path
) -> None:
    assert main(["bench", "coder", "--json", str(tmp_path / "absent" / "result.json")]) == 2
    assert asked == []
