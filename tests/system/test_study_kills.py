"""A study that is killed, or loses a worker, loses no finished run and ends in the same table."""

import io
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hylorada.jobs.engine import Board, Task
from hylorada.jobs.ledger import FolderLedger
from hylorada.jobs.local import LocalEngine
from hylorada.jobs.pipeline import address
from hylorada.specs.study import StudyPlace
from hylorada.studies.study import compare
from tests.small_study import small_job, small_options

PATIENCE_S = 200.0
RUNS = 5  # baseline, bias, A/A, frozen and the baseline again
# Children start from a process that has imported everything, so that kills hit work, not imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["hylorada.studies.study", "tests.small_study"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("source")


def carry_out(source: Path, out: Path, ledger: Path, workers: int) -> None:
    """Carry out a small study; the target of a process of its own."""
    os.environ["HYLORADA_CACHE"] = str(source / "cache")
    options = small_options(source, designs=("bias",), seeds=(1,))
    place = StudyPlace(out=out, ledger=str(ledger), workers=workers)
    compare("landmarks", options, place, Console(file=io.StringIO()))


def started(source: Path, out: Path, ledger: Path, workers: int = 1) -> ForkServerProcess:
    process = SERVER.Process(target=carry_out, args=(source, out, ledger, workers))
    process.start()
    return process


def wait_for(condition: Callable[[], bool], process: ForkServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.is_alive(), f"the study ended early, with exit code {process.exitcode}"
        assert time.monotonic() < deadline, "the study makes no progress"
        time.sleep(0.002)


def finished(ledger: Path) -> dict[str, int]:
    """Return when each finished run was written."""
    measured = {path.parent for path in ledger.glob("*/evaluation-*.json")}
    return {f.name: (f / "result.json").stat().st_mtime_ns for f in measured}


def reached(ledger: Path, count: int) -> bool:
    return len(finished(ledger)) >= count


def table(out: Path) -> Any:
    """Return what a study found, without times."""
    study = json.loads((out / "study.json").read_text())
    for arm in study["arms"]:
        del arm["cost"]
    return {name: study[name] for name in ("arms", "comparisons", "checks", "sentences", "frozen")}


@pytest.fixture(scope="module")
def raced(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of two studies that ran at the same time on one ledger."""
    small_options(source)
    root = tmp_path_factory.mktemp("raced")
    outs = [root / "one", root / "two"]
    processes = [started(source, out, root / "runs") for out in outs]
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    return outs


def test_two_studies_on_one_ledger_do_every_run_once(raced: list[Path]) -> None:
    told = [json.loads((out / "study.json").read_text())["provenance"] for out in raced]
    assert sum(one["runs"] - one["reused"] for one in told) == RUNS
    assert [one["failed"] for one in told] == [0, 0]
    assert table(raced[0]) == table(raced[1])


def test_killing_the_study_again_and_again_changes_nothing(
    source: Path, raced: list[Path], tmp_path: Path
) -> None:
    ledger, draws = tmp_path / "runs", random.Random(4)
    before: dict[str, int] = {}
    for count in (0, 1):
        process = started(source, tmp_path / "broken", ledger)
        wait_for(partial(reached, ledger, count), process)
        time.sleep(draws.uniform(0.0, 0.2))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        now = finished(ledger)
        assert before.items() <= now.items()
        before = now
    last = started(source, tmp_path / "broken", ledger)
    last.join(PATIENCE_S)
    assert last.exitcode == 0

    assert before.items() <= finished(ledger).items()
    assert len(finished(ledger)) == RUNS
    assert table(tmp_path / "broken") == table(raced[0])


class Assassin(Board):
    """A board that kills the worker of a job the first time it hears of its training."""

    engine: LocalEngine
    victim: str
    kills = 1

    def tell(self, label: str, station: str, share: float) -> None:
        super().tell(label, station, share)
        if label == self.victim and self.kills > 0:
            self.kills -= 1
            (busy,) = [w for w in self.engine._workers.values() if w.task and w.task.label == label]
            busy.process.kill()


def tasks(source: Path) -> list[Task]:
    found = []
    for seed in (1, 2, 3):
        job = small_job(source, seed=seed)
        found.append(Task(job=job, address=address(job, "text"), label=f"seed {seed}"))
    return found


@pytest.mark.parametrize("kills", [1, 2])
def test_a_killed_worker_is_noted_replaced_and_its_job_tried_once_more(
    source: Path, tmp_path: Path, kills: int
) -> None:
    work, ledger = tasks(source), FolderLedger(tmp_path)
    with LocalEngine(1) as engine, Assassin(Console(file=io.StringIO()), "", 3) as board:
        assert isinstance(engine, LocalEngine)
        board.engine, board.victim, board.kills = engine, "seed 2", kills
        outcomes = engine.run(work, str(tmp_path), board)
        again = engine.run(work[:1], str(tmp_path), board)
    assert again[0].state == "reused"
    second = "finished" if kills == 1 else "failed"
    assert [outcome.state for outcome in outcomes] == ["finished", second, "finished"]
    assert [outcome.task for outcome in outcomes] == work
    noted = ledger.failures(work[1].address)
    assert len(noted) == kills
    assert all(error.startswith("the worker was killed by signal SIGKILL") for error in noted)
    assert ledger.failures(work[0].address) == []
    assert engine._workers == {}


def test_a_worker_waits_for_a_run_that_another_process_has(source: Path, tmp_path: Path) -> None:
    (task, *_), ledger = tasks(source), FolderLedger(tmp_path)
    heard: list[str] = []

    class Listener(Board):
        def drop(self, label: str) -> None:
            super().drop(label)
            heard.append(label)
            if len(heard) == 2:  # asked for twice in vain
                claim.__exit__(None, None, None)

    claim = ledger.claim(task.address)
    claim.__enter__()
    with LocalEngine(1) as engine, Listener(Console(file=io.StringIO()), "", 1) as board:
        outcomes = engine.run([task], str(tmp_path), board)
    assert [outcome.state for outcome in outcomes] == ["finished"]
    assert heard == ["seed 1", "seed 1"]
