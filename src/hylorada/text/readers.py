"""Rows and texts from files: plain text, jsonl (.gz, .xz) and parquet, read as a stream."""

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hylorada.errors import SpecError

Row = Mapping[str, Any]

PLAIN = (".txt", ".raw", ".tokens", ".text", ".md", ".rst")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
COMPRESSED = (".gz", ".xz")
TEXT_FIELDS = ("text", "content", "document", "body", "article")
IDENTIFIER_FIELDS = ("id", "identifier", "title", "name", "url")


def kind_of(path: Path) -> str | None:
    """Return the suffix that says how a file is read, such as ".jsonl", or None if none does."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    known = PLAIN + JSON_LINES + PARQUET
    return suffixes[-1] if suffixes and suffixes[-1] in known else None


def plain_text(path: Path) -> str:
    """Return the whole of a plain text file."""
    with _opened(path) as file:
        return file.read()


def plain_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a plain text file, without their line ends."""
    with _opened(path) as file:
        for line in file:
            yield line.rstrip("\r\n")


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


def rows_of(path: Path) -> Iterator[Row]:
    """Return the rows of a file that is not plain text."""
    return parquet_rows(path) if kind_of(path) in PARQUET else json_rows(path)


def text_field_name(row: Row, wanted: str | None, where: str) -> str:
    """Return the name of the field that holds a row's text.

    Args:
        row: Names and values.
        wanted: The name the user chose; None finds it among the usual names, or takes the only
            field that holds a string.
        where: What to call the source in an error.
    """
    if wanted is not None:
        if wanted in row:
            return wanted
        raise SpecError(f"{where} has no field {wanted!r}; its fields are {', '.join(row)}")
    strings = [name for name, value in row.items() if isinstance(value, str)]
    usual = [name for name in TEXT_FIELDS if name in strings]
    if usual:
        return usual[0]
    if len(strings) == 1:
        return strings[0]
    raise SpecError(
        f"{where} needs a field named 'text', or the setting `text_field` that names it; "
        f"its fields are {', '.join(row) or 'none'}"
    )


def row_text(row: Row, wanted: str | None, where: str) -> str:
    """Return a row's text, or raise if the field holds something else."""
    name = text_field_name(row, wanted, where)
    value = row[name]
    if not isinstance(value, str):
        raise SpecError(f"field {name!r} of {where} must be text; got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a pair, which JSON can escape and UTF-8 not hold
        raise SpecError(f"field {name!r} of {where} must be Unicode text; {error}") from error
    return value


def row_identifier(row: Row, otherwise: str) -> str:
    """Return what a row calls itself, or the given name if it does not."""
    for name in IDENTIFIER_FIELDS:
        if row.get(name) not in (None, ""):
            return str(row[name])
    return otherwise
