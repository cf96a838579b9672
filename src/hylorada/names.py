"""What users type: a wrong name is answered with the nearest known one, a number with its rule."""

from collections.abc import Callable, Collection
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from hylorada.errors import SpecError

Kind = TypeVar("Kind")
LIKENESS = 0.5
KINDS = {
    int: "a whole number of at least 1",
    float: "a number",
    bool: "True or False",
    str: "a string",
    dict: "a dictionary",
}
RANGES: dict[str, Callable[[float], bool]] = {
    "positive and finite": lambda number: 0 < number < inf,
    "finite and not negative": lambda number: 0 <= number < inf,
    "in [0, 1)": lambda number: 0 <= number < 1,
}


def known(name: str, names: Collection[str], what: str) -> str:
    """Return a name that is known, or raise `SpecError` with the nearest one."""
    if name in names:
        return name
    repair = hint(name, names) or f"known are {', '.join(names) or 'none'}"
    raise SpecError(f"unknown {what} {name!r}; {repair.rstrip()}")


def require_one_of(setting: str, value: str, names: Collection[str]) -> None:
    """Raise `SpecError` unless a setting has one of the values it can have."""
    if value not in names:
        rule = f"{setting} must be one of {', '.join(names)}; got {value!r}"
        raise SpecError(f"{rule}; {hint(str(value), names)}".rstrip("; "))


def plain(setting: str, value: Any, kind: type[Kind]) -> Kind:
    """Return a value of Python's own type, or raise `SpecError`; an int may stand for a float."""
    if getattr(value, "shape", None) == ():  # numpy's scalars, which JSON cannot hold
        value = value.item()
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or isinstance(value, bool) != (kind is bool) or value != value:
        raise SpecError(f"{setting} must be {KINDS[kind]}; got {value!r}")
    return value


def whole_number(setting: str, value: object, repair: str = "") -> int:
    """Return a whole number of at least 1, or raise `SpecError`; 8.0 is none."""
    number = plain(setting, value, int)
    if number < 1:
        raise SpecError(f"{setting} must be at least 1; got {number}; {repair}".rstrip("; "))
    return number


def real_number(setting: str, value: object, rule: str, repair: str = "") -> float:
    """Return a number that keeps a rule of `RANGES`, or raise `SpecError`."""
    number = plain(setting, value, float)
    if not RANGES[rule](number):
        raise SpecError(f"{setting} must be {rule}; got {number}; {repair}".rstrip("; "))
    return number


def require_no_path(source: str, accepted: str) -> None:
    """Refuse a mistyped path, which the hub would be asked for again and again."""
    parent, slash, name = source.rpartition("/")
    if slash and Path(parent).is_dir() and not Path(source).exists():
        # Without the folder, or every path in it would resemble this one.
        near = nearest(name, [entry.name for entry in Path(parent).iterdir()])
        guess = "" if near is None else f"did you mean '{parent}/{near}'? "
        raise SpecError(f"folder {parent!r} exists and holds no {source!r}; {guess}give {accepted}")


def hint(name: str, names: Collection[str]) -> str:
    """Return a question with the nearest name, to go before the repair; or nothing."""
    near = nearest(name, names)
    return "" if near is None else f"did you mean {near!r}? "


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the name most like this one, if any is."""
    near = get_close_matches(name, list(names), 1, LIKENESS)
    return near[0] if near else None
