"""Workers on this machine: the study survives any of them, and they outlive single jobs."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from hylorada.jobs.assembly import Workshop
from hylorada.jobs.engine import (
    PATIENCE_S,
    Agenda,
    Board,
    Engine,
    Outcome,
    Task,
    Throttled,
    attempt,
    carried_settings,
    settle_in,
)
from hylorada.jobs.ledger import open_ledger

SECONDS_BETWEEN_NEWS = 0.2
LAST_WORDS = 300
# A worker starts from a process that has imported everything and done nothing: no time lost on
# imports when one is replaced, and no state of the study's own process carried over.
SERVER = multiprocessing.get_context("forkserver")
PRELOADED = ["hylorada.jobs.local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a worker has: threads, a GPU by its number, a file for its words, and settings."""

    threads: int
    gpu: int | None
    log: Path
    settings: dict[str, str]


def main(pipe: Connection, place: str, seat: Seat) -> None:
    """Work on the tasks that come through the pipe until it closes or the parent is gone."""

    def leave_with_parent() -> None:  # as soon as it has ended, even if it was killed
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    log = seat.log.open("a", buffering=1)
    os.dup2(log.fileno(), sys.stdout.fileno())
    os.dup2(log.fileno(), sys.stderr.fileno())
    if seat.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(seat.gpu)
    settle_in(seat.threads, seat.settings)
    serve(pipe, place)


def serve(pipe: Connection, place: str) -> None:
    """Answer each task with news of its progress and then its outcome, until None comes."""
    ledger, workshop = open_ledger(place), Workshop()
    with suppress(EOFError):
        while (task := pipe.recv()) is not None:
            news = Throttled(lambda *told: pipe.send(told), SECONDS_BETWEEN_NEWS)
            pipe.send(attempt(task, ledger, workshop, news))


@dataclass(slots=True)
class _Worker:
    process: ForkServerProcess
    pipe: Connection
    seat: Seat
    task: Task | None = None


class InProcess(Engine):
    """Runs jobs one after the other in this very process: for debuggers, tracers and tests."""

    def __init__(self) -> None:
        self.workshop = Workshop()

    def __exit__(self, *error: object) -> None:
        """Let go of the model."""
        self.workshop.forget()

    def describe(self) -> str:
        """Return the engine in a few words."""
        return "local, in this process"

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        """Return one outcome a task, in the order given."""
        ledger, agenda = open_ledger(place), Agenda(tasks, board)
        while agenda.is_open:
            task = agenda.waiting.popleft()
            agenda.settle(attempt(task, ledger, self.workshop, partial(board.tell, task.label)))
        return agenda.outcomes()


class LocalEngine(Engine):
    """Runs jobs in worker processes; several may share a GPU."""

    def __init__(self, workers: int | None = None) -> None:
        """Choose one worker a GPU, or one a core up to four, unless told how many."""
        self.gpus = torch.cuda.device_count()
        cores = len(os.sched_getaffinity(0))
        self.count = workers or self.gpus or min(4, cores)
        self.threads = max(1, cores // self.count)
        self._workers: dict[int, _Worker] = {}
        self._place = ""
        self._logs = Path()

    def __enter__(self) -> Engine:
        """Prepare the process that workers start from."""
        SERVER.set_forkserver_preload(PRELOADED)
        self._logs = Path(tempfile.mkdtemp(prefix="hylorada-workers-"))
        return self

    def __exit__(self, *error: object) -> None:
        """End every worker: politely if idle, at once if not."""
        for worker in self._workers.values():
            if worker.task is None:
                worker.pipe.send(None)
                worker.process.join(5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers.clear()
        shutil.rmtree(self._logs)

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
            busy = {n: w for n, w in self._workers.items() if w.task is not None}
            ends = [end for w in busy.values() for end in (w.pipe, w.process.sentinel)]
            ready = wait(ends, PATIENCE_S)
            for number, worker in busy.items():
                heard = worker.pipe in ready or worker.process.sentinel in ready
                outcome = self._listen(number, board) if heard else None
                if outcome is None:
                    continue
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

    def _listen(self, number: int, board: Board) -> Outcome | None:
        """Pass on what a worker says; return its outcome, or how it ended, once there is one."""
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
        log = self._logs / f"worker-{number}-{time.monotonic_ns()}.log"
        seat = Seat(threads=self.threads, gpu=gpu, log=log, settings=carried_settings())
        process = SERVER.Process(target=main, args=(theirs, self._place, seat), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, seat)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by signal {signal.Signals(-code).name}"
    return f"ended with code {code}"
