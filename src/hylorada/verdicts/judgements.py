"""What a study says, as data: a verdict an arm, comparisons with controls, two sentences."""

from dataclasses import asdict, dataclass

from hylorada.errors import SpecError
from hylorada.evaluation.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate against a control.

    Attributes:
        arm: Name of the candidate.
        against: Name of the control.
        gain: Per cent lower perplexity than the control's, with its interval.
        beaten: Whether that interval lies above 0.
        no_larger: Whether the control has no more parameters than the candidate, as far as known.
        sentence: All of it, plainly.
    """

    arm: str
    against: str
    gain: Estimate
    beaten: bool
    no_larger: bool
    sentence: str

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a result file."""
        return {**asdict(self), "gain": self.gain.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study says of one arm; gains are per cent lower perplexity than the baseline.

    Attributes:
        arm: Name of the arm.
        role: Its role in the study.
        gain: Per cent, with the Holm-adjusted simultaneous interval.
        label: `A` to `E` or `inconclusive`; `None` for a reference, which is not judged.
        meaning: The label in one word.
        seeds_needed: Further seeds that would settle an inconclusive arm if its estimate stayed;
            `None` when settled or when seeds cannot settle it.
        explained_by: Controls of no larger size that a helping candidate does not beat.
        point_scenario: What the literal point rule says, without any interval.
        reason: Why there is no label, or why more seeds would not give one; else `None`.
        sentence: All of it, plainly.
    """

    arm: str
    role: str
    gain: Estimate
    label: str | None
    meaning: str
    seeds_needed: int | None
    explained_by: tuple[str, ...]
    point_scenario: str
    reason: str | None
    sentence: str

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a result file."""
        plain = {"gain": self.gain.as_dict(), "explained_by": list(self.explained_by)}
        return {**asdict(self), **plain}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdicts in the order of the arms, comparisons with controls, and two sentences.

    Attributes:
        baseline: Name of the arm that all gains refer to.
        seeds: Paired seeds.
        verdicts: One an arm, without the baseline.
        comparisons: Each candidate against each control.
        sentences: The study's answer.
        unpooled: Judged arms whose own spread alone was used: far noisier than the others, or an
            exact repetition of an earlier arm.
    """

    baseline: str
    seeds: int
    verdicts: tuple[Verdict, ...]
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, str]
    unpooled: tuple[str, ...]

    def verdict(self, arm: str) -> Verdict:
        """Return the verdict on the named arm."""
        for verdict in self.verdicts:
            if verdict.arm == arm:
                return verdict
        raise SpecError(f"no arm {arm!r} was judged; got {[v.arm for v in self.verdicts]}")

    def checks(self) -> list[dict[str, object]]:
        """Return name, outcome and detail of every self-check arm: it must not have an effect."""
        return [
            {
                "name": f"{verdict.arm} shows no effect",
                "passed": verdict.label in ("D", "inconclusive"),
                "detail": verdict.sentence,
            }
            for verdict in self.verdicts
            if verdict.role == "self_check"
        ]

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a result file."""
        return {
            "baseline": self.baseline,
            "seeds": self.seeds,
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            "sentences": list(self.sentences),
            "unpooled": list(self.unpooled),
        }
