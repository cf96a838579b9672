import json
from pathlib import Path

import pytest

from hylorada.cli.certificates import COMMANDS
from hylorada.cli.command import parsed
from hylorada.errors import RunError, SpecError
from tests.unit.jobs.certified import write_place


def run(name: str, *words: object) -> None:
    COMMANDS[name].work(parsed(name, COMMANDS[name], [str(word) for word in words]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("commands"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))


def test_a_file_is_certified_and_verified(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, data = tmp_path / "c.json", place / "text"
    words = ["--data", data, "--samples", 8, "--choices", "dimension=4", "seed=2", "--out", out]
    run("bound", place / "adapter.hyl", *words)
    shown = " ".join(capsys.readouterr().out.split())
    stored = json.loads(out.read_text())
    assert stored["sentence"] in shown
    assert [choice["bits"] for choice in stored["ledger"]["choices"]] == [2.0, 1.0]
    run("verify", out, "--data", data, "--file", place / "adapter.hyl")
    assert capsys.readouterr().out == "confirmed: every loss is the same to the last bit\n"
    stored["statements"][0]["bound"] += 1
    out.write_text(json.dumps(stored))
    with pytest.raises(RunError, match="differs: the bound gain is"):
        run("verify", out, "--data", data, "--file", place / "adapter.hyl")


@pytest.mark.parametrize("word", ["dimension", "=4", "mode=many"])
def test_a_choice_is_a_name_and_a_number(place: Path, tmp_path: Path, word: str) -> None:
    with pytest.raises(SpecError, match="a choice is written name=options"):
        run("bound", "a.hyl", "--data", "sotu", "--out", tmp_path / "c.json", "--choices", word)


def test_a_place_for_the_certificate_is_needed_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--out must name a file in a folder that exists"):
        run("bound", "a.hyl", "--data", "sotu", "--out", tmp_path / "none" / "c.json")
