"""A certificate as data: every number, what was assumed, what was paid, and what it is about."""

from typing import Annotated, Literal

from msgspec import Meta

from hylorada.records import Record


class Statement(Record, kw_only=True):
    """One certified number beside what was measured.

    Attributes:
        name: What is bounded.
        bound: The certified value: at least this for a gain, at most this for anything else.
        measured: The same quantity on the documents read.
        unit: Unit of both.
        vacuous: Whether the bound says no more than could be said without any data.
        settings: Weights and stakes that were chosen, each out of a grid that is paid for.
    """

    name: str
    bound: float
    measured: float
    unit: str
    vacuous: bool
    settings: dict[str, float] = {}


class PaidChoice(Record, kw_only=True):
    """Something picked by looking at the data, and what naming it costs."""

    name: str
    options: int
    bits: float


class Payment(Record, kw_only=True):
    """All that a certificate pays for; `paid_inside_each_bound` is part of the formulas."""

    message_bits: int
    prefix_free_bits: float
    choices: list[PaidChoice]
    bits: float
    nats: float
    paid_inside_each_bound: list[PaidChoice]


class Prior(Record, kw_only=True):
    """Where the message is decoded to: a pretrained model, or random weights from a seed."""

    kind: Annotated[str, Meta(pattern="^(pretrained|random)$")]
    name: str


class MessageFile(Record, kw_only=True):
    """Name, size, hash and configuration of the compressed adapter."""

    file: str
    bytes: int
    sha256: str
    configuration_id: str


class MeasuredModel(Record, kw_only=True):
    """The base model and how it read the documents."""

    base: str
    base_sha256: str
    vocabulary: int
    max_length: int
    stride: int
    dtype: str
    device: str


class CertifiedText(Record, kw_only=True):
    """The corpus, and what of it was read."""

    source: str
    split: str
    lines: str
    fingerprint: str
    documents: int
    tokens: int
    documents_read: int
    tokens_read: int
    samples: int | None
    seed: int


class MeanLosses(Record, kw_only=True):
    """Plain losses of one model, without any bound."""

    bits_per_token_over_documents: float
    standard_deviation_over_documents: float
    bits_per_token_over_tokens: float
    bits_per_byte: float


class Measured(Record, kw_only=True):
    """Plain losses of both models, and the hash of every loss."""

    adapted: MeanLosses
    frozen: MeanLosses | None
    losses_sha256: str


class Code(Record, kw_only=True):
    """Versions, and the hash of the source that decides numbers."""

    packages: dict[str, str]
    sha256: str


class Certificate(Record, kw_only=True):
    """What `hylorada bound` writes and `hylorada verify` checks.

    Attributes:
        sentence: The headline in words.
        level: "document" or "token".
        delta: Probability with which any of the statements may be wrong.
        statements: All that is certified; the first is the headline.
        assumptions: What must hold for the statements to be true, a sentence each.
        inequality: What bounded every statement; certificates of 0.1 do not name theirs.
    """

    schema: Literal[1] = 1
    sentence: str
    level: Annotated[str, Meta(pattern="^(document|token)$")]
    delta: Annotated[float, Meta(gt=0, lt=1)]
    statements: Annotated[list[Statement], Meta(min_length=1)]
    assumptions: list[str]
    prior: Prior
    ledger: Payment
    message: MessageFile
    model: MeasuredModel
    data: CertifiedText
    measured: Measured
    code: Code
    inequality: str = "betting"

    @property
    def headline(self) -> Statement:
        """Return the gain over the frozen model, or the loss where there is none."""
        return self.statements[0]


class CompressionCost(Record, kw_only=True):
    """What a compressed adapter costs, beside the published estimate."""

    configuration_id: str
    dim: int
    levels: int
    step: float | None
    gates: int
    counted_bits: int
    published_estimate_bits: float
    file_bytes: int = 0
    distortion: float = 0.0


class RiskEstimate(Record, kw_only=True):
    """A mean over documents of bits per token, with its standard error."""

    value: float
    standard_error: float


class CertifiedGain(Record, kw_only=True):
    """The gain over the frozen model, certified and measured."""

    bound: float
    measured: float


class Division(Record, kw_only=True):
    """How a subspace divides its coordinates: B's share, and γ of each gate by layer."""

    share_of_b: float
    layers: list[str]
    slices: list[int]
    gamma: list[float]
    gamma_quantised: list[float] = []


class CertifiedRun(Record, kw_only=True):
    """What a run's compressed file and certificate came to; risks in bits per token."""

    schema: int = 1
    file: str
    certificate: str
    sentence: str
    bits: int
    paid_bits: float
    file_bytes: int
    compression: CompressionCost
    risk: RiskEstimate
    risk_unquantised: RiskEstimate
    bound: float
    vacuous: bool
    complexity: float
    gain: CertifiedGain | None
    documents: int
    population: int
    delta: float
    allocation: Division
