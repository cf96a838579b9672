"""A study so small that each of its runs takes a fraction of a second."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hylorada.jobs.engine import Board, Outcome, Task
from hylorada.jobs.ledger import Address
from hylorada.jobs.local import InProcess
from hylorada.jobs.pipeline import Job
from hylorada.records.evaluations import Perplexity, PositionCurve, Quantity
from hylorada.records.runs import (
    Clusters,
    FutureLeak,
    RunCost,
    RunEvaluation,
    RunResult,
    TestText,
)
from hylorada.specs.adapters import HyLoRADASection
from hylorada.specs.evaluation import EvaluationSpec
from hylorada.specs.run import DataSection, ModelSection, RunConfig, TrainingSpec
from hylorada.specs.study import StudyOptions
from hylorada.studies.results import FinishedRun
from tests.small_run import write_model, write_text

LENGTH = 24
PLAIN = {"landmark_enabled": False, "position_bias": False}


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
    config = RunConfig(
        model=ModelSection(source=str(folder / "model")),
        data=DataSection(
            source=str(folder / "text"),
            length=LENGTH,
            num_train=16,
            num_val=4,
            cache=str(folder / "cache"),
        ),
        adapter=HyLoRADASection(**(PLAIN | {"num_landmarks": 2, "r": 2} | adapter)),
        training=TrainingSpec(
            steps=steps, batch_size=4, log_every=2, progress=False, cpu=True, seed=seed
        ),
    )
    evaluation = EvaluationSpec(
        max_length=LENGTH, max_tokens=12 * LENGTH, evidence_items=1, progress=False
    )
    return Job(config=config, evaluation=evaluation)


def finished_run(
    seed: int = 1,
    loss: float = 3.0,
    *,
    nats: Sequence[float] = (30.0,),
    audit: str = "all 3 trainable parameters are optimised",
    **measured: Any,
) -> FinishedRun:
    """Return a run whose test loss and documents (ten tokens each) are these."""
    quantity = Quantity(value=loss, standard_error=0.1, unit="nats/token")
    told = {"length": LENGTH, "tokens": 1000}
    settings: dict[str, Any] = {
        "ppl": Perplexity(
            value=math.exp(loss),
            unit="perplexity",
            stride=LENGTH,
            loss=quantity,
            bits_per_token=quantity,
            bits_per_byte=quantity,
            bytes=4000.0,
            **told,
        ),
        "position_curve": PositionCurve(unit="nats/token", cluster="document", curve=[], **told),
        "evidence": None,
        "clusters": Clusters(unit="document", nats=list(nats), tokens=[10] * len(nats)),
        "boundaries": None,
        "gates": None,
        "future_leak": FutureLeak(largest_change=0.0, largest_logit=10.0),
        "test": TestText(fingerprint="text", documents=len(nats)),
        "valid_share": 1.0,
        "adapter_dtypes": ["F32"],
        "cost": RunCost(),
    }
    return FinishedRun(
        seed=seed,
        address=Address(folder="run", files=("result.json",)),
        result=RunResult(
            id="run",
            config="a",
            data="b",
            code="c",
            seed=seed,
            steps=1,
            trainable_parameters=3,
            audit=audit,
        ),
        evaluation=RunEvaluation(**(settings | measured)),
        losses=[(1, 2.0)],
    )


class Here(InProcess):
    """The engine of one process, which remembers what it has done."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Outcome] = []

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        outcomes = super().run(tasks, place, board)
        self.done += outcomes
        return outcomes
