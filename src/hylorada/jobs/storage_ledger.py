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
from hylorada.jobs.ledger import FAILURE, Address, Ledger, State

logger = logging.getLogger(__name__)

LEASE = "lease-"
BEATS_PER_LIFETIME = 4


class StorageLedger(Ledger):
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
        given = os.environ.get("HYLORADA_LEASE_SECONDS", "60") if lifetime_s is None else lifetime_s
        try:
            self.lifetime_s = float(given)
        except ValueError:
            self.lifetime_s = math.nan
        if not 0 < self.lifetime_s < math.inf:
            raise SpecError(f"HYLORADA_LEASE_SECONDS must be a positive number; got {given!r}")

    @contextmanager
    def claim(self, address: Address) -> Iterator[Path | None]:
        """Give a scratch folder with what the storage has; upload it when the block succeeds."""
        lease = self._take(address)
        if lease is None:
            yield None
            return
        scratch = tempfile.TemporaryDirectory(prefix="hylorada-", ignore_cleanup_errors=True)
        with scratch as name, lease:
            folder = Path(name)
            self._download(address, folder)
            yield folder
            lease.require()
            self._upload(address, folder)

    def state(self, address: Address) -> State:
        """Return how far a job is."""
        if all(self.files.exists(self._path(address, name)) for name in address.files):
            return "finished"
        number = self._newest_lease(address)
        if number is not None and self._is_alive(address, number):
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

    def store(self, address: Address, name: str, text: str) -> None:
        """Write a file of a job."""
        self._write(self._path(address, name), text.encode())

    def _path(self, address: Address, name: str = "") -> str:
        return str(self.root / address.folder / name)

    def _write(self, path: str, content: bytes, *, new: bool = False) -> None:
        """Write a file; a `new` one in a step that others cannot share, or `FileExistsError`."""
        self.files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        if not new:
            self.files.pipe_file(path, content)
        elif type(self.files).pipe_file is fsspec.AbstractFileSystem.pipe_file:
            with self.files.open(path, "xb") as file:  # its own way would look first, then write
                file.write(content)
        else:
            self.files.pipe_file(path, content, mode="create")

    def _take(self, address: Address) -> "Lease | None":
        number = self._newest_lease(address)
        if number is not None and self._is_alive(address, number):
            return None
        lease = Lease(self, address, 0 if number is None else number + 1)
        try:
            lease.write(time.time(), new=True)
        except FileExistsError:
            return None
        return lease if lease.is_mine() else None

    def _newest_lease(self, address: Address) -> int | None:
        folder = self._path(address)
        self.files.invalidate_cache(folder)
        try:
            names = [PurePosixPath(path).name for path in self.files.ls(folder, detail=False)]
        except FileNotFoundError:
            return None
        numbers = [name.removeprefix(LEASE).removesuffix(".json") for name in names]
        return max((int(number) for number in numbers if number.isdigit()), default=None)

    def _is_alive(self, address: Address, number: int) -> bool:
        path = self._path(address, f"{LEASE}{number}.json")
        try:
            alive = json.loads(self.files.cat_file(path))["alive"]
        except ValueError:  # being written at this moment, or its writer died in that moment
            alive = self.files.modified(path).timestamp()
        return bool(alive + self.lifetime_s > time.time())

    def _download(self, address: Address, scratch: Path) -> None:
        folder = self._path(address)
        for path in self.files.find(folder):
            relative = PurePosixPath(path).relative_to(PurePosixPath(folder))
            if not relative.name.startswith(LEASE):
                target = scratch / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.files.cat_file(path))

    def _upload(self, address: Address, scratch: Path) -> None:
        """Write every new file, those that make the job finished last."""
        found = [path for path in scratch.rglob("*") if path.is_file()]
        found = [path for path in found if not path.name.startswith(".") and path.name != FAILURE]
        for path in sorted(found, key=lambda path: path.name in address.files):
            name = path.relative_to(scratch).as_posix()
            self._write(self._path(address, name), path.read_bytes())


class Lease:
    """A claim with a heartbeat."""

    def __init__(self, ledger: StorageLedger, address: Address, number: int) -> None:
        self.ledger, self.address, self.number = ledger, address, number
        self.path = ledger._path(address, f"{LEASE}{number}.json")
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4()}"
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def require(self) -> None:
        """Raise if another process has taken over."""
        newest = self.ledger._newest_lease(self.address)
        if newest != self.number or not self.is_mine():
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
        if self.is_mine():
            self.write(0.0)  # free at once

    def is_mine(self) -> bool:
        """Return whether the storage names this process as the holder."""
        with self._writing:
            held = json.loads(self.ledger.files.cat_file(self.path))
        return bool(held["owner"] == self.owner)

    def write(self, alive: float, *, new: bool = False) -> None:
        """Say that the holder was alive at this time; a `new` lease only if there is none yet."""
        content = json.dumps({"owner": self.owner, "alive": alive}).encode()
        with self._writing:
            self.ledger._write(self.path, content, new=new)

    def _beat(self) -> None:
        while not self._ended.wait(self.ledger.lifetime_s / BEATS_PER_LIFETIME):
            try:
                self.write(time.time())
            except OSError as error:  # the next beat may reach the storage again
                logger.warning("could not renew %s: %s", self.path, error)
