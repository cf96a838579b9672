"""The figures and tables of the page, each registered in its own file, and how they become files.

A figure of your own is a `Figure`, registered with `FIGURES.add`; another package names the module
that does so in the entry point group `hylorada.figures`.
"""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hylorada.files import write_atomically
from hylorada.records import Record
from hylorada.records.studies import Study
from hylorada.registry import Registry
from hylorada.report import wording
from hylorada.report.canvas import NARROW, WIDE, Caption, Sheet, styled
from hylorada.report.wording import WithInterval

Draw = Callable[[Study, Sheet], Caption | None]
Cell = str | float | tuple[str, str] | WithInterval | None  # a pair is text and its small print
Form = Callable[[float, int], str]  # how a number with so many digits is shown


class Column(NamedTuple):
    """A column: its name in a file and its heading; a column of numbers has a form and digits."""

    name: str
    heading: str
    form: Form | None = None
    digits: int = 2

    def shown(self, value: Cell) -> tuple[str, str]:
        """Return the text of a cell and its small print, which is an interval or a note."""
        if isinstance(value, tuple):
            return value
        if value is None or isinstance(value, str):
            return value or "", ""
        number = value.value if isinstance(value, Record) else value
        interval = value.interval if isinstance(value, Record) else None
        if number is None:
            return "", ""
        assert self.form is not None, f"column {self.name} holds numbers, so it needs a form"
        return self.form(number, self.digits), wording.interval(interval, self.digits)


class Table(NamedTuple):
    """Rows of plain values; each column knows how to show its own."""

    caption: str
    columns: list[Column]
    rows: Sequence[Sequence[Cell]]

    @property
    def shown(self) -> list[list[tuple[str, str]]]:
        """Return the text and the small print of every cell."""
        return [
            [column.shown(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


class Figure(NamedTuple):
    """A section of the page: a picture, a table, or a picture with the numbers behind it.

    Attributes:
        name: Its name in links and files.
        words: Its heading.
        draw: Draws on a sheet and returns the caption, or None for a study without the data.
        table: Returns the numbers; a table without rows is left out.
        after: The figure it follows on the page, where that is of another file.
    """

    name: str
    words: str
    draw: Draw | None = None
    table: Callable[[Study], Table] | None = None
    after: str = ""


class Drawing(NamedTuple):
    """A figure for the page: its SVG for a desk and for a phone, and the caption of both."""

    wide: str
    narrow: str
    caption: str


# In the order of the page; figures of other packages come last.
FIGURES: Registry[Figure] = Registry(
    "figure",
    "hylorada.figures",
    "hylorada.report.effects",
    "hylorada.report.curves",
    "hylorada.report.landmarks",
    "hylorada.report.frontiers",
    "hylorada.studies.allocation.figures",
    "hylorada.studies.allocation.gate_figures",
    "hylorada.report.conduct",
)


def in_order() -> list[Figure]:
    """Return every figure in the order of the page, whichever module was imported first."""
    made = {one: getattr(one.draw or one.table, "__module__", "") for one in FIGURES.values()}
    ordered = sorted(made, key=lambda one: [*FIGURES.modules, made[one]].index(made[one]))
    for one in [one for one in ordered if one.after]:
        ordered.remove(one)
        ordered.insert(1 + ordered.index(FIGURES[one.after]), one)
    return ordered


def table_of(figure: Figure, study: Study) -> Table | None:
    """Return the numbers of a figure without empty columns; None if the study has none."""
    table = figure.table(study) if figure.table else None
    if table is None or not table.rows:
        return None
    cells = zip(*table.shown, strict=True)
    kept = [index for index, column in enumerate(cells) if set(column) != {("", "")}]
    rows = [[row[index] for index in kept] for row in table.rows]
    return Table(table.caption, [table.columns[index] for index in kept], rows)


def tables_of(study: Study) -> dict[str, Table]:
    """Return the tables that the study has data for, by name."""
    return {one.name: table for one in in_order() if (table := table_of(one, study))}


def drawing(figure: Figure, study: Study, prefix: str) -> Drawing | None:
    """Return a figure for the page, or None where the study has no data for it."""
    with styled():
        wide, narrow = Sheet(WIDE), Sheet(NARROW)
        if figure.draw is None or (caption := figure.draw(study, wide)) is None:
            return None
        figure.draw(study, narrow)
        described = f"{figure.words}. {caption.text} {caption.numbers}"
        return Drawing(wide.svg(prefix, described), narrow.svg(prefix, described), caption.text)


def save_figures(study: Study, folder: Path, formats: Sequence[str], stem: str = "") -> list[Path]:
    """Write every figure that the study has data for, once a format, and return the files."""
    files = []
    folder.mkdir(exist_ok=True)
    for figure in in_order():
        with styled():
            sheet = Sheet(WIDE)
            if figure.draw is None or figure.draw(study, sheet) is None:
                continue
            for form in formats:
                files.append(folder / f"{stem}{figure.name}.{form}")
                sheet.save(files[-1])
    return files


def save_tables(study: Study, folder: Path, formats: Sequence[str], stem: str = "") -> list[Path]:
    """Write every table that the study has data for, once a format, and return the files."""
    files = []
    folder.mkdir(exist_ok=True)
    for name, table in tables_of(study).items():
        for form in formats:
            files.append(folder / f"{stem}{name}.{form}")
            write_atomically(files[-1], TABLE_FORMATS[form](table))
    return files


def as_csv(table: Table) -> str:
    """Return a table with unrounded values; an interval takes a column for each end."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [[_parts(value) for value in row] for row in table.rows]
    widths = [max(1, *map(len, cells)) for cells in zip(*rows, strict=True)]
    endings = {1: ("",), 2: ("", "_note"), 3: ("", "_low", "_high")}
    named = zip(table.columns, widths, strict=True)
    writer.writerow([column.name + end for column, width in named for end in endings[width]])
    for row in rows:
        cells = zip(row, widths, strict=True)
        filled = [[*cell, *[None] * (width - len(cell))] for cell, width in cells]
        writer.writerow([value for cell in filled for value in cell])
    return text.getvalue()


def _parts(value: Cell) -> list[str | float | None]:
    """Return what a cell fills: three columns for an interval, two for text with a note."""
    if isinstance(value, Record):
        return [value.value, *(value.interval or (None, None))]
    return list(value) if isinstance(value, tuple) else [] if value is None else [value]


def as_latex(table: Table) -> str:
    """Return a tabular for a document that loads booktabs; text from runs is escaped."""
    letters = "".join("r" if column.form else "l" for column in table.columns)
    rows = [[column.heading for column in table.columns]]
    for row in table.shown:
        cells = zip(table.columns, row, strict=True)  # a note stands in brackets
        rows.append(
            [
                " ".join(filter(None, (text, small if column.form or not small else f"({small})")))
                for column, (text, small) in cells
            ]
        )
    head, *body = (" & ".join(map(escaped, row)) + r" \\" for row in rows)
    begin, end = rf"\begin{{tabular}}{{{letters}}}", "\\end{tabular}\n"
    rules = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([f"% {escaped(table.caption)}", begin, *rules, end])


NAMED = ["backslash", "asciitilde", "asciicircum", "less", "greater", "bar", "quotedbl"]
LATEX = {
    **{letter: f"\\{letter}" for letter in "{}$&#%_"},
    **{letter: rf"\text{name}{{}}" for letter, name in zip('\\~^<>|"', NAMED, strict=True)},
    "\u2212": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "–": "--",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "\n": " ",
    "\r": " ",
}


def escaped(text: str) -> str:
    """Return text that LaTeX typesets as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in text)


TABLE_FORMATS = {"csv": as_csv, "tex": as_latex}
