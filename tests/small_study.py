"""A study so small that each of its runs takes a fraction of a second."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hylorada.evaluation.metrics import EvaluationSpec
from hylorada.experiments.config import AdapterSection, DataSection, ModelSection, TrainConfig
from hylorada.experiments.engines.board import Board
from hylorada.experiments.engines.tasks import Agenda, Engine, Outcome, Task, attempt
from hylorada.experiments.job import Job
from hylorada.experiments.kept import Kept
from hylorada.experiments.ledger import open_ledger
from hylorada.experiments.studies.options import PLAIN, StudyOptions
from hylorada.training.settings import TrainingSpec
from tests.small_run import write_model, write_text

LENGTH = 24


def write_sources(folder: Path) -> None:
    """Save the model and the text, unless they are there."""
    if not (folder / "model").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder / "model")
        write_text(folder / "text")


def small_options(folder: Path, **more: Any) -> StudyOptions:
    """Return the options of a study on what was written to a folder, writing it if needed."""
    write_sources(folder)
    settings: dict[str, Any] = {
        "model": str(folder / "model"),
        "data": str(folder / "text"),
        "designs": ("learnable", "bias"),
        "num_train": 16,
        "num_val": 4,
        "num_test": 12,
        "num_landmarks": 2,
        "seeds": (1, 2),
        "max_length": LENGTH,
        "batch_size": 4,
        "evidence_items": 1,
        "cpu": True,
    }
    return StudyOptions(**(settings | more))


def small_allocation(folder: Path, **more: Any) -> StudyOptions:
    """Return the options of an allocation study on short documents in a folder."""
    write_sources(folder)
    write_documents(folder / "documents")
    settings = {"data": str(folder / "documents"), "designs": ("learned", "B-heavy")}
    return small_options(folder, **(settings | {"budgets": (12,), "seeds": (1,)} | more))


def write_documents(folder: Path) -> None:
    """Save thirty short documents for each split, unless they are there."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    for split, first in (("train", 0), ("valid", 300), ("test", 600)):
        texts = (f"{number} comes before {number + 1}." for number in range(first, first + 30))
        rows = (json.dumps({"text": text}) for text in texts)
        (folder / f"{split}.jsonl").write_text("\n".join(rows))


def small_job(folder: Path, *, steps: int = 4, seed: int = 1, **adapter: Any) -> Job:
    """Return a job on what was written to a folder, writing it if needed."""
    write_sources(folder)
    config = TrainConfig(
        model=ModelSection(source=str(folder / "model")),
        data=DataSection(
            source=str(folder / "text"),
            length=LENGTH,
            num_train=16,
            num_val=4,
            cache=str(folder / "cache"),
        ),
        adapter=AdapterSection(**(PLAIN | {"num_landmarks": 2, "r": 2} | adapter)),
        training=TrainingSpec(
            steps=steps, batch_size=4, log_every=2, progress=False, cpu=True, seed=seed
        ),
    )
    evaluation = EvaluationSpec(
        max_length=LENGTH, max_tokens=12 * LENGTH, evidence_items=1, progress=False
    )
    return Job(config=config, evaluation=evaluation)


class Here:
    """An engine that carries out tasks one after the other in this very process."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.done: list[Outcome] = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.kept.forget()

    def describe(self) -> str:
        return "here"

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        ledger, agenda = open_ledger(place), Agenda(tasks, board)
        while agenda.is_open:
            task = agenda.waiting.popleft()
            agenda.settle(attempt(task, ledger, self.kept, partial(board.tell, task.label)))
        self.done += agenda.outcomes()
        return agenda.outcomes()
