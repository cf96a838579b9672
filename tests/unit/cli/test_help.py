"""What help shows: a line for every option, and the names that the options take."""

from argparse import Action
from dataclasses import fields

import pytest
from jsonargparse import ArgumentParser

from hylorada.cli import COMMANDS
from hylorada.cli.study import DESIGNS, DIVISIONS, QUESTIONS
from hylorada.evaluation.metrics import DEFAULT_METRICS, METRICS
from hylorada.experiments.compress import METHODS
from hylorada.experiments.config import SECTIONS, add_arguments
from hylorada.experiments.studies import COMPONENTS, STUDIES, allocation


def options_of(name: str) -> dict[str, Action]:
    parser = ArgumentParser()
    COMMANDS[name].add_options(parser)
    return {action.dest: action for action in parser._actions}


def test_the_help_of_a_training_describes_every_setting() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    settings = [action for action in parser._actions if "." in action.dest]
    assert len(settings) == sum(len(fields(section)) for section in SECTIONS.values())
    assert [action.dest for action in settings if not action.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    assert [dest for dest, action in options_of(name).items() if not action.help] == []


# Names are written out, so that help can be shown without importing what it names.


def test_an_evaluation_names_the_metrics_it_knows() -> None:
    metrics = options_of("evaluate")["metrics"]
    assert metrics.help == f"Of {', '.join(METRICS)}."
    assert metrics.default == [*DEFAULT_METRICS]


def test_a_compression_names_the_methods_it_knows() -> None:
    assert str(options_of("compress")["method"].help).startswith(f"{', '.join(METHODS)}. ")


def test_a_comparison_names_the_designs_it_knows() -> None:
    assert ", ".join(COMPONENTS) == DESIGNS
    assert ", ".join(allocation.DIVISIONS) == DIVISIONS


def test_the_comparisons_that_help_lists_are_the_studies() -> None:
    listed = QUESTIONS.partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[0] for line in listed] == list(STUDIES)
