"""A worker: a process that takes tasks from a pipe and keeps the model between them."""

import os
import sys
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path

from hylorada.experiments.engines.tasks import Task, Throttled, attempt, settle_in
from hylorada.experiments.kept import Kept
from hylorada.experiments.ledger import open_ledger

SECONDS_BETWEEN_NEWS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a worker has: threads, a GPU by its number, a file for its words, and settings."""

    threads: int
    gpu: int | None
    log: Path
    settings: dict[str, str]


def main(pipe: Connection, place: str, seat: Seat) -> None:
    """Work on the tasks that come through the pipe until it closes or the parent is gone."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    log = seat.log.open("a", buffering=1)
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    if seat.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(seat.gpu)
    settle_in(seat.threads, seat.settings)
    serve(pipe, place)


def serve(pipe: Connection, place: str) -> None:
    """Answer each task with news of its progress and then its outcome, until None comes."""
    ledger, kept = open_ledger(place), Kept()
    while (task := _next(pipe)) is not None:
        news = Throttled(lambda station, share: pipe.send((station, share)), SECONDS_BETWEEN_NEWS)
        pipe.send(attempt(task, ledger, kept, news))


def _next(pipe: Connection) -> Task | None:
    try:
        task: Task | None = pipe.recv()
    except EOFError:
        return None
    return task


def _leave_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
