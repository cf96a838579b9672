"""Names that users type: a wrong one is answered with the nearest that is known."""

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from hylorada.errors import SpecError

LIKENESS = 0.5


def known(name: str, names: Collection[str], what: str) -> str:
    """Return a name that is known, or raise `SpecError` with the nearest one."""
    if name in names:
        return name
    repair = hint(name, names) or f"known are {', '.join(names) or 'none'}"
    raise SpecError(f"unknown {what} {name!r}; {repair.rstrip()}")


def require_one_of(setting: str, value: str, names: Collection[str]) -> None:
    """Raise `SpecError` unless a setting has one of the values it can have."""
    if value not in names:
        rule = f"{setting} must be one of {', '.join(names)}; got {value!r}; {hint(value, names)}"
        raise SpecError(rule.rstrip("; "))


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
