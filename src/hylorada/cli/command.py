"""What a sub-command is, and how its options are read."""

import shlex
from argparse import ArgumentError
from collections.abc import Callable
from typing import NamedTuple

from jsonargparse import ArgumentParser, Namespace

from hylorada.errors import SpecError
from hylorada.experiments.complaints import one_line
from hylorada.experiments.help_text import explained_parser


class Command(NamedTuple):
    """A sub-command: its one-line purpose, an example, its options, its job, and notes."""

    purpose: str
    example: str
    add_options: Callable[[ArgumentParser], None]
    work: Callable[[Namespace], None]
    notes: str = ""


def parsed(name: str, command: Command, words: list[str]) -> Namespace:
    """Return the options of a sub-command that these words set, and the words as `typed`."""
    parser = explained_parser(
        f"hylorada {name}", command.purpose, command.example, notes=command.notes
    )
    command.add_options(parser)
    try:
        options = parser.parse_args([underscored(word) for word in words])
    except ArgumentError as error:
        names = [action.dest for action in parser._actions if action.option_strings]
        complaint = one_line(str(error), {each: f"--{each}" for each in names}, parser)
        raise SpecError(f"{complaint} (hylorada {name} --help)") from error
    options["typed"] = shlex.join(["hylorada", name, *words])
    return options


def underscored(word: str) -> str:
    """Return an option with underscores for dashes: --max-length is --max_length."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
