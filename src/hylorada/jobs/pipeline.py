"""START HERE. The path from a text to a certificate: assemble, train, evaluate, compress, certify.

Every command walks some of these stations in this order:

    hylorada train      assemble → train
    hylorada evaluate   assemble → evaluate
    hylorada compress   compress
    hylorada bound      assemble → certify          (verify walks it again and compares)
    hylorada compare    all of them, once for each job of a study

A job is a training run and what is measured of it. Its folder is the run's folder, named by the
run's id; what was measured lies there too, under a name that says what was asked for, so that
every study that asks the same finds it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from transformers import TrainerCallback, TrainerState, TrainingArguments

from hylorada.evaluation.likelihood import require_context
from hylorada.files import write_record
from hylorada.identity import settings_hash, source_sha256
from hylorada.jobs.assembly import Workshop, adapter_config, load_data, load_model
from hylorada.jobs.certify import certify_run
from hylorada.jobs.compress import compress
from hylorada.jobs.evaluate import measure_run
from hylorada.jobs.ledger import Address
from hylorada.jobs.run import RESULT, identify, run
from hylorada.records.runs import RunResult
from hylorada.specs.evaluation import CertificateSpec, EvaluationSpec
from hylorada.specs.run import RunConfig

MESSAGE = "adapter.hyl"

# Hears the station a job is at, and the share of it that is done.
Tell = Callable[[str, float], None]


def train_run(config: RunConfig, callbacks: Sequence[TrainerCallback] = ()) -> RunResult:
    """Carry out the run that `hylorada train` describes, in this process or several."""
    adapter_config(config.adapter)  # what is wrong with it is said before a model is loaded
    base = load_model(config)
    require_context(base.model, config.data.length)
    processes = TrainingArguments(output_dir=os.devnull, use_cpu=config.training.cpu)
    with processes.main_process_first(desc="tokenising"):
        data = load_data(config, base.tokenizer)
    return run(config, base, data, callbacks=callbacks)


def perform(
    job: "Job", folder: Path, workshop: Workshop, tell: Tell = lambda station, share: None
) -> None:
    """Carry a job from station to station in its folder; what is finished is not done again."""
    config = job.config
    try:
        base = workshop.model(config)
        require_context(base.model, config.data.length)
        data = workshop.run_data(config)

        tell("train", 0.0)
        here = replace(config, out=str(folder))
        result = run(here, base, data, repetition=job.repetition, callbacks=[_Steps(tell)])

        if job.evaluation is not None and not (folder / job.evaluation_file).is_file():
            tell("evaluate", 0.0)
            measured = measure_run(config, job.evaluation, folder, workshop, result)
            write_record(folder / job.evaluation_file, measured)

        if job.certificate is not None and not (folder / job.certified_file).is_file():
            tell("compress", 0.0)
            cost = compress(str(folder), folder / MESSAGE, job.certificate.compression)
            tell("certify", 0.0)
            certified = certify_run(folder, MESSAGE, config, job.certificate, cost, workshop)
            write_record(folder / job.certified_file, certified)
    except BaseException:
        workshop.forget()
        raise
    workshop.put_back(config)
    tell("result", 1.0)


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

    config: RunConfig
    evaluation: EvaluationSpec | None = None
    repetition: int = 0
    replica: int = 0
    certificate: CertificateSpec | None = None

    @property
    def evaluation_file(self) -> str:
        """Return the file of what is measured, named by that and by the source that measures."""
        assert self.evaluation is not None
        return _file("evaluation", self.evaluation, source_sha256("hylorada.jobs.evaluate"))

    @property
    def certified_file(self) -> str:
        """Return the file of what a certificate came to, named as `evaluation_file` is."""
        assert self.certificate is not None
        return _file("certified", self.certificate, source_sha256("hylorada.jobs.certify"))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that make the job finished."""
        evaluated = () if self.evaluation is None else (self.evaluation_file,)
        certified = () if self.certificate is None else (self.certified_file,)
        return (RESULT, *evaluated, *certified)


def _file(kind: str, spec: EvaluationSpec | CertificateSpec, source: str) -> str:
    settings = {name: value for name, value in asdict(spec).items() if name != "progress"}
    return f"{kind}-{settings_hash({'settings': settings, 'source': source})}.json"


def address(job: Job, data_fingerprint: str) -> Address:
    """Return where a job's results lie, from what decides them."""
    again = f"-again{job.replica}" if job.replica else ""
    folder = identify(job.config, data_fingerprint, job.repetition).id + again
    return Address(folder=folder, files=job.files)


class _Steps(TrainerCallback):
    """Tells how far a training is."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def on_step_end(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        self.tell("train", state.global_step / max(1, state.max_steps))
