"""Every setting that a person can write, with its type and default in the words of the pages."""

from argparse import Action
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from jsonargparse import ArgumentParser
from peft import LoraConfig, PeftConfig

from hylorada import HyLoRADAConfig, SubLoRAConfig
from hylorada.cli import COMMANDS
from hylorada.experiments.config import SECTIONS

WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "none"}


class Setting(NamedTuple):
    """A setting as a row of a page names it."""

    name: str
    type: str
    default: str


def settings() -> dict[str, list[Setting]]:
    """Return the settings of each part of the configuration page, by its heading."""
    sections = {name: [_of_field(one) for one in fields(build)] for name, build in SECTIONS.items()}
    # The study's own options are checked against the command, which names all of them.
    commands = {f"hylorada {name}": list(_of_command(name)) for name in COMMANDS}
    return {
        **sections,
        **commands,
        "HyLoRADAConfig": _beyond(HyLoRADAConfig, LoraConfig),
        "SubLoRAConfig": _beyond(SubLoRAConfig, PeftConfig),
    }


def shown_type(annotation: Any) -> str:
    """Return a type in words: `int | None` is "integer or none"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(shown_type(one) for one in arguments))
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is dict or origin is Mapping:
        return "map of texts"
    if origin in (tuple, list, set):
        return f"list of {shown_type(arguments[0])}"
    return WORDS.get(annotation, "text")


def shown_default(value: Any) -> str:
    """Return a default as YAML would have it: `none` for None, `[42, 123]` for a tuple."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`"


def _of_field(one: Field[Any]) -> Setting:
    value = one.default if one.default_factory is MISSING else one.default_factory()
    return Setting(one.name, shown_type(one.type), shown_default(value))


def _beyond(config: type[Any], base: type[Any]) -> list[Setting]:
    """Return the fields that a configuration adds to its base, or gives another default."""
    inherited = {one.name: shown_default(one.default) for one in fields(base)}
    return [
        _of_field(one)
        for one in fields(config)
        if one.init and inherited.get(one.name) != shown_default(one.default)
    ]


def _of_command(name: str) -> Iterator[Setting]:
    parser = ArgumentParser(prog=name)
    COMMANDS[name].add_options(parser)
    for action in parser._actions:
        if action.dest in ("help", "print_config"):
            continue
        named = action.option_strings[-1] if action.option_strings else action.dest
        yield Setting(named, _type_of(action), _default_of(action))


def _type_of(action: Action) -> str:
    if action.nargs == 0:
        return "switch"
    many = action.nargs in ("+", "*")
    one = shown_type(getattr(action, "_typehint", None) or action.type or str)
    return f"list of {one}" if many else one


def _default_of(action: Action) -> str:
    if action.required or not action.option_strings:
        return "required"
    return "off" if action.nargs == 0 else shown_default(action.default)
