"""Words for the command line, and what must hold of every refusal."""

from pathlib import Path

import pytest

from hylorada.cli import main

Output = pytest.CaptureFixture[str]


def refusal(capsys: Output, *words: str | Path) -> str:
    """Return the only line on standard error of a command that must be refused."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hylorada: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    return captured.err


def evaluation(place: Path, subject: Path, *words: str | Path) -> list[str]:
    """Return a short evaluation on the text that lies in a folder."""
    sizes = ("--max_length", "24", "--max_tokens", "240", "--device", "cpu")
    data = ("--data", place / "text", "--metrics", "ppl")
    return [str(word) for word in ("evaluate", subject, *data, *sizes, *words)]
