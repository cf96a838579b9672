"""Workers on this machine: the study survives any of them, and they outlive single jobs."""

import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from hylorada.experiments.engines import worker
from hylorada.experiments.engines.board import Board
from hylorada.experiments.engines.tasks import (
    PATIENCE_S,
    Agenda,
    Engine,
    Outcome,
    Task,
    carried_settings,
)
from hylorada.experiments.ledger import open_ledger

LAST_WORDS = 300
# A worker starts from a process that has imported everything and done nothing: no time lost on
# imports when one is replaced, and no state of the study's own process carried over.
SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["hylorada.experiments.engines.worker"]


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    seat: worker.Seat
    task: Task | None = None


class LocalEngine:
    """Runs jobs in worker processes; several may share a GPU."""

    def __init__(self, workers: int | None = None) -> None:
        """Choose one worker a GPU, or one a core up to four, unless told how many."""
        self.gpus = torch.cuda.device_count()
        cores = len(os.sched_getaffinity(0))
        self.count = workers or self.gpus or min(4, cores)
        self.threads = max(1, cores // self.count)
        self._workers: dict[int, _Worker] = {}
        self._place = ""
        self._logs: Any = None

    def __enter__(self) -> Engine:
        """Prepare the process that workers start from."""
        SERVER.set_forkserver_preload(PRELOADED)
        self._logs = tempfile.TemporaryDirectory(prefix="hylorada-workers-")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End every worker: politely if idle, at once if not."""
        for place in list(self._workers):
            self._end(place)
        self._logs.cleanup()

    def describe(self) -> str:
        """Return the engine and its size in a few words."""
        on = f"{self.gpus} GPU" if self.gpus else f"CPU, {self.threads} threads each"
        return f"local, {self.count} workers ({on})"

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        """Return one outcome a task, in the order given."""
        self._place = place
        agenda = Agenda(tasks, board)
        while agenda.is_open:
            self._hand_out(agenda.waiting)
            for outcome in self._news(board):
                agenda.settle(outcome)
                if outcome.state == "held" and not any(w.task for w in self._workers.values()):
                    time.sleep(PATIENCE_S)
        return agenda.outcomes()

    def _hand_out(self, queue: deque[Task]) -> None:
        """Give a task to every idle worker, starting workers where there are too few."""
        for number in range(self.count):
            if not queue:
                return
            found = self._workers.get(number)
            if found is None or (found.task is None and not found.process.is_alive()):
                found = self._workers[number] = self._start(number)
            if found.task is None:
                found.task = queue.popleft()
                found.pipe.send(found.task)

    def _news(self, board: Board) -> list[Outcome]:
        """Wait for what the busy workers say, or for the end of one of them."""
        busy = {n: w for n, w in self._workers.items() if w.task is not None}
        watched: dict[Any, int] = {w.pipe: n for n, w in busy.items()}
        watched |= {w.process.sentinel: n for n, w in busy.items()}
        numbers = {watched[ready] for ready in wait(list(watched), PATIENCE_S)}
        found = [self._listen(number, board) for number in sorted(numbers)]
        return [outcome for outcome in found if outcome is not None]

    def _listen(self, number: int, board: Board) -> Outcome | None:
        speaker = self._workers[number]
        assert speaker.task is not None
        try:
            while speaker.pipe.poll():
                said = speaker.pipe.recv()
                if isinstance(said, Outcome):
                    speaker.task = None
                    return said
                board.tell(speaker.task.label, *said)
        except (EOFError, ConnectionResetError):
            return self._lost(number)
        return None if speaker.process.is_alive() else self._lost(number)

    def _lost(self, number: int) -> Outcome:
        """Note that a worker died under its task; the next hand-out replaces it."""
        lost = self._workers[number]
        assert lost.task is not None
        lost.process.join()
        log = lost.seat.log.read_text(errors="replace") if lost.seat.log.is_file() else ""
        error = f"the worker {_ending(lost.process.exitcode)}"
        if words := " ".join(log.split())[-LAST_WORDS:]:
            error += f" (its last words: {words})"
        open_ledger(self._place).fail(lost.task.address, error)
        lost.pipe.close()
        del self._workers[number]
        return Outcome(task=lost.task, state="failed", error=error, chance=True)

    def _start(self, number: int) -> _Worker:
        ours, theirs = SERVER.Pipe()
        gpu = number % self.gpus if self.gpus > 1 else None
        log = Path(self._logs.name) / f"worker-{number}-{time.monotonic_ns()}.log"
        settings = carried_settings()
        seat = worker.Seat(threads=self.threads, gpu=gpu, log=log, settings=settings)
        process = SERVER.Process(
            target=worker.main,
            args=(theirs, self._place, seat),
            daemon=True,
            name=f"worker-{number}",
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, seat)

    def _end(self, number: int) -> None:
        ending = self._workers.pop(number)
        if ending.task is None:
            ending.pipe.send(None)
            ending.process.join(5.0)
        if ending.process.is_alive():
            ending.process.kill()
            ending.process.join()
        ending.pipe.close()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by signal {signal.Signals(-code).name}"
    return f"ended with code {code}"
