"""The README promises a short way; test_docs.py walks it, and all other pages."""

from tests.pages import ROOT, blocks

README = ROOT / "README.md"


def paths() -> list[list[str]]:
    """Return the sub-commands of every block of the README that has some."""
    return [
        [words[1] for words in block.commands]
        for block in blocks(README)
        if block.commands and block.commands[0][0] == "hylorada"
    ]


def test_six_commands_lead_from_texts_to_a_verified_certificate() -> None:
    path = next(path for path in paths() if path[0] == "train")
    assert path == ["train", "evaluate", "report", "compress", "bound", "verify"]


def test_a_newcomer_meets_studies_too() -> None:
    assert ["compare", "report"] in paths()


def test_the_figure_of_the_readme_has_words_for_those_who_do_not_see_it() -> None:
    lines = [line for line in README.read_text(encoding="utf-8").splitlines() if "![" in line]
    assert lines
    assert [line for line in lines if len(line.split("](")[0]) < 40] == []
