"""What every engine does with a job: claim it, carry it out, say how it ended."""

import os
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from rich import progress
from rich.console import Console
from rich.text import Text
from transformers.utils import logging

from hylorada.errors import SpecError
from hylorada.jobs.assembly import Workshop
from hylorada.jobs.ledger import Address, Ledger
from hylorada.jobs.pipeline import Job, Tell, perform
from hylorada.names import known
from hylorada.specs.study import ENGINES

SHOWN = 3
# Where each station begins in a job, and its share; only some studies compress and certify.
STATIONS = {
    "train": (0.0, 0.75),
    "evaluate": (0.75, 0.15),
    "compress": (0.9, 0.02),
    "certify": (0.92, 0.08),
}
# A worker may die, or run out of memory, because of others on its machine: it gets a second try.
TRIES = 2
CARRIED = ("HYLORADA_", "HF_")  # environment variables that a process elsewhere needs too
PATIENCE_S = 0.5  # until a job that another process has is asked for again
State = Literal["finished", "reused", "held", "failed"]


class Board:
    """A bar of all jobs of a phase, moved by the share of each that is done."""

    def __init__(self, console: Console, phase: str, total: int) -> None:
        self._running: dict[str, tuple[str, float]] = {}
        self._done: set[str] = set()
        self._total = total
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=30),
            _JobsDone(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[running]}", style="dim"),
            console=console,
        )
        self._bar = self._progress.add_task(phase, total=total, running="")

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def tell(self, label: str, station: str, share: float) -> None:
        """Move a running job to a share of a station."""
        if label not in self._done:  # news from another node may come late
            start, width = STATIONS.get(station, (1.0, 0.0))
            self._running[label] = (station, start + width * min(1.0, share))
            self._draw()

    def finish(self, label: str) -> None:
        """Count a job as done."""
        self._running.pop(label, None)
        self._done.add(label)
        self._draw()

    def drop(self, label: str) -> None:
        """Forget what a job had done so far, because it starts again."""
        self._running.pop(label, None)
        self._draw()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        shown = [f"{label} ({station})" for label, (station, _) in self._running.items()]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        done = len(self._done) + sum(share for _, share in self._running.values())
        running = ", ".join(shown[:SHOWN]) + more
        self._progress.update(self._bar, completed=min(done, self._total), running=running)


class _JobsDone(progress.ProgressColumn):
    """Whole jobs done, of all."""

    def render(self, task: progress.Task) -> Text:
        done = f"{int(task.completed + 1e-9)}/{int(task.total or 0)}"
        return Text(done, style="progress.download")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A job, where its results will lie, and what people call it."""

    job: Job
    address: Address
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt at a task ended.

    Attributes:
        state: "finished" now, "reused" from before, "held" by another process, or "failed".
        error: Why it failed, on one line.
        chance: Whether another attempt might end differently.
    """

    task: Task
    state: State
    error: str | None = None
    chance: bool = False


class Engine(ABC):
    """Carries out tasks until each is finished, reused or failed for good."""

    @abstractmethod
    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        """Return one outcome a task, in the order given; `place` is the ledger's."""

    @abstractmethod
    def describe(self) -> str:
        """Return the engine and its size in a few words."""

    def __enter__(self) -> "Engine":
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...


class Agenda:
    """The tasks still to be done, and what came of the others."""

    def __init__(self, tasks: Sequence[Task], board: Board) -> None:
        self.tasks, self.board = tasks, board
        self.waiting = deque(tasks)
        self._tries: Counter[str] = Counter()
        self._outcomes: dict[str, Outcome] = {}

    @property
    def is_open(self) -> bool:
        """Return whether a task has no outcome yet."""
        return len(self._outcomes) < len(self.tasks)

    def settle(self, outcome: Outcome) -> None:
        """Note how an attempt ended; what another process holds is asked for again."""
        name, label = outcome.task.address.id, outcome.task.label
        self._tries[name] += outcome.state == "failed"
        again = outcome.chance and self._tries[name] < TRIES
        if outcome.state != "held" and not again:
            self._outcomes[name] = outcome
            self.board.finish(label)
            return
        if again:
            self.board.say(f"{label}: {outcome.error}; trying once more")
        self.waiting.append(outcome.task)
        self.board.drop(label)

    def outcomes(self) -> list[Outcome]:
        """Return one outcome a task, in the order given."""
        return [self._outcomes[task.address.id] for task in self.tasks]


class Throttled:
    """Passes progress on, but not every step of it."""

    def __init__(self, send: Tell, every_s: float) -> None:
        self._send, self._every_s = send, every_s
        self._station, self._when = "", 0.0

    def __call__(self, station: str, share: float) -> None:
        """Send a new station at once, a share of the same one only now and then."""
        now = time.monotonic()
        if station != self._station or now - self._when > self._every_s:
            self._station, self._when = station, now
            self._send(station, share)


def attempt(task: Task, ledger: Ledger, workshop: Workshop, tell: Tell) -> Outcome:
    """Carry a task out under its claim; whatever goes wrong becomes an outcome and is noted."""
    if ledger.state(task.address) == "finished":
        return Outcome(task=task, state="reused")
    try:
        with ledger.claim(task.address) as folder:
            if folder is None:
                return Outcome(task=task, state="held")
            if ledger.state(task.address) == "finished":  # by whoever had the claim before
                return Outcome(task=task, state="reused")
            if task.job.files != task.address.files:  # other names than where it was planned
                raise SpecError(
                    "every process of a study must run the same source; "
                    f"{socket.gethostname()} has another than the study; install one version of "
                    "hylorada everywhere and start again"
                )
            perform(task.job, folder, workshop, tell)
    except Exception as error:  # a study outlives any of its jobs; the text is kept
        text = one_line(error)
        ledger.fail(task.address, text)
        chance = isinstance(error, torch.OutOfMemoryError | MemoryError)
        return Outcome(task=task, state="failed", error=text, chance=chance)
    return Outcome(task=task, state="finished")


def settle_in(threads: int, settings: Mapping[str, str]) -> None:
    """Prepare a process that does nothing but jobs."""
    os.environ.update(settings)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    logging.disable_progress_bar()
    torch.set_num_threads(threads)


def carried_settings() -> dict[str, str]:
    """Return the environment variables of this process that its workers need too."""
    return {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}


def one_line(error: BaseException) -> str:
    """Return the kind and the message of an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def open_engine(name: str, workers: int | None = None) -> Engine:
    """Return the engine of that name; `workers` jobs run at a time, None lets it choose."""
    if known(name, ENGINES, "engine") == "ray":
        from hylorada.jobs.ray import RayEngine

        return RayEngine(workers)
    from hylorada.jobs.local import InProcess, LocalEngine

    return InProcess() if workers == 0 else LocalEngine(workers)
