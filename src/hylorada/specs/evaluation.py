"""What is measured after training: metrics, the compressed file, and the certificate."""

from dataclasses import dataclass, field
from pathlib import Path

from hylorada.errors import SpecError
from hylorada.specs import check, setting

DEFAULT_METRICS = ("ppl", "position_curve", "lim_ppl", "retrieval", "context_gain")
LEVELS = ("document", "token")
DTYPES = ("float32", "bfloat16", "autocast")
QUANTISERS = ("auto", "symmetric", "uniform", "kmeans")
MAX_LEVELS = 255
MAX_GATE_BITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec:
    """How much is measured; the defaults suit a small model on a laptop."""

    max_length: int = setting(512, "Tokens of context in every metric.", least=2)
    max_tokens: int | None = setting(131_072, "Corpus tokens read; null reads them all.", least=1)
    stride: int | None = setting(None, "Tokens between windows; null: no overlap.", least=1)
    position_buckets: int = setting(16, "Buckets of the position curve.", least=1)
    evidence_items: int = setting(16, "Questions of lim_ppl, each at eleven depths.", least=1)
    retrieval_items: int = setting(8, "Answers for each task, length and depth.", least=1)
    retrieval_lengths: tuple[int, ...] | None = setting(
        None, "Prompt lengths of retrieval; null: half of max_length, and max_length."
    )
    key_values: Path | None = setting(
        None, "Key-value file in the lost-in-the-middle format; null generates pairs."
    )
    context_windows: int = setting(48, "Windows of context_gain, each with 32 targets.", least=1)
    batch_tokens: int | None = setting(None, "Tokens in a batch; null: by the device.", least=1)
    seed: int = setting(0, "Seed of every generated item.")
    progress: bool = setting(True, "Show progress bars, on standard error.")

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSpec:
    """How coordinates become symbols."""

    method: str = setting(
        "auto",
        "auto keeps what training quantised, and otherwise looks for the fewest bits at the "
        "distortion allowed; symmetric takes multiples of the best step, uniform equal bins with "
        "their means (the published procedure), kmeans the best list of values.",
        among=QUANTISERS,
    )
    levels: int | None = setting(
        None, "Number of values; null takes 11, or auto's own choice.", between=(1, MAX_LEVELS)
    )
    distortion: float = setting(
        0.05, "Share of the vector's squared length that auto may lose: more is shorter."
    )
    gate_bits: int = setting(
        6, "Bits a gate, where the adapter has gates.", between=(1, MAX_GATE_BITS)
    )

    def __post_init__(self) -> None:
        """Check every field."""
        check(self)
        if not 0.0 < self.distortion < 1.0:
            raise SpecError(f"distortion must lie between 0 and 1; got {self.distortion:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifySpec:
    """What is certified, on which text, and how it is measured.

    `samples` are drawn with replacement at document level, and read from the beginning at token
    level. `choices` names what was picked by looking at the data and is not in the file, with the
    number of options: dimension, mode, base model, seeds …
    """

    level: str = setting(
        "document", "document (unseen ones) or token (these contexts).", among=LEVELS
    )
    split: str = setting("train", "train, valid or test: the one it was trained on.")
    lines: str = setting("auto", "What lines of plain text become, as in training.")
    samples: int | None = setting(None, "Documents to draw; null reads them all: tighter.", least=2)
    delta: float = setting(0.05, "Probability of being wrong.")
    choices: dict[str, int] = field(
        default_factory=dict, metadata={"help": "Looked-up choices, as dimension=5 mode=3."}
    )
    inequality: str = setting(
        "betting", "What bounds every statement; hylorada list inequalities shows them."
    )
    base: str | None = setting(None, "The base model, if it is not where the file says.")
    max_length: int | None = setting(None, "Tokens of context; null: the model's, up to 1024.")
    stride: int | None = setting(None, "Tokens scored by each window of a longer document.")
    dtype: str = setting(
        "float32", "float32, bfloat16, or autocast: bfloat16 from float32.", among=DTYPES
    )
    device: str | None = setting(None, "cpu or cuda; null takes CUDA where there is one.")
    seed: int = setting(0, "Seed of the draws.")
    progress: bool = setting(True, "Show progress bars, on standard error.")

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        if not 0 < self.delta < 1:
            raise SpecError(
                f"delta is a probability of failure, so it must lie strictly between 0 and 1; "
                f"got {self.delta}; 0.05 states 95 %"
            )
        check(self)
        for name, options in self.choices.items():
            if options < 1:
                raise SpecError(f"the options of {name!r} must be at least 1; got {options}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpec:
    """How a run of a study is compressed and certified, on its training text.

    Attributes:
        documents: Documents drawn with replacement; all are read where there are no more.
        choices: What the study chooses by looking, with the number of options each.
        delta: Probability with which a certificate may be wrong.
        seed: Seed of the draws: the same documents for every run.
    """

    documents: int = 10_000
    choices: dict[str, int] = field(default_factory=dict)
    delta: float = 0.05
    seed: int = 0
    compression: CompressionSpec = field(default_factory=CompressionSpec)

    def __post_init__(self) -> None:
        """Check every field."""
        if self.documents < 2:
            raise SpecError(f"certified documents must be at least 2; got {self.documents}")
