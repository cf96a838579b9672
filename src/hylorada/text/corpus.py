"""Documents from the embedded corpus, files or the hub, split disjointly by document."""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hylorada.errors import SpecError
from hylorada.files import embedded
from hylorada.names import hint, require_no_path, require_one_of
from hylorada.specs.run import TextSpec
from hylorada.text.formats import (
    COMPRESSED,
    FORMATS,
    Document,
    Row,
    format_of,
    joined_rows,
    line_rule,
    row_documents,
)

# The splits, and what files and datasets call them.
SPLITS = {
    "train": ("train", "training"),
    "valid": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
EVERYTHING = "all"
EMBEDDED = ("sotu",)
# Files beside a corpus that are about it and not part of it.
ABOUT = ("readme", "license", "licence", "notice", "provenance", "commit", "changelog")
# owner/name or name, either with :config
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")
# Of 256 values of the first byte of a document's hash: the first tenth is test, the next valid.
TEST_BELOW, VALID_BELOW = 26, 52


def documents(source: str | Path, split: str, spec: TextSpec | None = None) -> Iterator[Document]:
    """Return an iterator over the documents of one split, in a fixed order.

    Files whose names hold train, valid (validation, val, dev) or test as a word are those splits.
    A source without such names is split by the SHA-256 of each text (80/10/10 %), so that equal
    texts never fall into two splits.

    Args:
        source: Embedded name, file, folder or hub name; see `accepted`.
        split: "train", "valid" or "test"; "all" is the whole source.
        spec: How rows and lines become documents.
    """
    spec = spec or TextSpec()
    require_one_of("split", split, (*SPLITS, EVERYTHING))
    if str(source) in EMBEDDED:
        return _of_split(_read([embedded_file(str(source))], spec), split, str(source))
    path = Path(source).expanduser()
    if path.is_dir() or path.is_file():
        return _local_documents(path, split, spec)
    if isinstance(source, str) and HUB_NAME.fullmatch(source):
        require_no_path(source.partition(":")[0], accepted())
        if format_of(path) is None:  # else it is a mistyped file, and the hub need not be asked
            return _hub_documents(source, split, spec)
    raise SpecError(f"no text at {str(source)!r}; {hint(str(source), EMBEDDED)}give {accepted()}")


def accepted() -> str:
    """Return what a source of text can be, for messages."""
    *suffixes, last = (suffix for form in FORMATS.values() for suffix in form.suffixes)
    return (
        f"{', '.join(map(repr, EMBEDDED))} (embedded), a {', '.join(suffixes)} or {last} file "
        f"(also {' or '.join(COMPRESSED)}), a folder of such files with train, valid or test in "
        "their names, or a hub name like owner/name[:config]"
    )


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


def _read(paths: Iterable[Path], spec: TextSpec) -> Iterator[Document]:
    for path in paths:
        found = format_of(path)
        assert found is not None, "files of no format are left out or refused before"
        yield from found.read(path, spec)


def _local_documents(source: Path, split: str, spec: TextSpec) -> Iterator[Document]:
    """Return the documents of a file, or of the files in a folder, that belong to the split."""
    files = [source]
    if source.is_dir():
        files = sorted(
            path
            for path in source.iterdir()
            if path.is_file() and format_of(path) and path.name.split(".")[0].lower() not in ABOUT
        )
    elif format_of(source) is None:
        raise SpecError(f"{source} has a suffix that is not read; give {accepted()}")
    if not files:
        raise SpecError(f"folder {source} holds no text file; give {accepted()}")
    named = {path: name for path in files if (name := named_split(path))}
    if split == EVERYTHING:
        return _read(named or files, spec)
    if not named:
        return _of_split(_read(files, spec), split, str(source))
    if split not in named.values():
        held = ", ".join(sorted(set(named.values())))
        raise SpecError(f"{source} has no {split} split; it has {held}")
    return _read([path for path, name in named.items() if name == split], spec)


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


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the hub's retries out of the log inside the block; a failure is still raised."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def hub_rows(source: str, split: str, *, repair: str = "") -> tuple[Iterable[Row], bool]:
    """Return the rows of a split, and whether the dataset itself names that split.

    A dataset that has only a train split returns its rows with False: the caller divides them.

    Args:
        source: owner/name, or owner/name:config.
        split: "train", "valid", "test" or "all".
        repair: A likely repair to show when the name cannot be loaded.
    """
    import datasets  # slow to import, and only hub names need it

    name, _, config = source.partition(":")
    try:
        named = datasets.get_dataset_split_names(name, config or None)
        chosen = named
        if split != EVERYTHING and len(named) > 1:
            chosen = [candidate for candidate in SPLITS[split] if candidate in named][:1]
        if not chosen:
            raise SpecError(f"{source} has no {split} split; it has {', '.join(named)}")
        parts = [
            datasets.load_dataset(name, config or None, split=part, streaming=True)
            for part in chosen
        ]
    except SpecError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(
            f"{source!r} is no file or folder here and could not be read from the hub; {repair}"
            f"check the name and the network ({type(error).__name__}: {reason})"
        ) from error
    rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    return rows, split == EVERYTHING or len(named) > 1


def _hub_documents(source: str, split: str, spec: TextSpec) -> Iterator[Document]:
    with quiet_hub():
        rows, has_split = hub_rows(source, split, repair=hint(source, EMBEDDED))
    rule = line_rule(spec, source.split(":")[0].split("/")[-1].startswith("wikitext"))
    found = row_documents(rows, source, spec)
    if rule in ("double", "drop_blank"):
        found = iter([Document(source, joined_rows((row.text for row in found), rule))])
    return found if has_split else _of_split(found, split, source)
