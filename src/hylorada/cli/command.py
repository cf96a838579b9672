"""What a sub-command is, and how its options are read."""

from argparse import ArgumentError
from collections.abc import Callable
from typing import NamedTuple

from jsonargparse import ArgumentParser, Namespace

from hylorada.errors import SpecError


class Command(NamedTuple):
    """A sub-command: its one-line purpose, an example, its options and its job."""

    purpose: str
    example: str
    add_options: Callable[[ArgumentParser], None]
    work: Callable[[Namespace], None]


def parsed(name: str, command: Command, words: list[str]) -> Namespace:
    """Return the options of a sub-command that these words set."""
    parser = ArgumentParser(
        prog=f"hylorada {name}",
        description=f"{command.purpose} Example:  {command.example}",
        exit_on_error=False,
    )
    command.add_options(parser)
    try:
        return parser.parse_args([underscored(word) for word in words])
    except ArgumentError as error:
        raise SpecError(f"{' '.join(str(error).split())} (hylorada {name} --help)") from error


def underscored(word: str) -> str:
    """Return an option with underscores for dashes: --max-length is --max_length."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
