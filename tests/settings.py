"""Every setting that a person can write, with its type and default in the words of the pages."""

from argparse import Action, ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from peft import PeftConfig

from hylorada import SubLoRAConfig
from hylorada.cli import COMMANDS
from hylorada.cli.command import Reader
from hylorada.cli.train import DEFAULT_METHOD, SECTIONS
from hylorada.specs.adapters import METHODS, AdapterSection, SubLoRAFields

WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "none"}


class Setting(NamedTuple):
    """A setting as a row of a page names it."""

    name: str
    type: str
    default: str


def settings() -> dict[str, list[Setting]]:
    """Return the settings of each part of the configuration page, by its heading."""
    method = Setting("method", "text", f"`{DEFAULT_METHOD}`")
    common = [one.name for one in fields(AdapterSection)]
    inherited = [one.name for one in (*fields(PeftConfig), *fields(SubLoRAFields))]
    return {
        **{name: _of_fields(fields(section)) for name, section in SECTIONS.items()},
        "adapter": [method, *_of_fields(fields(AdapterSection))],
        **{
            f"Method {name}": _of_fields(fields(section), without=common)
            for name, section in METHODS.items()
            if name != "none"  # which has nothing of its own
        },
        "SubLoRAConfig": _of_fields(fields(SubLoRAConfig), without=inherited),
        **{f"hylorada {name}": list(_of_command(name)) for name in COMMANDS if name != "train"},
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


def _of_fields(found: Iterable[Field[Any]], without: Iterable[str] = ()) -> list[Setting]:
    return [_of_field(one) for one in found if one.init and one.name not in without]


def _of_field(one: Field[Any]) -> Setting:
    value = one.default if one.default_factory is MISSING else one.default_factory()
    return Setting(one.name, shown_type(one.type), shown_default(value))


def _of_command(name: str) -> Iterator[Setting]:
    parser = ArgumentParser(prog=name)
    COMMANDS[name].add_options(parser)
    for action in parser._actions:
        if action.dest != "help":
            named = action.option_strings[-1] if action.option_strings else action.dest
            yield Setting(named, _type_of(action), _default_of(action))


def _type_of(action: Action) -> str:
    if action.nargs == 0:
        return "switch"
    one = shown_type(action.type.kind if isinstance(action.type, Reader) else str)
    return f"list of {one}" if action.nargs in ("+", "*") else one


def _default_of(action: Action) -> str:
    if action.required or not action.option_strings:
        return "required"
    return "off" if action.nargs == 0 else shown_default(action.default)
