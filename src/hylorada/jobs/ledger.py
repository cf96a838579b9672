"""A folder of runs by id: who works on what, what is finished, what failed and why.

Several processes may work on one ledger. A job is worked on under a claim, which only one of them
gets; a claim ends with its holder, however that ends. A job is finished once all the files that
its address names are there, and is never worked on again.
"""

import fcntl
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from hylorada.errors import SpecError
from hylorada.files import write_atomically

FAILURE, CLAIM = "failure.json", ".claim"
State = Literal["finished", "running", "failed", "interrupted", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a job's results lie: the folder's name, and the files that make it finished."""

    folder: str
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        """Return a name for the job."""
        return "/".join((self.folder, *self.files[1:]))


class Ledger(ABC):
    """What studies and engines ask of a ledger, wherever it lies."""

    @abstractmethod
    def claim(self, address: Address) -> AbstractContextManager[Path | None]:
        """Give a folder to work in that is this process's alone, or None if another has it."""

    @abstractmethod
    def state(self, address: Address) -> State:
        """Return how far a job is."""

    @abstractmethod
    def text(self, address: Address, name: str) -> str | None:
        """Return a file of a job, or None if there is none."""

    @abstractmethod
    def store(self, address: Address, name: str, text: str) -> None:
        """Write a file of a job."""

    def fail(self, address: Address, error: str) -> None:
        """Note why an attempt at a job ended without a result."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        attempt = {"time": now, "host": socket.gethostname(), "error": error}
        attempts = [*self._attempts(address), attempt]
        self.store(address, FAILURE, json.dumps({"attempts": attempts}, indent=1) + "\n")

    def failures(self, address: Address) -> list[str]:
        """Return why a job ended without a result, the first attempt first."""
        return [attempt["error"] for attempt in self._attempts(address)]

    def _attempts(self, address: Address) -> list[dict[str, str]]:
        text = self.text(address, FAILURE)
        return [] if text is None else json.loads(text)["attempts"]


def open_ledger(place: str) -> Ledger:
    """Return the ledger at a folder or at an fsspec URL such as s3://bucket/runs."""
    if urlsplit(place).scheme in ("", "file"):
        return FolderLedger(Path(place.removeprefix("file://")).expanduser())
    from hylorada.jobs.storage_ledger import StorageLedger

    return StorageLedger(place)


class FolderLedger(Ledger):
    """A ledger in a folder of this machine or of a file system that its machines share.

    Claims are locks of the operating system: they end with the process that holds them.
    """

    def __init__(self, root: Path) -> None:
        if root.exists() and not root.is_dir():
            raise SpecError(f"a ledger must be a folder; {root} is a file; name another")
        self.root = root

    def folder(self, address: Address) -> Path:
        """Return where a job's files lie."""
        return self.root / address.folder

    @contextmanager
    def claim(self, address: Address) -> Iterator[Path | None]:
        """Give the job's folder while this process holds its lock, or None if another does."""
        folder = self.folder(address)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / CLAIM).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            yield folder

    def state(self, address: Address) -> State:
        """Return how far a job is."""
        folder = self.folder(address)
        if all((folder / name).is_file() for name in address.files):
            return "finished"
        try:
            with (folder / CLAIM).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "running"
        except FileNotFoundError:
            pass  # never claimed
        if (folder / FAILURE).is_file():
            return "failed"
        return "interrupted" if folder.is_dir() else "absent"

    def text(self, address: Address, name: str) -> str | None:
        """Return a file of a job, or None if there is none."""
        path = self.folder(address) / name
        return path.read_text() if path.is_file() else None

    def store(self, address: Address, name: str, text: str) -> None:
        """Write a file of a job, in one step."""
        folder = self.folder(address)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)
