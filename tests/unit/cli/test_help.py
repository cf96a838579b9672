"""What help shows: a line for every option, and where to find the names that options take."""

from argparse import Action, ArgumentParser
from dataclasses import fields

import pytest

from hylorada.cli import COMMANDS
from hylorada.cli.command import add_settings, chosen
from hylorada.cli.train import SECTIONS
from hylorada.specs.adapters import METHODS
from hylorada.specs.evaluation import (
    DEFAULT_METRICS,
    CertifySpec,
    CompressionSpec,
    EvaluationSpec,
)
from hylorada.specs.run import TextSpec
from hylorada.specs.study import StudyOptions, StudyPlace

SPECS = [
    ("compare", StudyOptions),
    ("compare", StudyPlace),
    ("evaluate", EvaluationSpec),
    ("compress", CompressionSpec),
    ("bound", CertifySpec),
    ("prepare", TextSpec),
]


def options_of(name: str) -> dict[str, Action]:
    parser = ArgumentParser()
    COMMANDS[name].add_options(parser)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    assert [dest for dest, action in options_of(name).items() if not action.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_can_be_printed(name: str) -> None:
    parser = ArgumentParser()
    COMMANDS[name].add_options(parser)
    assert "--help" in parser.format_help()


def test_a_training_has_an_option_for_every_setting() -> None:
    wanted = {f"{name}.{one.name}" for name, spec in SECTIONS.items() for one in fields(spec)}
    wanted |= {f"adapter.{one.name}" for section in METHODS.values() for one in fields(section)}
    found = {dest for dest in options_of("train") if "." in dest}
    assert found == wanted | {"adapter.method"}


def test_the_help_of_a_training_names_the_defaults_of_each_method() -> None:
    assert str(options_of("train")["adapter.r"].help).endswith("(hylorada, lora: 8; sublora: 4)")


@pytest.mark.parametrize(("name", "spec"), SPECS)
def test_a_command_has_an_option_for_every_setting_of_its_spec(name: str, spec: type) -> None:
    options = options_of(name)
    for field in fields(spec):
        if field.name != "command":  # the words that were typed
            assert {"base": "model"}.get(field.name, field.name) in options


@pytest.mark.parametrize(
    ("name", "option", "lists"),
    [
        ("compare", "study", "studies"),
        ("compare", "designs", "designs"),
        ("evaluate", "metrics", "metrics"),
        ("bound", "inequality", "inequalities"),
        ("bench", "what", "benches"),
        ("train", "adapter.landmark_design", "designs"),
        ("train", "adapter.projection", "projections"),
        ("train", "adapter.method", "methods"),
    ],
)
def test_help_points_to_the_list_of_names(name: str, option: str, lists: str) -> None:
    assert f"hylorada list {lists}" in str(options_of(name)[option].help)


def test_an_evaluation_measures_the_default_metrics() -> None:
    assert options_of("evaluate")["metrics"].default == DEFAULT_METRICS


# Options from settings


def read(spec: type, *words: str, **names: str) -> object:
    parser = ArgumentParser()
    add_settings(parser, spec, renamed=names)
    return chosen(spec, parser.parse_args(words), renamed=names)


@pytest.mark.parametrize("spec", [StudyOptions, EvaluationSpec, CompressionSpec, TextSpec])
def test_without_words_a_spec_has_its_defaults(spec: type) -> None:
    assert read(spec) == spec()


def test_lists_switches_and_null_become_values() -> None:
    words = ["--seeds", "1", "2", "--tune", "--learning_rate", "null", "--designs", "bias"]
    found = read(StudyOptions, *words)
    assert found == StudyOptions(seeds=(1, 2), tune=True, designs=("bias",))


def test_a_renamed_setting_is_read_under_its_option() -> None:
    parser = ArgumentParser()
    add_settings(parser, CertifySpec, without=["choices"], renamed={"base": "model"})
    options = parser.parse_args(["--model", "tiny"])
    assert chosen(CertifySpec, options, renamed={"base": "model"}).base == "tiny"
