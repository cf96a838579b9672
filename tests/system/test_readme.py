"""What the README tells a newcomer to type works, in the order it tells."""

import re
import shlex
from pathlib import Path

import pytest

from hylorada.cli import COMMANDS, main
from tests.small_run import write_model

README = Path(__file__).parents[2] / "README.md"
LENGTH = 40
# A small model needs small sizes; the words of the README stay as they are.
SIZES = {
    "train": [f"--data.length={LENGTH}", "--num_train=24", "--num_val=4", "--cpu=true"],
    "evaluate": ["--max_length", "40", "--max_tokens", "400", "--device", "cpu"],
    "bound": ["--device", "cpu"],
    "verify": ["--device", "cpu"],
}


def blocks() -> list[list[list[str]]]:
    """Return the commands of every block of the README that has some."""
    fenced = re.compile(r"^```\w*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    found = fenced.findall(README.read_text(encoding="utf-8"))
    commands = [block for block in found if block.startswith("hylorada ")]
    return [[shlex.split(line, comments=True) for line in block.splitlines()] for block in commands]


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a model, and many short texts in files named by their split."""
    write_model(tmp_path / "path/to/model")
    (tmp_path / "my_texts").mkdir()
    for split, first in (("train", 0), ("valid", 500), ("test", 700)):
        for number in range(first, first + 60):
            text = f"{number} is followed by {number + 1}, and then comes {number + 2}."
            (tmp_path / "my_texts" / f"{split}_{number}.txt").write_text(text)
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_six_commands_lead_from_texts_to_a_verified_certificate(
    newcomer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(block for block in blocks() if block[0][1] == "train")
    assert len(path) == 6
    for _, command, *words in path:
        assert main([command, *words, *SIZES.get(command, [])]) == 0, command
    assert capsys.readouterr().out.splitlines()[-1].startswith("confirmed: ")
    assert "<html" in (newcomer / "report.html").read_text()


def test_every_command_named_in_the_readme_exists() -> None:
    named = {line[1] for block in blocks() for line in block}
    assert named <= {"train", *COMMANDS}
    assert {"compare", "report", "verify"} <= named


def test_every_file_that_the_readme_links_to_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", text)]
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
