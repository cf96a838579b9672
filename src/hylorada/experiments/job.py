"""A job: one training run, what is measured after it, and where its results lie."""

from dataclasses import asdict, dataclass

from hylorada.evaluation.metrics import EvaluationSpec
from hylorada.experiments.certify import certifying_code
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.identity import identify, settings_hash, source_sha256
from hylorada.experiments.run_certificate import CertificateSpec
from hylorada.experiments.run_folder import RESULT

EVALUATION = "evaluation-{}.json"
CERTIFIED = "certified-{}.json"
# The source that decides what is measured, and what is recorded of a certificate.
MEASURING = ("evaluation/*.py", "experiments/inspection.py", "experiments/pipeline.py")
RECORDING = ("experiments/run_certificate.py",)


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

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that make the job finished."""
        return tuple(filter(None, (RESULT, self.evaluation_file, self.certified_file)))

    @property
    def evaluation_file(self) -> str | None:
        """Return the file of what is measured, named by that and by the source that measures."""
        if self.evaluation is None:
            return None
        settings = asdict(self.evaluation)
        settings.pop("progress")
        asked = {"settings": settings, "source": source_sha256(MEASURING)}
        return EVALUATION.format(settings_hash(asked))

    @property
    def certified_file(self) -> str | None:
        """Return the file of what a certificate came to, named as `evaluation_file` is."""
        if self.certificate is None:
            return None
        source = [certifying_code(), source_sha256(RECORDING)]
        asked = {"settings": asdict(self.certificate), "source": source}
        return CERTIFIED.format(settings_hash(asked))


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
    return Address(folder=folder, files=job.files)
