"""A study as one file: everything that a reader, a table or a page needs."""

from typing import Literal

from hylorada.records import Record
from hylorada.records.evaluations import Estimate, Interval
from hylorada.records.runs import RunCost, Table

Logged = tuple[float, float | None]  # a step and what was logged there


class Mean(Record, kw_only=True):
    """A mean over seeds, and its interval where there is one."""

    value: float | None = None
    interval: Interval | None = None


class SeedMean(Mean, kw_only=True):
    """A mean over seeds, and each of them."""

    by_seed: list[float | None] = []


class RunName(Record, kw_only=True):
    """A run of an arm."""

    seed: int
    id: str = ""


class CurvePoint(Mean, kw_only=True):
    """The mean over seeds of a loss at positions `start` up to, not including, `end`."""

    start: int
    end: int


class DepthMean(Mean, kw_only=True):
    """The mean over seeds of an answer's loss with its evidence at a depth."""

    depth: float


class Boundaries(Record, kw_only=True):
    """Where buckets begin, in tokens: what each seed learned, and equal ones."""

    learned: list[list[float]]
    uniform: list[float]
    context: int | None = None


class TriedRate(Record, kw_only=True):
    """A learning rate that was tried, and the loss on the tuning text."""

    rate: float
    loss: float | None
    multiple: float | None = None
    chosen: bool = False


class FactorGradients(Record, kw_only=True):
    """Mean norms of the gradients of A and B, layer by layer."""

    A: list[float]
    B: list[float]


class Allocation(Record, kw_only=True):
    """How an arm divides its coordinates, and what its files and bounds came to."""

    mode: str
    ratio: float | None
    budget: int
    share_of_b: SeedMean
    bits: SeedMean
    paid_bits: SeedMean
    risk: SeedMean
    risk_unquantised: SeedMean
    bound: SeedMean
    complexity: SeedMean
    gain_bound: SeedMean | None
    vacuous: int
    file_bytes: float
    documents: int
    population: int
    delta: float
    certificates: list[str]
    layers: list[str] | None = None
    gamma: list[list[float]] | None = None
    gradients: FactorGradients | None = None


class Arm(Record, kw_only=True):
    """What a study says of one arm.

    Attributes:
        role: baseline, candidate, control, self_check or reference.
        gain: Per cent lower perplexity than its baseline's, with the simultaneous interval.
        label: A to E or inconclusive; None where the arm is not judged.
        explained_by: Controls of no larger size that it does not beat.
        point_scenario: What the literal rule says, which looks at the mean alone.
        training_curve: Steps and losses, by seed.
    """

    name: str
    role: str = "reference"
    baseline: str | None = None
    description: str | None = None
    trainable_parameters: int | None = None
    added_parameters: int | None = None
    perplexity: SeedMean | None = None
    gain: Estimate | None = None
    label: str | None = None
    meaning: str | None = None
    seeds_needed: int | None = None
    explained_by: list[str] | None = None
    point_scenario: str | None = None
    sentence: str | None = None
    reason: str | None = None
    params_per_percent: float | None = None
    cost: RunCost | None = None
    runs: list[RunName] = []
    training_curve: dict[str, list[Logged]] | None = None
    position_curve: list[CurvePoint] | None = None
    depth_curve: list[DepthMean] | None = None
    boundaries: Boundaries | None = None
    gates: Table | None = None
    tuning: list[TriedRate] | None = None
    optimisation: dict[str, float | None] | None = None
    allocation: Allocation | None = None


class Comparison(Record, kw_only=True):
    """An arm against another one that is not its baseline.

    Attributes:
        gain: Per cent lower perplexity than the other's, with its interval.
        beaten: Whether that interval lies above 0.
        no_larger: Whether the other has no more parameters, as far as known.
    """

    arm: str
    against: str
    gain: Estimate
    beaten: bool | None = None
    no_larger: bool | None = None
    label: str | None = None
    sentence: str | None = None


class Check(Record, kw_only=True):
    """What a study checked about itself."""

    name: str
    passed: bool
    detail: str | None = None


class Hypothesis(Record, kw_only=True):
    """A claim that was registered, and whether it is supported."""

    name: str
    label: str
    claim: str | None = None
    estimate: float | None = None
    interval: Interval | None = None
    unit: str | None = None
    detail: str | None = None
    sentence: str | None = None


class Thresholds(Record, kw_only=True):
    """Gains, as shares, from which an effect has a name: A, B, C, or a core feature.

    Attributes:
        confidence: Of all intervals of a study at once.
        minimal: Also half the width of "no effect", and the least harm that counts.
        core: Of the literal point rule, as `steady`, the largest deviation over seeds.
    """

    confidence: float = 0.95
    strong: float = 0.02
    moderate: float = 0.01
    minimal: float = 0.005
    core: float = 0.05
    steady: float = 0.01


class RateGrids(Record, kw_only=True):
    """The rates that every arm may try, and the seed they are tried with."""

    base: list[float]
    component: list[float]
    seed: int


class RegisteredPlan(Record, kw_only=True):
    """What was registered, when, and what has changed since."""

    hash: str | None = None
    registered: str | None = None
    changes: list[str] = []
    baseline: str | None = None
    metric: str = "ppl"
    seeds: list[int] = []
    thresholds: Thresholds = Thresholds()
    tuning: RateGrids | None = None


class Setting(Record, kw_only=True):
    """The model, the text and the training that all arms share."""

    model: str | None = None
    data: str | None = None
    length: int | None = None
    num_train: int | None = None
    num_val: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    precision: str | None = None
    learning_rate: float | None = None
    num_landmarks: int | None = None
    steps: int | None = None
    seed: int | None = None
    valid_tokens: int | None = None
    test_tokens: int | None = None
    test_documents: int | None = None
    independent_unit: str | None = None
    valid_share: float | None = None
    replace: dict[str, str] = {}


class Provenance(Record, kw_only=True):
    """Versions, hardware, text, and how many runs were reused or failed."""

    packages: dict[str, str] = {}
    commit: str | None = None
    hardware: str | None = None
    data_fingerprint: str | None = None
    started: str | None = None
    finished: str | None = None
    runs: int | None = None
    reused: int | None = None
    failed: int | None = None
    repeated: int | None = None
    engine: str | None = None
    id: str | None = None
    config: str | None = None
    data: str | None = None
    code: str | None = None


class Frozen(Record, kw_only=True):
    """The frozen model on the same text."""

    perplexity: float | None = None


class GainPoint(Mean, kw_only=True):
    """A gain at a place of an axis."""

    x: float
    standard_error: float | None = None
    clusters: int | None = None


class GainCurve(Record, kw_only=True):
    """The gain of one component along an axis."""

    name: str
    points: list[GainPoint]


class GainCurves(Record, kw_only=True):
    """Gains of several components along one axis, such as the context length."""

    curves: list[GainCurve]
    over: str | None = None


class BitsRisk(Record, kw_only=True):
    """The length of an arm's message, and its risk."""

    name: str
    bits: float | None = None
    risk: float | None = None
    interval: Interval | None = None


class NamedTable(Table, kw_only=True):
    """A table of weights of one arm."""

    name: str


class NamedCurve(Record, kw_only=True):
    """Steps and values of one curve."""

    name: str
    points: list[Logged]


class BoundPart(Record, kw_only=True):
    """A part of a bound."""

    name: str
    value: float | None = None


class BoundParts(Record, kw_only=True):
    """What an arm's bound is the sum of."""

    name: str
    parts: list[BoundPart]


class FiguresData(Record, kw_only=True):
    """What figures need beyond the arms."""

    risk_unit: str = "bits per token"
    gain_curves: GainCurves | None = None
    bits_risk: list[BitsRisk] = []
    layer_gates: list[NamedTable] = []
    gradient_norms: list[NamedCurve] = []
    bound_parts: list[BoundParts] = []


class Study(Record, kw_only=True):
    """What `hylorada compare` writes as study.json."""

    schema: Literal[1] = 1
    study: str | None = None
    title: str | None = None
    command: str | None = None
    sentences: list[str] = []
    plan: RegisteredPlan = RegisteredPlan()
    setting: Setting = Setting()
    frozen: Frozen | None = None
    arms: list[Arm]
    comparisons: list[Comparison] = []
    checks: list[Check] = []
    statements: list[Hypothesis] = []
    figures_data: FiguresData = FiguresData()
    provenance: Provenance = Provenance()
