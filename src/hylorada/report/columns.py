"""What tables are made of: rows of plain values, and columns that know how to show them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hylorada.report import wording

Shower = Callable[[Any], tuple[str, str]]


class Spread(NamedTuple):
    """A value with the ends of its interval; without one they are None."""

    value: float | None
    low: float | None
    high: float | None


class Column(NamedTuple):
    """A column: its name in a file, its heading, and how a value is shown with its small print."""

    name: str
    heading: str
    show: Shower

    @property
    def numeric(self) -> bool:
        """Return whether it holds numbers, which stand on the right."""
        return self.show not in (text, pair)


class Table(NamedTuple):
    """Rows of plain values; each column knows how to show its own."""

    caption: str
    columns: list[Column]
    rows: list[list[Any]]

    @property
    def shown(self) -> list[list[tuple[str, str]]]:
        """Return the text and the small print of every cell."""
        return [
            [column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def without_empty_columns(self) -> "Table":
        """Return the table without the columns that no row fills."""
        kept = [
            index
            for index, _ in enumerate(self.columns)
            if any(_is_known(row[index]) for row in self.rows)
        ]
        return self._replace(
            columns=[self.columns[index] for index in kept],
            rows=[[row[index] for index in kept] for row in self.rows],
        )


def estimate(found: dict[str, Any] | None) -> Spread | None:
    """Return a value of a study with its interval; None where there is none."""
    if not found:
        return None
    return Spread(found.get("value"), *(found.get("interval") or (None, None)))


def text(value: Any) -> tuple[str, str]:
    """Show text as it is."""
    return ("" if value is None else str(value)), ""


def pair(value: tuple[str, str] | None) -> tuple[str, str]:
    """Show text with its small print."""
    return value or ("", "")


def plain(show: Callable[[float | None], str]) -> Shower:
    """Return what shows a number in this form, and nothing where there is none."""
    return lambda value: ("" if value is None else show(value), "")


def rounded(digits: int) -> Shower:
    """Return what shows a number with so many digits."""
    return plain(lambda value: wording.number(value, digits))


whole = rounded(0)


def spread(show: Callable[[float | None], str], digits: int = 2) -> Shower:
    """Return what shows a value in this form, its interval as small print with so many digits."""

    def shown(value: Spread | None) -> tuple[str, str]:
        if value is None or value.value is None:
            return "", ""
        ends: Sequence[float | None] | None = None if value.low is None else value[1:]
        return show(value.value), wording.interval(ends, digits)

    return shown


def _is_known(value: Any) -> bool:
    known = value.value if isinstance(value, Spread) else value
    return known is not None and known != ""
