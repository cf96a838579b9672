"""hylorada list names what registries hold, with one line each."""

import pytest

from hylorada.cli import main
from hylorada.cli.listing import LISTS
from hylorada.specs.adapters import METHODS
from hylorada.studies import STUDIES


@pytest.mark.parametrize("what", LISTS)
def test_every_entry_of_a_list_has_a_line(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_studies_are_listed_with_their_questions(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "studies"])
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert shown == [[name, study.title] for name, study in STUDIES.items()]


def test_methods_are_listed_with_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods"])
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert shown == [[name, section.words] for name, section in METHODS.items()]


def test_an_unknown_list_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "design"]) == 2
    assert capsys.readouterr().err == "hylorada: unknown list 'design'; did you mean 'designs'?\n"
