"""What a training run leaves behind, and what a study measured of it."""

from typing import Literal

from hylorada.records import Record
from hylorada.records.evaluations import EvidencePosition, Perplexity, PositionCurve


class Identity(Record, kw_only=True):
    """A run's id, and the hashes of configuration, data and code that it is made of."""

    id: str
    config: str
    data: str
    code: str


class RunResult(Identity, kw_only=True):
    """What `result.json` holds; losses in nats per token.

    Attributes:
        best_step: The step whose weights were kept, where the best were.
        audit: One line: did every declared parameter train?
        seconds: Training time; None for a resumed run, where the last part alone would mislead.
    """

    schema: Literal[1] = 1
    seed: int
    steps: int = 0
    train_loss: float | None = None
    valid_loss: float | None = None
    valid_perplexity: float | None = None
    valid_tokens: int = 0
    best_step: int | None = None
    trainable_parameters: int = 0
    audit: str | None = None
    peak_memory_bytes: int | None = None
    seconds: float | None = None


class Environment(Record, kw_only=True):
    """Versions, commit and hardware of a run, as `environment.json` holds them."""

    run: Identity | None = None
    python: str
    platform: str
    packages: dict[str, str]
    commit: str | None
    cpus: int | None
    threads: int
    accelerators: list[str]
    processes: int = 1


class Clusters(Record, kw_only=True):
    """The summed loss in nats and the scored tokens of each document, or block if few."""

    unit: str
    nats: list[float]
    tokens: list[int]


class Table(Record, kw_only=True):
    """Weights with names for rows and columns, such as gates by position."""

    rows: list[str]
    columns: list[str]
    weights: list[list[float]]


class FutureLeak(Record, kw_only=True):
    """How far logits move when only later tokens change, and their own largest size."""

    largest_change: float
    largest_logit: float


class TestText(Record, kw_only=True):
    """The text on which a run was judged."""

    __test__ = False  # not a test of pytest's

    fingerprint: str
    documents: int


class RunCost(Record, kw_only=True):
    """What a run cost; None where it was not measured."""

    train_seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: float | None = None
    adapter_bytes: float | None = None


class RunEvaluation(Record, kw_only=True):
    """What a study measures of a run.

    Attributes:
        evidence: Loss by depth of the evidence; None where the context is too short for it.
        boundaries: Learned bucket boundaries in tokens.
        gates: Mean weight of each landmark by position.
        valid_share: Share of training positions that are text.
        adapter_dtypes: Kinds of numbers in the stored adapter.
    """

    schema: int = 2
    ppl: Perplexity
    position_curve: PositionCurve
    evidence: EvidencePosition | None
    clusters: Clusters
    boundaries: list[float] | None
    gates: Table | None
    future_leak: FutureLeak
    test: TestText
    valid_share: float
    adapter_dtypes: list[str]
    cost: RunCost


class SideNorms(Record, kw_only=True):
    """Norms of the gradients of A and B."""

    A: float
    B: float


class GradientNorms(SideNorms, kw_only=True):
    """Norms with respect to the coordinates of each factor, and to each layer's factors."""

    layers: dict[str, SideNorms]


class TraceLine(Record, kw_only=True):
    """A line of `subspace.jsonl`: what happened inside a subspace at a step."""

    step: int
    gradient_norm: GradientNorms
    vector_norm: float
    shares: dict[str, float]
    sharpness: float
