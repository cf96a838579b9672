"""What was measured of a model: estimates with their spread, and one record for each metric."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hylorada.records import Record

Interval = tuple[float, float]


class Estimate(Record, kw_only=True):
    """A number with its spread; without at least two clusters the spread is unknown, None.

    Attributes:
        interval: Ends of the 95 % interval.
        clusters: Independent units behind it: documents, blocks, items or seeds.
    """

    value: float
    standard_error: float | None = None
    interval: Interval | None = None
    clusters: int = 0

    def exponential(self) -> "Estimate":
        """Return the estimate of `exp(value)`: ends mapped, error by the delta method."""
        return self._mapped(math.exp, math.exp(self.value))

    def scaled(self, factor: float) -> "Estimate":
        """Return the same estimate in another unit, `factor > 0` times the value."""
        return self._mapped(lambda number: number * factor, factor)

    def _mapped(self, function: Callable[[float], float], slope: float) -> "Estimate":
        error, ends = self.standard_error, self.interval
        return Estimate(
            value=function(self.value),
            standard_error=None if error is None else error * slope,
            interval=None if ends is None else (function(ends[0]), function(ends[1])),
            clusters=self.clusters,
        )


class Quoted(NamedTuple):
    """A row of a table: what it is called, the number, and its unit or a remark."""

    label: str
    estimate: Estimate | None
    unit: str


class Measurement(Record, kw_only=True):
    """What a metric found. A metric of your own returns a subclass, or a plain `Quantity`."""

    def quoted(self, name: str) -> list[Quoted]:
        """Return the numbers by which the metric of this name is usually quoted."""
        raise NotImplementedError


class Quantity(Estimate, Measurement, kw_only=True):
    """An estimate with its unit, and what counts as independent in it."""

    unit: str
    cluster: str | None = None

    def quoted(self, name: str) -> list[Quoted]:
        """Return the number itself."""
        return [Quoted(name, self, self.unit)]


class Perplexity(Quantity, kw_only=True):
    """`exp` of the mean loss over all scored tokens, with bits per token and per byte."""

    length: int
    stride: int
    loss: Quantity
    bits_per_token: Quantity
    bits_per_byte: Quantity
    tokens: int
    bytes: float

    def quoted(self, name: str) -> list[Quoted]:
        """Return perplexity, bits per token and bits per byte."""
        return [
            Quoted(name, self, self.unit),
            Quoted("  bits per token", self.bits_per_token, f"{self.tokens:,} tokens"),
            Quoted("  bits per byte", self.bits_per_byte, "bits/byte"),
        ]


class MiddlePerplexity(Quantity, kw_only=True):
    """Perplexity of the targets in the middle third of their window (descriptive)."""

    length: int
    stride: int
    tokens: int
    descriptive: bool = True


class SlicePerplexity(Quantity, kw_only=True):
    """Mean over ten slices of the perplexity of each (descriptive)."""

    slices: list[float]
    documents: int
    tokens: int
    descriptive: bool = True


class PositionPoint(Estimate, kw_only=True):
    """The mean loss at the positions from `start` up to, not including, `end`."""

    start: int
    end: int
    tokens: int = 0


class PositionCurve(Measurement, kw_only=True):
    """The mean loss in nats by position in the window."""

    unit: str
    cluster: str
    length: int
    tokens: int
    curve: list[PositionPoint]

    def quoted(self, name: str) -> list[Quoted]:
        """Return the first and the last bucket."""
        return [
            Quoted(f"loss at positions {point.start}–{point.end - 1}", point, self.unit)
            for point in (self.curve[0], self.curve[-1])
        ]


class DepthPoint(Estimate, kw_only=True):
    """The answer's loss with its evidence at a depth of the context, 0 the farthest."""

    depth: float
    unit: str = "nats/token"
    utilisation: Estimate | None = None


class EvidencePosition(Quantity, kw_only=True):
    """Perplexity of answers whose evidence stands in the middle, and the whole curve by depth."""

    scoring: str
    lim_gap: Quantity
    utilisation: Estimate | None
    worst_utilisation: float | None
    closed: Quantity
    oracle: Quantity
    curve: list[DepthPoint]
    items: int
    tokens: int
    length: int

    def quoted(self, name: str) -> list[Quoted]:
        """Return the value, the gap and how much of the evidence's worth is used."""
        gap = Quoted("  gap, middle to edge", self.lim_gap, "nats/token")
        used = Quoted("  utilisation", self.utilisation, "share of the evidence's worth")
        # Evidence worth nothing has no share to use.
        return [Quoted(name, self, self.unit), gap, *([used] if self.utilisation else [])]


class ContextPoint(Estimate, kw_only=True):
    """The loss added by seeing only so many tokens."""

    context: int


class ContextGain(Measurement, kw_only=True):
    """What a longer context is worth, in nats, for targets that stay the same."""

    unit: str
    cluster: str
    length: int
    targets: int
    windows_from: str
    full_context: ContextPoint
    curve: list[ContextPoint]

    def quoted(self, name: str) -> list[Quoted]:
        """Return a row for each context that was cut short."""
        return [
            Quoted(f"loss added by seeing only {point.context} tokens", point, self.unit)
            for point in self.curve[:-1]
        ]


class MatchPoint(Estimate, kw_only=True):
    """The share of exact answers with the evidence at a depth."""

    depth: float


class Matches(Estimate, kw_only=True):
    """Exact match of one task at one length, over all depths and by depth."""

    task: str
    length: int
    worst_depth: float
    matching_tokens: Estimate
    items: int
    prompts: int
    curve: list[MatchPoint]


class Skipped(Record, kw_only=True):
    """A task that was not measured at a length, and why."""

    task: str
    length: int
    skipped: str


class Retrieval(Measurement, kw_only=True):
    """Exact match by task, length and depth."""

    unit: str
    scoring: str
    cluster: str
    results: list[Matches | Skipped]

    def quoted(self, name: str) -> list[Quoted]:
        """Return a row for each task and length."""
        return [
            Quoted(f"{one.task} at {one.length} tokens", None, one.skipped)
            if isinstance(one, Skipped)
            else Quoted(f"{one.task} at {one.length} tokens", one, self.unit)
            for one in self.results
        ]


class Cost(Measurement, kw_only=True, omit_defaults=True):
    """What a model costs to run: time, memory and numbers stored."""

    forward_seconds: float
    tokens_per_second: float
    batch: tuple[int, int]
    repeats: int
    device: str
    peak_memory_bytes: int
    peak_memory_of: str
    parameters: int
    trainable_parameters: int
    adapter_parameters: int | None = None
    adapter_bytes: int | None = None

    def quoted(self, name: str) -> list[Quoted]:
        """Return every number that was measured."""
        return [
            Quoted(field.replace("_", " "), Estimate(value=value), "")
            for field in self.__struct_fields__
            if isinstance(value := getattr(self, field), int | float)
        ]


class Subject(Record, kw_only=True):
    """What was evaluated, and on what."""

    model: str
    adapter: str | None
    data: str
    split: str


class Evaluation(Record, kw_only=True):
    """What `hylorada evaluate` found."""

    schema: int = 1
    subject: Subject | None = None
    metrics: Mapping[str, Measurement]
    settings: dict[str, object]
    data: dict[str, int | str]
    seconds: dict[str, float]
