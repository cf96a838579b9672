"""Files that survive a kill: complete or absent, and checked before they are believed."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hylorada.errors import SpecError

Kind = TypeVar("Kind", bound=msgspec.Struct)
MANIFEST = "manifest.json"
LOCK = ".lock"
PARTIAL = ".partial-"


def embedded(name: str) -> Path:
    """Return the folder of a model or corpus that is shipped with the package."""
    return Path(str(files("hylorada"))) / "data" / name


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is at every moment either the old one or the new one."""
    partial = path.with_name(PARTIAL + path.name)
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    flush(partial)
    partial.replace(path)
    flush(path.parent)


def read_record(path: Path, kind: type[Kind], repair: str = "") -> Kind:
    """Return the record in a file, or raise `SpecError` with the place of what is wrong in it."""
    return parsed_record(path.read_bytes(), kind, str(path), repair)


def parsed_record(text: bytes | str, kind: type[Kind], where: str, repair: str = "") -> Kind:
    """Return the record in a JSON text; an unknown or wrong field is named by its place."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        rule = f"{where} must hold a {kind.__name__} as this version writes it; {error}"
        raise SpecError(f"{rule}; {repair}".rstrip("; ")) from error


def record_json(record: msgspec.Struct | dict[str, Any]) -> str:
    """Return a record, or what is plain already, as its file holds it."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record as JSON, in one step."""
    write_atomically(path, record_json(record))


@contextmanager
def written_atomically(target: Path) -> Iterator[Path]:
    """Yield a folder to fill; it appears as `target`, checksummed and on disk, when the block ends.

    A block that fails, or a process that dies inside, leaves `target` as it was.
    """
    partial = target.with_name(PARTIAL + target.name)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        seal(partial)
    except BaseException:
        shutil.rmtree(partial)
        raise
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
    flush(target.parent)


def seal(folder: Path) -> None:
    """Write the manifest of sizes and digests, then force all to disk."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {str(path.relative_to(folder)): fingerprint(path) for path in paths}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*folder.rglob("*"), folder):
        flush(path)


def is_intact(folder: Path) -> bool:
    """Return whether every file is there and unchanged since it was sealed."""
    try:
        manifest: dict[str, str] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    return all(
        (folder / name).is_file() and fingerprint(folder / name) == digest
        for name, digest in manifest.items()
    )


def fingerprint(path: Path) -> str:
    """Return the size in bytes and the SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_size}:{digest}"


def flush(path: Path) -> None:
    """Force a file's contents, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path, what: str) -> Iterator[None]:
    """Keep a second process out of the folder of `what`; the lock goes with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpecError(
                f"{what} must have its folder for itself; {folder} is in use by another process; "
                "wait for it or choose another folder with --out"
            ) from error
        yield
