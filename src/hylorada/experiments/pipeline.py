"""START HERE. The path of one job: train, evaluate, inspect, compress, certify, result.

A job is a training run and what is measured of it. Its folder is the run's folder, named by the
run's id; what was measured lies there too, under the id of the measurement. Both are reused by
every study that asks for the same. Where a study asks for certificates, the folder also gets the
compressed adapter, its certificate, and what they came to under the id of what was asked for.
"""

import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from peft import PeftModel
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import safe_open
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import require_context
from hylorada.evaluation.metrics import METRICS, Subject
from hylorada.evaluation.windows import CorpusLosses
from hylorada.experiments.assembly import RunData
from hylorada.experiments.compress import compress
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.inspection import (
    GATE_WINDOWS,
    first_windows,
    future_leak,
    gates,
    learned_boundaries,
)
from hylorada.experiments.job import Job
from hylorada.experiments.kept import Kept, reusable
from hylorada.experiments.run import run
from hylorada.experiments.run_certificate import MESSAGE, certify_run
from hylorada.experiments.run_folder import ADAPTER
from hylorada.files import write_atomically
from hylorada.models.pretrained import LoadedModel
from hylorada.text.batches import IGNORED
from hylorada.text.store import require_disjoint

SCHEMA = 1
MEASURED = ("ppl", "position_curve", "lim_ppl")
SAMPLED_SEQUENCES = 64

# Hears the station a job is at, and the share of it that is done.
Tell = Callable[[str, float], None]


def _nobody(station: str, share: float) -> None:
    """Tell nobody."""


def perform(job: Job, folder: Path, kept: Kept, tell: Tell = _nobody) -> None:
    """Carry a job from station to station in its folder; what is finished is not done again."""
    base = kept.model(job.config)
    require_context(base.model, job.config.data.length)
    data = kept.run_data(job.config, base.tokenizer)
    try:
        result = train_station(job, folder, base, data, tell)
        if (name := job.evaluation_file) and not (folder / name).is_file():
            measured = measure_station(job, folder, kept, data, result, tell)
            write_atomically(folder / name, json.dumps(measured, indent=1) + "\n")
        if (name := job.certified_file) and not (folder / name).is_file():
            certified = certify_station(job, folder, kept, tell)
            write_atomically(folder / name, json.dumps(certified, indent=1) + "\n")
    except BaseException:
        kept.forget()
        raise
    if not reusable(job.config):
        kept.forget()
    tell("result", 1.0)


def train_station(
    job: Job, folder: Path, base: LoadedModel, data: RunData, tell: Tell
) -> dict[str, Any]:
    """Train, or read the result of the run that did; the adapter lies in the folder."""
    tell("train", 0.0)
    return run(
        replace(job.config, out=str(folder)),
        base=base,
        data=data,
        repetition=job.repetition,
        callbacks=[_Steps(tell)],
    )


def measure_station(
    job: Job, folder: Path, kept: Kept, data: RunData, result: dict[str, Any], tell: Tell
) -> dict[str, Any]:
    """Evaluate the stored adapter on the test text and look inside it."""
    assert job.evaluation is not None
    tell("evaluate", 0.0)
    section, base = job.config.data, kept.model(job.config)
    store, train = (kept.store(job.config, name, base.tokenizer) for name in ("test", "train"))
    require_disjoint({"train": train, "test": store})
    adapter = folder / ADAPTER
    stored = adapter.is_dir()
    model: nn.Module = PeftModel.from_pretrained(base.model, str(adapter)) if stored else base.model
    with as_trained(job.config, base):
        subject = Subject(model, base.tokenizer, store, job.evaluation)
        metrics = {name: _measured(name, subject) for name in MEASURED}
        tell("inspect", 0.0)
        windows = first_windows(store, section.length, GATE_WINDOWS)
        inside = {
            "boundaries": learned_boundaries(model),
            "gates": gates(model, windows),
            "future_leak": future_leak(model, windows[:1]),
        }
    if isinstance(model, PeftModel):
        model.unload()
    return {
        "schema": SCHEMA,
        "metrics": metrics,
        "clusters": clusters(subject.corpus),
        **inside,
        "test": {"fingerprint": store.fingerprint, "documents": _documents(subject.corpus)},
        "valid_share": valid_share(data.train),
        "adapter_dtypes": stored_dtypes(adapter),
        "cost": _cost(job.config, adapter, result),
    }


def certify_station(job: Job, folder: Path, kept: Kept, tell: Tell) -> dict[str, Any]:
    """Compress the stored adapter, certify the file on the training text, and return both."""
    assert job.certificate is not None
    tell("compress", 0.0)
    cost = compress(str(folder), folder / MESSAGE, job.certificate.compression)
    tell("certify", 0.0)
    return certify_run(folder, job.config, job.certificate, cost, kept)


def clusters(corpus: CorpusLosses) -> dict[str, Any]:
    """Return the summed loss in nats and the tokens of each document (or block, if few)."""
    labels = corpus.documents if corpus.cluster_unit == "document" else corpus.windows
    _, cluster = np.unique(labels, return_inverse=True)
    sums = np.bincount(cluster, weights=corpus.losses.astype(np.float64))
    return {
        "unit": corpus.cluster_unit,
        "nats": sums.tolist(),
        "tokens": np.bincount(cluster).tolist(),
    }


def valid_share(data: Dataset[Any]) -> float:
    """Return the share of training positions that are text, over the first sequences."""
    rows = [
        data[index]["labels"] for index in range(min(SAMPLED_SEQUENCES, len(cast(Sized, data))))
    ]
    valid = sum(int((torch.as_tensor(row) != IGNORED).sum()) for row in rows)
    return valid / sum(len(row) for row in rows)


def stored_dtypes(adapter: Path) -> list[str]:
    """Return the kinds of numbers in a stored adapter, as safetensors names them."""
    weights = adapter / SAFETENSORS_WEIGHTS_NAME
    if not weights.is_file():
        return []
    with safe_open(weights, framework="pt") as file:
        names = file.keys()
        return sorted({file.get_slice(name).get_dtype() for name in names})


@contextmanager
def as_trained(config: TrainConfig, base: LoadedModel) -> Iterator[None]:
    """Compute in the precision of the training inside the block."""
    device = next(base.model.parameters()).device.type
    mixed = config.training.precision == "autocast"
    with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
        yield


def _measured(name: str, subject: Subject) -> dict[str, Any]:
    if name != "lim_ppl":
        return METRICS[name](subject)
    try:
        return METRICS[name](subject)
    except SpecError as error:  # a context too short for the question is no reason to stop
        return {"skipped": str(error)}


def _cost(config: TrainConfig, adapter: Path, result: dict[str, Any]) -> dict[str, Any]:
    seconds = result.get("seconds")
    tokens = result["steps"] * config.training.batch_size * config.data.length
    weights = adapter / SAFETENSORS_WEIGHTS_NAME
    return {
        "train_seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "adapter_bytes": weights.stat().st_size if weights.is_file() else None,
    }


def _documents(corpus: CorpusLosses) -> int:
    return int(np.unique(corpus.documents).size)


class _Steps(TrainerCallback):
    """Tells how far a training is."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.tell("train", state.global_step / max(1, state.max_steps))
