"""What help shows: an example to copy, and a line for every option."""

import re
from dataclasses import fields

import pytest
from jsonargparse import ArgumentParser

from hylorada.cli import COMMANDS, main
from hylorada.cli.study import QUESTIONS
from hylorada.experiments.allocation import DIVISIONS
from hylorada.experiments.config import SECTIONS, add_arguments
from hylorada.experiments.studies import COMPONENTS, STUDIES
from tests.unit.command_line import Output


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_stands_on_one_line_that_can_be_copied(name: str, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"\nExample:\n  {COMMANDS[name].example}\n" in capsys.readouterr().out


def test_the_help_of_a_training_describes_every_setting() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    settings = [action for action in parser._actions if "." in action.dest]
    assert len(settings) == sum(len(fields(section)) for section in SECTIONS.values())
    assert [action.dest for action in settings if not action.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    parser = ArgumentParser()
    COMMANDS[name].add_options(parser)
    assert [action.dest for action in parser._actions if not action.help] == []


def test_a_comparison_names_the_designs_it_knows(capsys: Output) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    words = re.findall(r"[\w+-]+", capsys.readouterr().out.partition("--designs DESIGNS ")[2])
    assert [name for name in (*COMPONENTS, *DIVISIONS) if name not in words] == []


def test_the_comparisons_that_help_lists_are_the_studies() -> None:
    listed = QUESTIONS.partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in listed] == list(STUDIES)
