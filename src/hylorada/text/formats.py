"""Text formats by file suffix, each read as a stream of documents.

Other packages name the modules that register theirs in the entry point group `hylorada.formats`.
"""

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hylorada.errors import SpecError
from hylorada.registry import Registry
from hylorada.specs.run import TextSpec

Row = Mapping[str, Any]

COMPRESSED = (".gz", ".xz")
TEXT_FIELDS = ("text", "content", "document", "body", "article")
IDENTIFIER_FIELDS = ("id", "identifier", "title", "name", "url")


@dataclass(frozen=True, slots=True)
class Document:
    """One text that was written as a whole, and what it is called."""

    identifier: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How files with some suffixes become documents.

    Attributes:
        name: What the format is called.
        words: One line for lists.
        suffixes: Endings of file names, in lower case; `.gz` or `.xz` may follow.
        read: Yields the documents of a file.
    """

    name: str
    words: str
    suffixes: tuple[str, ...]
    read: Callable[[Path, TextSpec], Iterable[Document]]


FORMATS: Registry[Format] = Registry("text format", "hylorada.formats")


def format_of(path: Path) -> Format | None:
    """Return the format of a file from its suffix, or None if no format has it."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return next((found for found in FORMATS.values() if last in found.suffixes), None)


def plain_documents(path: Path, spec: TextSpec) -> Iterator[Document]:
    """Yield the documents of a plain text file: itself, or its lines."""
    rule = line_rule(spec, re.match(r"wiki\..*\.(raw|tokens)\b", path.name) is not None)
    if rule == "documents":
        for number, line in enumerate(plain_lines(path), start=1):
            if line.strip():
                yield Document(f"{path.name}:{number}", spec.rewritten(line))
        return
    if rule == "keep":
        with _opened(path) as file:
            text = file.read()
    else:
        text = joined_rows((f"{line}\n" for line in plain_lines(path)), rule)
    yield Document(path.name, spec.rewritten(text))


def plain_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a plain text file, without their line ends."""
    with _opened(path) as file:
        for line in file:
            yield line.rstrip("\r\n")


def line_rule(spec: TextSpec, is_wikitext: bool) -> str:
    """Return what lines become, with "auto" resolved."""
    if spec.lines != "auto":
        return spec.lines
    return "double" if is_wikitext else "keep"


def joined_rows(rows: Iterable[str], rule: str) -> str:
    """Return rows that end in a newline as one text.

    Under "double" a blank row counts as empty and two newlines stand between any two rows, which is
    how the `datasets` form of WikiText becomes one string; "drop_blank" leaves blank rows out.
    """
    if rule == "double":
        return "\n\n".join(row if row.strip() else "" for row in rows)
    return "".join(row for row in rows if row.strip())


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a file for reading as UTF-8, unpacked if needed, its line ends untouched."""
    openers: dict[str, Callable[..., TextIO]] = {".gz": gzip.open, ".xz": lzma.open}
    opener = openers.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    except (UnicodeDecodeError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise SpecError(f"{path} must be UTF-8 text; {error}") from error


def row_documents(rows: Iterable[Row], name: str, spec: TextSpec) -> Iterator[Document]:
    """Yield a document for each row of the file or dataset of this name."""
    for number, row in enumerate(rows, start=1):
        text = row_text(row, spec.text_field, f"{name}, row {number},")
        named = (str(row[key]) for key in IDENTIFIER_FIELDS if row.get(key) not in (None, ""))
        yield Document(next(named, f"{name}:{number}"), spec.rewritten(text))


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the JSON object of each line that is not blank."""
    for number, line in enumerate(plain_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise SpecError(f"{path}, line {number}, is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise SpecError(
                f'{path}, line {number}, must be a JSON object like {{"text": "…"}}; '
                f"got {type(row).__name__}"
            )
        yield row


def parquet_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file, a thousand in memory at a time."""
    import pyarrow.parquet  # slow to import, and only parquet needs it

    with path.open("rb") as file:
        try:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1000):
                yield from batch.to_pylist()
        except (pyarrow.ArrowInvalid, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise SpecError(f"{path} must be an intact parquet file; {reason}") from error


def row_text(row: Row, wanted: str | None, where: str) -> str:
    """Return the text of a row: the field wanted, else a usual name, else the only string."""
    strings = [name for name, value in row.items() if isinstance(value, str)]
    usual = [name for name in TEXT_FIELDS if name in strings]
    if wanted is not None and wanted not in row:
        raise SpecError(f"{where} has no field {wanted!r}; its fields are {', '.join(row)}")
    if wanted is None and not usual and len(strings) != 1:
        raise SpecError(
            f"{where} needs a field named 'text', or the setting `text_field` that names it; "
            f"its fields are {', '.join(row) or 'none'}"
        )
    name = (usual or strings)[0] if wanted is None else wanted
    value = row[name]
    if not isinstance(value, str):
        raise SpecError(f"field {name!r} of {where} must be text; got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a pair, which JSON can escape and UTF-8 not hold
        raise SpecError(f"field {name!r} of {where} must be Unicode text; {error}") from error
    return value


for form in (
    Format(
        name="plain",
        words="plain text, a document a file",
        suffixes=(".txt", ".raw", ".tokens", ".text", ".md", ".rst"),
        read=plain_documents,
    ),
    Format(
        name="jsonl",
        words="a JSON object a line, a document a row",
        suffixes=(".jsonl", ".ndjson"),
        read=lambda path, spec: row_documents(json_rows(path), path.name, spec),
    ),
    Format(
        name="parquet",
        words="a table of rows, a document a row",
        suffixes=(".parquet",),
        read=lambda path, spec: row_documents(parquet_rows(path), path.name, spec),
    ),
):
    FORMATS.add(form)
