"""Documents from the embedded corpus, files or the hub, split disjointly by document."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hylorada.errors import SpecError
from hylorada.files import embedded
from hylorada.names import hint, require_no_path, require_one_of
from hylorada.text.hub import SPLITS, hub_rows, looks_like_hub_name, quiet_hub
from hylorada.text.readers import (
    PLAIN,
    Row,
    kind_of,
    plain_lines,
    plain_text,
    row_identifier,
    row_text,
    rows_of,
)

EVERYTHING = "all"
EMBEDDED = ("sotu",)
LINES = ("auto", "keep", "double", "drop_blank", "documents")
# Files beside a corpus that are about it and not part of it.
ABOUT = ("readme", "license", "licence", "notice", "provenance", "commit", "changelog")
# Of 256 values of the first byte of a document's hash: the first tenth is test, the next valid.
TEST_BELOW, VALID_BELOW = 26, 52
ACCEPTED = (
    "'sotu' (embedded), a .txt, .raw, .tokens, .jsonl (.gz, .xz) or .parquet file, a folder of "
    "such files with train, valid or test in their names, or a hub name like owner/name[:config]"
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text that was written as a whole, and what it is called."""

    identifier: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """How rows and lines become documents.

    Attributes:
        text_field: The field of jsonl, parquet and hub rows that holds the text; None finds it.
        lines: What to do with the lines of plain text. "keep" leaves the file as it is; "double"
            strips the newline of blank rows and joins all rows by two newlines, as perplexities on
            WikiText are published; "drop_blank" leaves out blank lines; "documents" makes each
            line that is not blank a document of its own, and so streams. "auto" is "double" for
            WikiText (`wiki.*.raw`, `wiki.*.tokens`, hub names that begin with wikitext after their
            owner) and "keep" elsewhere.
        replace: Strings to replace in every text, such as {"<unk>": "unk"} for tokenised WikiText.
    """

    text_field: str | None = None
    lines: str = "auto"
    replace: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_one_of("lines", self.lines, LINES)
        if "" in self.replace:
            raise SpecError(
                "replace must not have an empty string to look for; leave that entry out"
            )

    def rewritten(self, text: str) -> str:
        """Return the text with every replacement made, in the order given."""
        for old, new in self.replace.items():
            text = text.replace(old, new)
        return text


def documents(source: str | Path, split: str, spec: TextSpec | None = None) -> Iterator[Document]:
    """Return an iterator over the documents of one split, in a fixed order.

    Files whose names hold train, valid (validation, val, dev) or test as a word are those splits.
    A source without such names is split by the SHA-256 of each text (80/10/10 %), so that equal
    texts never fall into two splits.

    Args:
        source: Embedded name, file, folder or hub name; see `ACCEPTED`.
        split: "train", "valid" or "test"; "all" is the whole source.
        spec: How rows and lines become documents.
    """
    spec = spec or TextSpec()
    require_one_of("split", split, (*SPLITS, EVERYTHING))
    if str(source) in EMBEDDED:
        return _of_split(_file_documents(embedded_file(str(source)), spec), split, str(source))
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder_documents(path, split, spec)
    if path.is_file():
        if kind_of(path) is None:
            raise SpecError(f"{path} has a suffix that is not read; give {ACCEPTED}")
        return _named_or_hashed([path], split, spec, path)
    if isinstance(source, str) and looks_like_hub_name(source):
        require_no_path(source.partition(":")[0], ACCEPTED)
        if kind_of(path) is None:  # else it is a mistyped file, and the hub need not be asked
            return _hub_documents(source, split, spec)
    raise SpecError(f"no text at {str(source)!r}; {hint(str(source), EMBEDDED)}give {ACCEPTED}")


def embedded_file(name: str) -> Path:
    """Return where an embedded corpus lies."""
    return embedded(name) / f"{name}.jsonl.xz"


def hashed_split(text: str) -> str:
    """Return the split that a text belongs to where files do not say so."""
    first_byte = hashlib.sha256(text.encode()).digest()[0]
    if first_byte < TEST_BELOW:
        return "test"
    return "valid" if first_byte < VALID_BELOW else "train"


def named_split(path: Path) -> str | None:
    """Return the split that a file's name holds as a word, or None; two are an error."""
    words = re.split(r"[^a-z]+", path.name.lower())
    found = [split for split, names in SPLITS.items() if set(names) & set(words)]
    if len(found) > 1:
        raise SpecError(f"{path.name} names {len(found)} splits; keep one of {', '.join(SPLITS)}")
    return found[0] if found else None


def _folder_documents(folder: Path, split: str, spec: TextSpec) -> Iterator[Document]:
    readable = sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and kind_of(path) and path.name.split(".")[0].lower() not in ABOUT
    )
    if not readable:
        raise SpecError(f"folder {folder} holds no text file; give {ACCEPTED}")
    named = [path for path in readable if named_split(path)]
    return _named_or_hashed(named or readable, split, spec, folder)


def _named_or_hashed(
    paths: list[Path], split: str, spec: TextSpec, source: Path
) -> Iterator[Document]:
    splits = {path: named_split(path) for path in paths}
    if split == EVERYTHING:
        return _files_documents(paths, spec)
    if not any(splits.values()):
        return _of_split(_files_documents(paths, spec), split, str(source))
    chosen = [path for path in paths if splits[path] == split]
    if not chosen:
        held = sorted({str(name) for name in splits.values()})
        raise SpecError(f"{source} has no {split} split; it has {', '.join(held)}")
    return _files_documents(chosen, spec)


def _of_split(all_documents: Iterable[Document], split: str, source: str) -> Iterator[Document]:
    """Yield the documents whose hash falls into the split, or raise at the end if none does."""
    seen = found = 0
    for document in all_documents:
        seen += 1
        if split in (EVERYTHING, hashed_split(document.text)):
            found += 1
            yield document
    if not found:
        raise SpecError(
            f"none of the {seen} documents of {source} falls into {split}; put train, valid or "
            f"test into file names, or ask for split 'all'"
        )


def _files_documents(paths: Iterable[Path], spec: TextSpec) -> Iterator[Document]:
    for path in paths:
        yield from _file_documents(path, spec)


def _file_documents(path: Path, spec: TextSpec) -> Iterator[Document]:
    if kind_of(path) in PLAIN:
        yield from _plain_documents(path, spec)
    else:
        yield from _row_documents(rows_of(path), path.name, spec)


def _plain_documents(path: Path, spec: TextSpec) -> Iterator[Document]:
    is_wikitext = re.match(r"wiki\..*\.(raw|tokens)\b", path.name) is not None
    match _resolved(spec.lines, is_wikitext):
        case "documents":
            for number, line in enumerate(plain_lines(path), start=1):
                if line.strip():
                    yield Document(f"{path.name}:{number}", spec.rewritten(line))
        case "keep":
            yield Document(path.name, spec.rewritten(plain_text(path)))
        case rule:
            rows = [f"{line}\n" for line in plain_lines(path)]
            yield Document(path.name, spec.rewritten(joined_rows(rows, rule)))


def _row_documents(rows: Iterable[Row], name: str, spec: TextSpec) -> Iterator[Document]:
    for number, row in enumerate(rows, start=1):
        where = f"{name}, row {number},"
        text = spec.rewritten(row_text(row, spec.text_field, where))
        yield Document(row_identifier(row, f"{name}:{number}"), text)


def _hub_documents(source: str, split: str, spec: TextSpec) -> Iterator[Document]:
    with quiet_hub():
        rows, has_split = hub_rows(source, split, repair=hint(source, EMBEDDED))
    is_wikitext = source.split(":")[0].split("/")[-1].startswith("wikitext")
    rule = _resolved(spec.lines, is_wikitext)
    found = _row_documents(rows, source, spec)
    if rule in ("double", "drop_blank"):
        found = iter([Document(source, joined_rows((row.text for row in found), rule))])
    return found if has_split else _of_split(found, split, source)


def joined_rows(rows: Iterable[str], rule: str) -> str:
    """Return rows that end in a newline as one text.

    Under "double" a blank row counts as empty and two newlines stand between any two rows, which is
    how the `datasets` form of WikiText becomes one string; "drop_blank" leaves blank rows out.
    """
    if rule == "double":
        return "\n\n".join(row if row.strip() else "" for row in rows)
    return "".join(row for row in rows if row.strip())


def _resolved(lines: str, is_wikitext: bool) -> str:
    if lines != "auto":
        return lines
    return "double" if is_wikitext else "keep"
