"""A ledger on object storage, through fsspec: runs are computed locally and uploaded.

Claims are leases, because such storage has no locks: `lease-N.json` names its holder and when it
was last alive. Whoever finds the newest lease expired creates the next one; storage that creates
exclusively (local disks, memory, S3, GCS) lets one process succeed. A holder whose lease was taken
over, since it was silent for too long, uploads nothing.
"""

import json
import logging
import math
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import fsspec

from hylorada.errors import RunError, SpecError
from hylorada.experiments.job import Address
from hylorada.experiments.ledger import FAILURE, State, attempts, with_attempt

logger = logging.getLogger(__name__)

LEASE = "lease-{}.json"
LIFETIME_S = 60.0
BEATS_PER_LIFETIME = 4


class StorageLedger:
    """A ledger at an fsspec URL."""

    def __init__(self, url: str, *, lifetime_s: float | None = None) -> None:
        """Open the storage; a lease expires after `lifetime_s` without a sign of its holder."""
        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise SpecError(
                f"a ledger needs storage that fsspec knows; got {url!r} ({reason})"
            ) from error
        self.root = PurePosixPath(root)
        self.lifetime_s = _lifetime_s() if lifetime_s is None else lifetime_s

    @contextmanager
    def claim(self, address: Address) -> Iterator[Path | None]:
        """Give a scratch folder with what the storage has; upload it when the block succeeds."""
        lease = self._take(address)
        if lease is None:
            yield None
            return
        scratch = Path(tempfile.mkdtemp(prefix=f"hylorada-{address.folder}-"))
        try:
            with lease:
                self._download(address, scratch)
                yield scratch
                lease.require()
                self._upload(address, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def state(self, address: Address) -> State:
        """Return how far a job is."""
        if all(self.files.exists(self._path(address, name)) for name in address.files):
            return "finished"
        number = self._newest_lease(address)
        if number is not None and self._is_alive(self._path(address, LEASE.format(number))):
            return "running"
        if self.files.exists(self._path(address, FAILURE)):
            return "failed"
        return "absent" if number is None else "interrupted"

    def text(self, address: Address, name: str) -> str | None:
        """Return a file of a job, or None if there is none."""
        try:
            found: bytes = self.files.cat_file(self._path(address, name))
        except FileNotFoundError:
            return None
        return found.decode()

    def fail(self, address: Address, error: str) -> None:
        """Add an attempt to the job's failures."""
        text = with_attempt(self.text(address, FAILURE), error)
        self._write(self._path(address, FAILURE), text)

    def failures(self, address: Address) -> list[str]:
        """Return why a job ended without a result, the first attempt first."""
        return attempts(self.text(address, FAILURE))

    def _path(self, address: Address, name: str) -> str:
        return str(self.root / address.folder / name)

    def _write(self, path: str, text: str) -> None:
        self.files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        self.files.pipe_file(path, text.encode())

    def _take(self, address: Address) -> "Lease | None":
        number = self._newest_lease(address)
        if number is not None and self._is_alive(self._path(address, LEASE.format(number))):
            return None
        lease = Lease(self, address, 0 if number is None else number + 1)
        return lease if lease.create() else None

    def _newest_lease(self, address: Address) -> int | None:
        folder = str(self.root / address.folder)
        self.files.invalidate_cache(folder)
        try:
            names = [PurePosixPath(path).name for path in self.files.ls(folder, detail=False)]
        except FileNotFoundError:
            return None
        numbers = [name.removeprefix("lease-").removesuffix(".json") for name in names]
        return max((int(number) for number in numbers if number.isdigit()), default=None)

    def _is_alive(self, path: str) -> bool:
        try:
            alive = json.loads(self.files.cat_file(path))["alive"]
        except ValueError:  # being written at this moment, or its writer died in that moment
            alive = self.files.modified(path).timestamp()
        return bool(alive + self.lifetime_s > time.time())

    def _create(self, path: str, text: str) -> None:
        """Write a new file, or raise `FileExistsError`, in one step that others cannot share."""
        self.files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        if type(self.files).pipe_file is fsspec.AbstractFileSystem.pipe_file:
            with self.files.open(path, "xb") as file:  # its own way would look first, then write
                file.write(text.encode())
        else:
            self.files.pipe_file(path, text.encode(), mode="create")

    def _download(self, address: Address, scratch: Path) -> None:
        folder = str(self.root / address.folder)
        for path in self.files.find(folder):
            relative = PurePosixPath(path).relative_to(PurePosixPath(folder))
            if not relative.name.startswith("lease-"):
                target = scratch / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.files.cat_file(path))

    def _upload(self, address: Address, scratch: Path) -> None:
        """Write every new file, those that make the job finished last."""
        found = [path for path in scratch.rglob("*") if path.is_file()]
        found = [path for path in found if not path.name.startswith(".") and path.name != FAILURE]
        for path in sorted(found, key=lambda path: path.name in address.files):
            target = self._path(address, path.relative_to(scratch).as_posix())
            self.files.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
            self.files.pipe_file(target, path.read_bytes())


def _lifetime_s() -> float:
    """Return the seconds after which a silent holder has lost its lease."""
    given = os.environ.get("HYLORADA_LEASE_SECONDS", str(LIFETIME_S))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise SpecError(f"HYLORADA_LEASE_SECONDS must be a positive number; got {given!r}")
    return seconds


class Lease:
    """A claim with a heartbeat."""

    def __init__(self, ledger: StorageLedger, address: Address, number: int) -> None:
        self.ledger, self.address, self.number = ledger, address, number
        self.path = ledger._path(address, LEASE.format(number))
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4()}"
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def create(self) -> bool:
        """Return whether this lease came into being, and not another one of its number."""
        try:
            self.ledger._create(self.path, self._text(time.time()))
        except FileExistsError:
            return False
        return self._is_mine()

    def require(self) -> None:
        """Raise if another process has taken over."""
        newest = self.ledger._newest_lease(self.address)
        if newest != self.number or not self._is_mine():
            raise RunError(
                f"the lease on {self.address.folder} was lost to another process, because this one "
                f"gave no sign for {self.ledger.lifetime_s:g} s; its result is not stored"
            )

    def __enter__(self) -> "Lease":
        self._beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._beating.join()
        if self._is_mine():
            self._write(0.0)  # free at once

    def _is_mine(self) -> bool:
        with self._writing:
            held = json.loads(self.ledger.files.cat_file(self.path))
        return bool(held["owner"] == self.owner)

    def _text(self, alive: float) -> str:
        return json.dumps({"owner": self.owner, "alive": alive})

    def _write(self, alive: float) -> None:
        with self._writing:
            self.ledger._write(self.path, self._text(alive))

    def _beat(self) -> None:
        while not self._ended.wait(self.ledger.lifetime_s / BEATS_PER_LIFETIME):
            try:
                self._write(time.time())
            except OSError as error:  # the next beat may reach the storage again
                logger.warning("could not renew %s: %s", self.path, error)
