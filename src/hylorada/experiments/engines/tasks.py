"""What every engine does with a job: claim it, carry it out, say how it ended."""

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

import torch
from transformers.utils import logging

from hylorada.errors import SpecError
from hylorada.experiments.engines.board import Board
from hylorada.experiments.job import Address, Job
from hylorada.experiments.kept import Kept
from hylorada.experiments.ledger import Ledger
from hylorada.experiments.pipeline import Tell, perform

# A worker that died or ran out of memory may have been unlucky in its company; once is enough.
TRIES = 2
# Settings of ours and of the hub that a process started elsewhere needs too.
CARRIED = ("HYLORADA_", "HF_")
# While another process has a job, ask for it again after this long.
PATIENCE_S = 0.5

State = Literal["finished", "reused", "held", "failed"]


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
    seconds: float = 0.0


@runtime_checkable
class Engine(Protocol):
    """Carries out tasks until each is finished, reused or failed for good."""

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        """Return one outcome a task, in the order given; `place` is the ledger's."""
        ...

    def describe(self) -> str:
        """Return the engine and its size in a few words."""
        ...

    def __enter__(self) -> "Engine":
        """Get ready."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of workers."""
        ...


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
        """Note how an attempt ended; what another process holds, or bad luck, is tried again."""
        name, label = outcome.task.address.id, outcome.task.label
        self._tries[name] += outcome.state == "failed"
        lucky = outcome.chance and self._tries[name] < TRIES
        if outcome.state != "held" and not lucky:
            self._outcomes[name] = outcome
            self.board.finish(label)
            return
        if lucky:
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


def attempt(task: Task, ledger: Ledger, kept: Kept, tell: Tell) -> Outcome:
    """Carry a task out under its claim; whatever goes wrong becomes an outcome and is noted."""
    start = time.monotonic()
    if ledger.state(task.address) == "finished":
        return Outcome(task=task, state="reused")
    try:
        with ledger.claim(task.address) as folder:
            if folder is None:
                return Outcome(task=task, state="held")
            if ledger.state(task.address) == "finished":  # by whoever had the claim before
                return Outcome(task=task, state="reused")
            _require_same_source(task)
            perform(task.job, folder, kept, tell)
    except Exception as error:  # a study outlives any of its jobs; the text is kept
        text = one_line(error)
        ledger.fail(task.address, text)
        chance = isinstance(error, torch.OutOfMemoryError | MemoryError)
        return Outcome(task=task, state="failed", error=text, chance=chance)
    return Outcome(task=task, state="finished", seconds=time.monotonic() - start)


def _require_same_source(task: Task) -> None:
    """Refuse a task whose results would get other names here than where it was planned."""
    if task.job.files != task.address.files:
        raise SpecError(
            f"every process of a study must run the same source; {socket.gethostname()} has "
            "another than the study; install one version of hylorada everywhere and start again"
        )


def settle_in(threads: int, settings: Mapping[str, str]) -> None:
    """Prepare a process that does nothing but jobs."""
    os.environ.update(settings)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    logging.disable_progress_bar()
    torch.set_num_threads(threads)


def carried_settings() -> dict[str, str]:
    """Return the variables of this process's environment that its workers shall have."""
    return {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}


def one_line(error: BaseException) -> str:
    """Return the kind and the message of an error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
