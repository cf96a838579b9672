"""What a study says, as records and in plain words: one sentence an arm, two for the study."""

from collections.abc import Mapping, Sequence

from hylorada.errors import SpecError
from hylorada.records import Record
from hylorada.records.evaluations import Estimate
from hylorada.records.studies import Comparison
from hylorada.verdicts.labels import HELPS, VerdictSpec

OUTCOMES = {
    "A": "a strong gain",
    "B": "a moderate gain",
    "C": "a minimal gain",
    "D": "no effect",
    "E": "harmful",
    "inconclusive": "inconclusive",
    None: "for reference",
}


class Verdict(Record, kw_only=True):
    """What a study says of one arm; gains are per cent lower perplexity than the baseline.

    Attributes:
        gain: Per cent, with the Holm-adjusted simultaneous interval.
        label: `A` to `E` or `inconclusive`; None for a reference, which is not judged.
        meaning: The label in one word.
        seeds_needed: Further seeds that would settle an inconclusive arm if its estimate stayed;
            None when settled or when seeds cannot settle it.
        explained_by: Controls of no larger size that a helping candidate does not beat.
        point_scenario: What the literal point rule says, without any interval.
        reason: Why there is no label, or why more seeds would not give one.
        sentence: All of it, plainly.
    """

    arm: str
    role: str
    gain: Estimate
    label: str | None
    meaning: str
    seeds_needed: int | None = None
    explained_by: list[str] = []
    point_scenario: str
    reason: str | None = None
    sentence: str = ""


class Judgement(Record, kw_only=True):
    """Verdicts in the order of the arms, comparisons with controls, and two sentences.

    Attributes:
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
        found = {verdict.arm: verdict for verdict in self.verdicts}
        if arm not in found:
            raise SpecError(f"no arm {arm!r} was judged; got {list(found)}")
        return found[arm]


def counted(amount: int, thing: str) -> str:
    """Return an amount with its noun in the right number."""
    return f"{amount} {thing}{'' if amount == 1 else 's'}"


def difference(gain: Estimate, against: str) -> str:
    """Return a gain in words, such as "perplexity 3.5 % [3.1, 3.9] lower than rsLoRA's"."""
    higher = gain.value < 0
    ends = gain.interval
    if ends is not None and higher:
        ends = (-ends[1], -ends[0])
    interval = "" if ends is None else f" [{_number(ends[0])}, {_number(ends[1])}]"
    direction = "higher" if higher else "lower"
    return f"perplexity {_number(abs(gain.value))} %{interval} {direction} than {against}'s"


def arm_sentence(
    verdict: Verdict,
    baseline: str,
    comparisons: Sequence[Comparison],
    gains: Mapping[str, Estimate],
) -> str:
    """Return what is known of one arm, what it means and which comparisons explain it."""
    seeds = counted(verdict.gain.clusters, "seed")
    remedy = ""
    if verdict.seeds_needed is not None:
        remedy = f"; about {counted(verdict.seeds_needed, 'more seed')} would settle it"
    elif verdict.label == "inconclusive":
        remedy = f"; {verdict.reason}"
    text = f"{verdict.arm}: {difference(verdict.gain, baseline)} ({seeds}): "
    text += f"{OUTCOMES[verdict.label]}{remedy}."
    return " ".join([text, *(_explanation(one, gains) for one in _causes(verdict, comparisons))])


def comparison_sentence(arm: str, against: str, gain: Estimate, *, beaten: bool) -> str:
    """Return how a candidate stands to a control."""
    if beaten:
        outcome = "it beats this control"
    elif gain.interval is not None and gain.interval[1] < 0:
        outcome = "the control does more"
    else:
        outcome = "it is not shown to beat this control"
    return f"{arm}: {difference(gain, against)}: {outcome}."


def study_sentences(
    verdicts: Sequence[Verdict], comparisons: Sequence[Comparison], spec: VerdictSpec
) -> tuple[str, str]:
    """Return the study's answer in two sentences: what was found, and what explains it."""
    failed = [v for v in verdicts if v.role == "self_check" and v.label in (*HELPS, "E")]
    judged = [verdict for verdict in verdicts if verdict.role == "candidate"]
    judged = judged or [verdict for verdict in verdicts if verdict.label is not None]
    helping = [verdict for verdict in judged if verdict.label in HELPS]
    first = _finding(judged, helping, spec)
    if failed:
        names = ", ".join(verdict.arm for verdict in failed)
        return first, f"Do not rely on it: the self-check {names} shows an effect where none is."
    if helping:
        return first, _cause(_best(helping), comparisons, {v.arm: v.gain for v in verdicts})
    return first, _outlook(judged, spec)


def _finding(judged: Sequence[Verdict], helping: Sequence[Verdict], spec: VerdictSpec) -> str:
    if not judged:
        return "No arm was judged."
    if len(judged) == 1:
        return judged[0].sentence.split(". ")[0].removesuffix(".") + "."
    kind = "candidates" if judged[0].role == "candidate" else "arms"
    best = _best(helping or judged)
    lead = "the largest gain" if helping else "the most promising"
    count = f"{len(helping)} of {len(judged)} {kind} lower perplexity"
    if not helping:
        least = f"{100 * spec.minimal:g} %"
        count = f"None of {len(judged)} {kind} is shown to lower perplexity by {least} or more"
    return f"{count}; {lead} is {best.sentence.split('. ')[0].removesuffix('.')}."


def _causes(verdict: Verdict, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons that explain the gain, the strongest control first."""
    explaining = [
        one for one in comparisons if one.arm == verdict.arm and one.against in verdict.explained_by
    ]
    return sorted(explaining, key=lambda one: one.gain.value)


def _cause(best: Verdict, comparisons: Sequence[Comparison], gains: Mapping[str, Estimate]) -> str:
    """Return what explains the best candidate's gain."""
    own = [one for one in comparisons if one.arm == best.arm and one.no_larger]
    if not own:
        return "No control of no larger size was run, so what explains the gain stays open."
    causes = _causes(best, comparisons)
    if causes:
        return _explanation(causes[0], gains)
    closest = min(own, key=lambda one: one.gain.value)
    return (
        f"It beats every control of no larger size; against the closest: "
        f"{difference(closest.gain, closest.against)}."
    )


def _outlook(judged: Sequence[Verdict], spec: VerdictSpec) -> str:
    waiting = [verdict for verdict in judged if verdict.label == "inconclusive"]
    if not waiting:
        return f"Every arm was settled: no gain of {100 * spec.minimal:g} % or more was shown."
    needed = [verdict.seeds_needed for verdict in waiting if verdict.seeds_needed is not None]
    if not needed:
        return f"{waiting[0].arm} stays open: {waiting[0].reason}."
    return (
        f"{len(waiting)} of {len(judged)} stay open; "
        f"about {counted(min(needed), 'more seed')} would settle the nearest."
    )


def _explanation(comparison: Comparison, gains: Mapping[str, Estimate]) -> str:
    ends = comparison.gain.interval
    control = f"{comparison.against}, a control of no larger size,"
    gained = f"{_number(gains[comparison.against].value)} %"
    if ends is not None and ends[1] < 0:
        return f"{control} does more, {gained}: it explains the gain."
    return f"{control} gains {gained} and is not told apart: it may explain the gain."


def _best(verdicts: Sequence[Verdict]) -> Verdict:
    return max(verdicts, key=lambda verdict: verdict.gain.value)


def _number(percent: float) -> str:
    shown = f"{percent:.2f}" if abs(percent) < 1000 else f"{percent:.0e}"
    return shown.replace("-", "−")
