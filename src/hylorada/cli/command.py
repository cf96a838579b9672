"""What a sub-command is: how its options are read, what is said of a mistake, where results go.

A field of a spec is an option with its type, its default and its help.
"""

import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from rich.console import Console, ConsoleRenderable

from hylorada.errors import SpecError
from hylorada.files import record_json, write_atomically
from hylorada.names import nearest

Spec = TypeVar("Spec")
SpecField = Field[Any]
NO_NAMES: Mapping[str, str] = MappingProxyType({})
# What stands for a value of each type in the help, and what a value must be, in words.
KINDS: dict[object, tuple[str, str]] = {
    int: ("INT", "a whole number"),
    float: ("NUMBER", "a number"),
    bool: ("BOOL", "true or false"),
    dict: ("JSON", 'a JSON object such as {"old": "new"}'),
    list: ("LIST", "a list such as [a, b]"),
    tuple: ("LIST", "a list such as [a, b]"),
}


class Parser(ArgumentParser):
    """Reads options; what is wrong with them is one line, with a repair where one is known."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint as a `SpecError`."""
        raise SpecError(f"{self._complaint(' '.join(message.split()))} ({self.prog} --help)")

    def _complaint(self, line: str) -> str:
        if line.startswith("the following arguments are required: "):
            described = {action.dest: str(action.help) for action in self._actions}
            parts = []
            for name in line.partition(": ")[2].split(", "):
                text = described[name.lstrip("-")].rstrip(".")
                parts.append(f"{name} ({text[:1].lower()}{text[1:]})")
            return f"{self.prog.split()[-1]} needs {' and '.join(parts)}"
        if unknown := re.match(r"unrecognized arguments: --([\w.]+)", line):
            names = [action.dest for action in self._actions if action.option_strings]
            leaves = {name.rpartition(".")[2]: name for name in names}
            near = nearest(unknown.group(1).rpartition(".")[2], sorted(leaves))
            return line if near is None else f"{line}; did you mean '--{leaves[near]}'?"
        return re.sub(r"^argument (\S+): (?=must )", r"\1 ", line).removeprefix("argument ")


def underscored(word: str) -> str:
    """Return an option with underscores for dashes: --max-length is --max_length."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


class Command(NamedTuple):
    """A sub-command.

    Attributes:
        purpose: What it does, on one line.
        example: A command line that works.
        add_options: Adds its options to a parser.
        work: Its job.
        notes: Further lines of its help, shown as they are.
        spelled: Turns a word of the command line into the name of an option.
    """

    purpose: str
    example: str
    add_options: Callable[[ArgumentParser], None]
    work: Callable[[Namespace], None]
    notes: str = ""
    spelled: Callable[[str], str] = underscored


def parsed(name: str, command: Command, words: list[str]) -> Namespace:
    """Return the options of a sub-command that these words set, and the words as `typed`."""
    parts = [command.purpose, f"Example:\n  {command.example}", command.notes]
    parser = Parser(
        prog=f"hylorada {name}",
        description="\n\n".join(part for part in parts if part),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_options(parser)
    needed = [" ".join([*a.option_strings, a.dest]) for a in parser._actions if a.required]
    parser.usage = " ".join([parser.prog, *needed, "[options]"])
    typed = shlex.join(["hylorada", name, *words])
    return parser.parse_args([command.spelled(word) for word in words], Namespace(typed=typed))


def add_settings(
    parser: ArgumentParser,
    spec: type,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    renamed: Mapping[str, str] = NO_NAMES,
) -> None:
    """Add the fields of a spec as options; a list takes several words, and False is a switch.

    Args:
        parser: What receives them.
        spec: A dataclass whose fields have a `help`.
        only: The fields to add; none for all.
        without: Fields to leave out.
        renamed: Options whose names differ from those of their fields.
    """
    for field in settings_of(spec):
        if field.name in without or (only and field.name not in only):
            continue
        option, default = f"--{renamed.get(field.name, field.name)}", default_of(field)
        if default is False:
            parser.add_argument(option, action="store_true", help=field.metadata["help"])
            continue
        lists = [one for one in _alternatives(field.type) if get_origin(one) in (list, tuple)]
        kind = get_args(lists[0])[0] if lists else field.type
        parser.add_argument(
            option,
            type=Reader(kind),
            nargs="+" if lists else None,
            metavar=in_words(kind)[0],
            default=default,
            help=f"{field.metadata['help']} (default: {shown(default)})",
        )


def chosen(
    spec: type[Spec], options: Namespace, *, renamed: Mapping[str, str] = NO_NAMES, **more: object
) -> Spec:
    """Return the spec that the options of its fields describe; `more` gives further fields."""
    given, found = vars(options), dict(more)
    for field in settings_of(spec):
        if (option := renamed.get(field.name, field.name)) in given and field.name not in more:
            value = given[option]
            found[field.name] = tuple(value) if isinstance(value, list) else value
    return spec(**found)


def settings_of(spec: Any) -> tuple[SpecField, ...]:
    """Return the fields of a spec."""
    return fields(spec)


def default_of(field: SpecField) -> object:
    """Return what a setting is if nobody says anything."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def shown(value: object) -> str:
    """Return a default as a reader would type it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def in_words(kind: object) -> tuple[str, str]:
    """Return what stands for a value of a type in the help, and what such a value must be."""
    first = _alternatives(kind)[0]
    if get_origin(first) is Literal:
        return "|".join(get_args(first)), f"one of {', '.join(get_args(first))}"
    return KINDS.get(get_origin(first) or first, ("TEXT", "text"))


def _alternatives(kind: object) -> tuple[object, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


@dataclass(frozen=True)
class Reader:
    """Turns a typed word, or a value from YAML, into a setting's type."""

    kind: object

    def __call__(self, value: object) -> object:
        """Return the value, or raise `ArgumentTypeError` with the rule that it breaks."""
        kinds, plain = _alternatives(self.kind), value
        if value == "null" and NoneType in kinds:
            return None
        try:
            if isinstance(value, str) and any(get_origin(o) in (dict, list, tuple) for o in kinds):
                plain = yaml.safe_load(value)
            return msgspec.convert(
                plain, self.kind, strict=False, dec_hook=lambda build, inner: build(inner)
            )
        except (msgspec.ValidationError, yaml.YAMLError, ValueError) as error:
            raise ArgumentTypeError(f"must be {in_words(self.kind)[1]}; got {value!r}") from error


def add_json(parser: ArgumentParser) -> None:
    """Add the option that says where all numbers go."""
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def require_place(option: str, target: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured for it."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(f"{option} must name a file in a folder that exists; got {target}")


def deliver(
    result: msgspec.Struct | dict[str, Any], target: str | None, *shown: ConsoleRenderable | str
) -> None:
    """Write a result where `--json` says, and show it unless that is standard output.

    Written first, because a reader may close the pipe (`| head`).
    """
    if target == "-":
        print(record_json(result), end="")
        return
    if target is not None:
        write_atomically(Path(target), record_json(result))
    for part in shown:
        if isinstance(part, str):
            say(part)
        else:
            Console().print(part)


def say(line: str) -> None:
    """Print a line as it is, however long."""
    Console().print(line, markup=False, soft_wrap=True)
