"""Every example works and says what its page shows; the notebook runs from top to bottom."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from hylorada.cli import COMMANDS, main
from hylorada.cli import study as study_commands
from hylorada.studies import study
from tests.pages import ROOT, Block, blocks, job_of, links
from tests.small_study import Here

FOLDER = ROOT / "examples"
PAGE, NOTEBOOK = FOLDER / "README.md", FOLDER / "hylorada_tour.ipynb"
# The demonstration in small; studies run in this process.
SMALL = replace(
    study_commands.DEMONSTRATION,
    designs=("learnable",),
    seeds=(1,),
    num_train=8,
    num_val=4,
    num_test=8,
    max_length=64,
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder in which commands are typed, with a cache of its own."""
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(study_commands, "demo", partial(study_commands.demo, options=SMALL))
    monkeypatch.setattr(study, "open_engine", lambda name, workers: Here())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


# The page


def carried_out(block: Block) -> str:
    """Carry out a block's commands and return what they said."""
    said = io.StringIO()
    with redirect_stdout(said):
        for words in block.commands:
            job, options = job_of(words)
            assert main([job, *options]) == 0, words
    return said.getvalue()


def is_shown(line: str, said: str) -> bool:
    """Return whether a line of the page was said; an ellipsis stands for anything."""
    pattern = ".*".join(map(re.escape, line.split("…")))
    return re.search(pattern, said) is not None


def test_an_ellipsis_stands_for_numbers_and_not_for_another_line() -> None:
    assert is_shown("4 steps, … parameters", "run x: 4 steps, 12 parameters, …")
    assert not is_shown("4 steps, … parameters", "4 steps\n12 parameters")
    assert not is_shown("4 steps", "5 steps")


def test_the_examples_follow_one_another_and_say_what_the_page_shows(here: Path) -> None:
    names: dict[str, Any] = {}
    said = ""
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, f"{PAGE.name}:{block.line}", "exec"), names)
        elif block.language == "text":
            missing = [line for line in block.text.splitlines() if not is_shown(line, said)]
            assert missing == [], f"{PAGE.name}:{block.line}: {said}"
        else:
            said = carried_out(block)
    assert {path.name for path in here.iterdir()} >= {
        *("my_texts", "tokens", "runs", "studies", "adapter", "adapter.hyl", "certificate.json"),
        *("report.html", "frozen.json", "coder.json", "demo"),
    }


def test_every_command_has_an_example() -> None:
    shown = {job_of(words)[0] for block in blocks(PAGE) for words in block.commands}
    assert shown == set(COMMANDS)


def test_every_link_of_the_page_leads_to_a_file() -> None:
    assert links(PAGE)
    assert [target for target in links(PAGE) if not (FOLDER / target).exists()] == []


# The notebook


def cells(notebook: Any) -> list[Any]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def complaints(notebook: Any) -> list[str]:
    """Return what was written to standard error, and errors."""
    return [
        output.get("text") or output.get("evalue", "")
        for cell in cells(notebook)
        for output in cell.outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]


def last_words(notebook: Any) -> str:
    """Return what the last cell said."""
    return "".join(output.get("text", "") for output in cells(notebook)[-1].outputs)


def test_the_notebook_runs_from_top_to_bottom(here: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in cells(notebook):
        cell.outputs = []
    where = {"metadata": {"path": str(here)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    assert complaints(notebook) == []
    assert last_words(notebook).startswith("confirmed")
    pictures = [
        o for cell in cells(notebook) for o in cell.outputs if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 2


def test_the_notebook_lies_here_with_the_outputs_of_one_clean_run() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.execution_count for cell in cells(notebook)] == [
        *range(1, len(cells(notebook)) + 1)
    ]
    assert complaints(notebook) == []
    assert last_words(notebook).startswith("confirmed")


def test_the_notebook_names_no_place_on_the_machine_it_ran_on() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 150_000
    assert not re.search(r"/(home|root|tmp|work|Users|usr)/", text)
