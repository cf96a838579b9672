"""Tables as files: CSV with every digit, LaTeX as the page shows them."""

import csv
import io
from pathlib import Path
from typing import Any

from hylorada.files import write_atomically
from hylorada.report.columns import Spread, Table

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
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


def as_csv(table: Table) -> str:
    """Return a table with unrounded values; an interval takes a column for each end."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    widths = [_width(table, index) for index in range(len(table.columns))]
    heads = [
        [column.name, *_extra(column.name, width)]
        for column, width in zip(table.columns, widths, strict=True)
    ]
    writer.writerow([name for head in heads for name in head])
    for row in table.rows:
        cells = [_cells(value, width) for value, width in zip(row, widths, strict=True)]
        writer.writerow([value for cell in cells for value in cell])
    return text.getvalue()


def as_latex(table: Table) -> str:
    """Return a tabular for a document that loads booktabs; text from runs is escaped."""
    letters = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [
        f"% {escaped(table.caption)}",
        rf"\begin{{tabular}}{{{letters}}}",
        r"\toprule",
        _line([column.heading for column in table.columns]),
        r"\midrule",
        *(_line(_typeset(table, row)) for row in table.shown),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text that LaTeX typesets as it stands."""
    return "".join(LATEX.get(letter, letter) for letter in text)


FORMATS = {"csv": as_csv, "tex": as_latex}


def save(tables: dict[str, Table], folder: Path, formats: list[str], stem: str = "") -> list[Path]:
    """Write every table once a format, and return the files."""
    files = []
    for key, table in tables.items():
        for form in formats:
            files.append(folder / f"{stem}{key}.{form}")
            write_atomically(files[-1], FORMATS[form](table))
    return files


def _typeset(table: Table, row: list[tuple[str, str]]) -> list[str]:
    """Return each cell with its interval, or with its note in brackets."""
    notes = [
        small if column.numeric or not small else f"({small})"
        for column, (_, small) in zip(table.columns, row, strict=True)
    ]
    return [
        " ".join(filter(None, (text, note))) for (text, _), note in zip(row, notes, strict=True)
    ]


def _line(cells: list[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"


def _width(table: Table, index: int) -> int:
    """Return how many columns a value fills: three for an interval, two for text with a note."""
    values = [row[index] for row in table.rows if row[index] is not None]
    return max((len(value) if isinstance(value, tuple) else 1 for value in values), default=1)


def _extra(name: str, width: int) -> list[str]:
    return {1: [], 2: [f"{name}_note"], 3: [f"{name}_low", f"{name}_high"]}[width]


def _cells(value: Any, width: int) -> list[Any]:
    cells = list(value) if isinstance(value, tuple | Spread) else [value]
    return ["" if cell is None else cell for cell in (*cells, *[None] * (width - len(cells)))]
