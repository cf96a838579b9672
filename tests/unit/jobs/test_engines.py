"""What every engine does: claim, carry out, try again where luck was bad, and say how it ended."""

import io
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers.utils import logging

from hylorada.errors import SpecError
from hylorada.jobs.assembly import Workshop
from hylorada.jobs.engine import (
    STATIONS,
    Agenda,
    Board,
    Engine,
    Outcome,
    Task,
    Throttled,
    attempt,
    carried_settings,
    one_line,
    open_engine,
    settle_in,
)
from hylorada.jobs.ledger import FolderLedger, open_ledger
from hylorada.jobs.local import InProcess, LocalEngine, _ending, serve
from hylorada.jobs.pipeline import address
from tests.small_study import small_job


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    job = small_job(tmp_path_factory.mktemp("source"))
    return Task(job=job, address=address(job, "text"), label="the run")


@pytest.fixture
def board() -> Iterator[Board]:
    with Board(Console(file=io.StringIO()), "testing", 2) as shown:
        yield shown


def nobody(station: str, share: float) -> None:
    pass


def test_a_task_is_finished_then_reused(task: Task, tmp_path: Path) -> None:
    ledger, workshop = FolderLedger(tmp_path), Workshop()
    first = attempt(task, ledger, workshop, nobody)
    assert (first.state, first.error) == ("finished", None)
    assert attempt(task, ledger, workshop, nobody).state == "reused"


def test_a_task_on_object_storage_is_computed_here_and_kept_there(
    task: Task, tmp_path: Path
) -> None:
    ledger = open_ledger(f"memory://{tmp_path}")
    assert attempt(task, ledger, Workshop(), nobody).state == "finished"
    assert ledger.state(task.address) == "finished"
    assert ledger.text(task.address, "adapter/adapter_config.json") is not None
    assert attempt(task, ledger, Workshop(), nobody).state == "reused"
    assert not list(Path(tempfile.gettempdir()).glob(f"hylorada-{task.address.folder}-*"))


def test_a_task_under_anothers_claim_is_held(task: Task, tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path)
    with ledger.claim(task.address):
        assert attempt(task, ledger, Workshop(), nobody).state == "held"


def test_a_failure_is_an_outcome_and_is_noted(task: Task, tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path)
    folder = ledger.folder(task.address)
    folder.mkdir()
    (folder / "result.json").write_text('{"schema": 0}')
    outcome = attempt(task, ledger, Workshop(), nobody)
    assert (outcome.state, outcome.chance) == ("failed", False)
    assert outcome.error is not None
    assert outcome.error.startswith("SpecError: ")
    assert ledger.failures(task.address) == [outcome.error]


def test_a_task_from_other_source_is_refused(task: Task, tmp_path: Path) -> None:
    elsewhere = replace(task.address, files=("result.json", "evaluation-of-other-source.json"))
    ledger = FolderLedger(tmp_path)
    outcome = attempt(replace(task, address=elsewhere), ledger, Workshop(), nobody)
    assert (outcome.state, outcome.chance) == ("failed", False)
    assert "SpecError: every process of a study must run the same source" in str(outcome.error)
    assert not (ledger.folder(elsewhere) / "result.json").exists()


def test_running_out_of_memory_leaves_a_chance(task: Task, tmp_path: Path) -> None:
    def exhausted(station: str, share: float) -> None:
        raise torch.OutOfMemoryError("no memory")

    outcome = attempt(task, FolderLedger(tmp_path), Workshop(), exhausted)
    assert (outcome.state, outcome.chance) == ("failed", True)


def test_bad_luck_is_tried_once_more_and_a_plain_failure_is_not(task: Task, board: Board) -> None:
    agenda = Agenda([task], board)
    for chance in (True, True):
        assert agenda.waiting.popleft() is task
        agenda.settle(Outcome(task=task, state="failed", error="killed", chance=chance))
    assert not agenda.is_open
    assert agenda.outcomes()[0].error == "killed"
    plain = Agenda([task], board)
    plain.waiting.popleft()
    plain.settle(Outcome(task=task, state="failed", error="wrong"))
    assert not plain.is_open


def test_a_held_task_is_asked_for_again_and_again(task: Task, board: Board) -> None:
    agenda = Agenda([task], board)
    for _ in range(5):
        agenda.waiting.popleft()
        agenda.settle(Outcome(task=task, state="held"))
    assert agenda.is_open
    assert list(agenda.waiting) == [task]


def test_progress_is_passed_on_now_and_then_but_a_new_station_at_once() -> None:
    told: list[tuple[str, float]] = []
    tell = Throttled(lambda *news: told.append(news), every_s=60.0)
    for station, share in (("train", 0.0), ("train", 0.5), ("evaluate", 0.0)):
        tell(station, share)
    assert told == [("train", 0.0), ("evaluate", 0.0)]


def test_an_error_becomes_one_line() -> None:
    assert one_line(ValueError("two\nlines")) == "ValueError: two lines"


def test_workers_get_our_settings_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYLORADA_CACHE", "somewhere")
    monkeypatch.setenv("SECRET", "no")
    found = carried_settings()
    assert found["HYLORADA_CACHE"] == "somewhere"
    assert "SECRET" not in found


def test_a_worker_answers_with_news_and_an_outcome_until_it_is_dismissed(
    task: Task, tmp_path: Path
) -> None:
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=serve, args=(theirs, str(tmp_path)))
    thread.start()
    ours.send(task)
    heard = []
    while not isinstance(said := ours.recv(), Outcome):
        heard.append(said[0])
    ours.send(None)
    thread.join(10)
    assert not thread.is_alive()
    assert said.state == "finished"
    assert list(dict.fromkeys(heard)) == ["train", "evaluate", "result"]


def test_a_worker_leaves_when_the_pipe_closes(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=serve, args=(theirs, str(tmp_path)))
    thread.start()
    ours.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_worker_settles_in_before_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.setenv("HYLORADA_CACHE", "before")
    threads, shown = torch.get_num_threads(), logging.is_progress_bar_enabled()
    settle_in(threads, {"HYLORADA_CACHE": "mine"})
    assert (os.environ["HYLORADA_CACHE"], os.environ["TOKENIZERS_PARALLELISM"]) == ("mine", "false")
    assert not logging.is_progress_bar_enabled()
    assert torch.are_deterministic_algorithms_enabled() == torch.cuda.is_available()
    if shown:
        logging.enable_progress_bar()


def test_an_unknown_engine_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown engine 'rey'; did you mean 'ray'\?"):
        open_engine("rey")


def test_no_workers_is_this_very_process() -> None:
    engine = open_engine("local", 0)
    assert isinstance(engine, InProcess)
    assert engine.describe() == "local, in this process"


def test_workers_share_the_cores_of_a_machine_without_a_gpu() -> None:
    engine = open_engine("local", 1)
    assert isinstance(engine, LocalEngine)
    assert isinstance(engine, Engine)
    assert engine.threads >= LocalEngine(2).threads >= 1
    assert engine.describe().startswith("local, 1 workers (")


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "was killed by signal SIGKILL"), (1, "ended with code 1")]
)
def test_the_end_of_a_worker_is_named(code: int, words: str) -> None:
    assert _ending(code) == words


def test_the_stations_of_a_job_follow_each_other_without_a_gap() -> None:
    ends = [start + width for start, width in STATIONS.values()]
    starts = [start for start, _ in STATIONS.values()]
    assert [*starts, 1.0] == pytest.approx([0.0, *ends])


def test_the_board_counts_whole_jobs_and_shows_what_runs() -> None:
    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=True)
    with Board(console, "running", 6) as board:
        for number in range(5):
            board.tell(f"job {number}", "train", 0.5)
        board.finish("job 0")
        board.tell("job 0", "result", 1.0)  # news that came late
        board.drop("job 1")
        board.tell("job 2", "result", 1.0)
        board.say("a line")
        time.sleep(0.15)
    shown = text.getvalue()
    assert "a line" in shown
    assert "2/6" in shown
    last = shown[shown.rindex("job 2 (result)") :]
    assert last.startswith("job 2 (result), job 3 (train), job 4 (train)")
