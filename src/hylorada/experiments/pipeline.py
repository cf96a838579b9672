"""START HERE. The path of one job: train, evaluate, inspect, compress, certify, result.

A job is a training run and what is measured of it. Its folder is the run's folder, named by the
run's id; what was measured lies there too, under the id of the measurement. Both are reused by
every study that asks for the same. Where a study asks for certificates, the folder also gets the
compressed adapter, its certificate, and what they came to under the id of what was asked for.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from peft import PeftModel
from safetensors import safe_open
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import require_context
from hylorada.evaluation.metrics import METRICS, EvaluationSpec, Subject
from hylorada.evaluation.windows import CorpusLosses
from hylorada.experiments.assembly import RunData
from hylorada.experiments.certify import certifying_code
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.inspection import (
    GATE_WINDOWS,
    first_windows,
    future_leak,
    gates,
    learned_boundaries,
)
from hylorada.experiments.kept import Kept, reusable
from hylorada.experiments.run import ADAPTER, CHECKPOINTS, RESULT, identify, run
from hylorada.experiments.run_certificate import CertificateSpec, certify_run, compress_run
from hylorada.files import write_atomically
from hylorada.models.pretrained import LoadedModel
from hylorada.text.batches import IGNORED
from hylorada.text.store import require_disjoint

SCHEMA = 1
STATIONS = ("train", "evaluate", "inspect", "compress", "certify", "result")
MEASURED = ("ppl", "position_curve", "lim_ppl")
WEIGHTS = "adapter_model.safetensors"
EVALUATION = "evaluation-{}.json"
CERTIFIED = "certified-{}.json"
SAMPLED_SEQUENCES = 64
# Source that decides what is measured; a change of it is another measurement.
MEASURING = ("evaluation/*.py", "experiments/inspection.py", "experiments/pipeline.py")

Tell = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run and what is measured after it.

    Attributes:
        config: The run; its `out` is not used.
        evaluation: What is measured on the test text; None trains and validates only.
        repetition: Above zero: the same data and first values, another order and other dropout.
        replica: Above zero: the same run once more, number for number, in a folder of its own.
        certificate: How the adapter is compressed and certified; None for neither.
    """

    config: TrainConfig
    evaluation: EvaluationSpec | None = None
    repetition: int = 0
    replica: int = 0
    certificate: CertificateSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a job's results lie: the folder's name, and the files that make it finished."""

    folder: str
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        """Return a name for the job."""
        return "/".join((self.folder, *self.files[1:]))


def address(job: Job, data_fingerprint: str) -> Address:
    """Return where a job's results lie, from what decides them."""
    folder = identify(job.config, data_fingerprint, job.repetition)["id"]
    if job.replica:
        folder += f"-again{job.replica}"
    measured = () if job.evaluation is None else (EVALUATION.format(measurement_id(job)),)
    certified = () if job.certificate is None else (CERTIFIED.format(certificate_id(job)),)
    return Address(folder=folder, files=(RESULT, *measured, *certified))


def measurement_id(job: Job) -> str:
    """Return a hash of what is measured, and of the source that measures it."""
    assert job.evaluation is not None
    settings = asdict(job.evaluation)
    settings.pop("progress")
    digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode())
    package = Path(__file__).parents[1]
    for source in sorted(path for name in MEASURING for path in package.glob(name)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def certificate_id(job: Job) -> str:
    """Return a hash of how a run is certified, and of the source that does it."""
    assert job.certificate is not None
    asked = json.dumps(asdict(job.certificate), sort_keys=True)
    digest = hashlib.sha256(f"{asked}/{certifying_code()}".encode())
    digest.update((Path(__file__).parent / "run_certificate.py").read_bytes())
    return digest.hexdigest()[:16]


def perform(job: Job, folder: Path, *, kept: Kept | None = None, tell: Tell | None = None) -> None:
    """Carry a job from station to station in its folder; what is finished is not done again.

    `tell` hears the station and the share of it that is done.
    """
    kept = kept or Kept()
    tell = tell or _nobody
    base = kept.model(job.config)
    require_context(base.model, job.config.data.length)
    data = kept.run_data(job.config, base.tokenizer)
    try:
        result = train_station(job, folder, base, data, tell)
        if job.evaluation is not None:
            place = folder / EVALUATION.format(measurement_id(job))
            if not place.is_file():
                measured = measure_station(job, folder, kept, data, result, tell)
                write_atomically(place, json.dumps(measured, indent=1) + "\n")
        if job.certificate is not None:
            place = folder / CERTIFIED.format(certificate_id(job))
            if not place.is_file():
                certified = certify_station(job, folder, kept, tell)
                write_atomically(place, json.dumps(certified, indent=1) + "\n")
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
    interrupted = (folder / CHECKPOINTS).is_dir()
    result = run(
        replace(job.config, out=str(folder)),
        base=base,
        data=data,
        repetition=job.repetition,
        callbacks=[_Steps(tell)],
    )
    if interrupted:  # its seconds are those of the last part only
        result["seconds"] = None
    return result


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
    cost = compress_run(folder, job.certificate)
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
    weights = adapter / WEIGHTS
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
    weights = adapter / WEIGHTS
    return {
        "train_seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
        "peak_memory_bytes": result.get("peak_memory_bytes"),
        "adapter_bytes": weights.stat().st_size if weights.is_file() else None,
    }


def _documents(corpus: CorpusLosses) -> int:
    return int(np.unique(corpus.documents).size)


def _nobody(station: str, share: float) -> None:
    """Tell nobody."""


class _Steps(TrainerCallback):
    """Tells how far a training is."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.tell("train", state.global_step / max(1, state.max_steps))
