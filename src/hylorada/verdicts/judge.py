"""Say whether each arm of a study earns its parameters, and how sure that is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from jaxtyping import Float

from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.records.evaluations import Estimate
from hylorada.records.studies import Comparison
from hylorada.verdicts.intervals import (
    Differences,
    Ends,
    Pool,
    paired_differences,
    pool,
    simultaneous_ends,
)
from hylorada.verdicts.labels import (
    HELPS,
    MEANINGS,
    VerdictSpec,
    gain_estimate,
    labels,
    point_scenario,
)
from hylorada.verdicts.power import further_seeds
from hylorada.verdicts.sentences import (
    Judgement,
    Verdict,
    arm_sentence,
    comparison_sentence,
    study_sentences,
)

ROLES = ("baseline", "candidate", "control", "self_check", "reference")
ONE_SEED = "one seed has no spread, run at least three"
NO_SPREAD = "every seed gave the same difference, so its spread is unknown"
TOO_FEW_DOCUMENTS = "no number of seeds settles it, score more test documents"
ON_A_THRESHOLD = "the estimate lies on a threshold, no number of seeds is likely to settle it"
NEGLIGIBLE = 1e-9  # Nats: closer than any two trainings come unless they are the same one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of a study: its log perplexity under each seed, in the study's order.

    Attributes:
        name: What the study calls it.
        log_perplexities: Mean loss on the test text in nats per token, one value a seed.
        role: One of `baseline`, `candidate`, `control`, `self_check`, `reference`.
        parameters: Trainable parameters; decides which controls are of no larger size.
    """

    name: str
    log_perplexities: tuple[float, ...]
    role: str
    parameters: int | None = None

    def __post_init__(self) -> None:
        require_one_of(f"the role of {self.name!r}", self.role, ROLES)
        if not self.log_perplexities:
            raise SpecError(f"an arm needs at least one seed; {self.name!r} has none")


def judge(
    arms: Sequence[Arm],
    *,
    baseline: str,
    evaluation_errors: Mapping[str, float] | None = None,
    comparison_errors: Mapping[tuple[str, str], float] | None = None,
    documents: int | None = None,
    seeds: Sequence[int] | None = None,
    spec: VerdictSpec | None = None,
) -> Judgement:
    """Return the verdict on every arm but the baseline, by the rule of `docs/verdicts.md`.

    Args:
        arms: The baseline and the arms to judge, values paired by seed.
        baseline: Name of the arm all others are compared with.
        evaluation_errors: Standard error in nats, over test documents, of each arm's paired
            difference to the baseline averaged over seeds; without it none is added.
        comparison_errors: The same for (candidate, control); where absent the sum of the two
            arms' errors, which is never too small.
        documents: Test documents behind those errors; without it the errors count as known.
        seeds: The seeds' own names, for messages.
        spec: Thresholds; the documented ones by default.
    """
    spec = spec or VerdictSpec()
    study = _paired(arms, baseline, evaluation_errors, comparison_errors or {}, documents, seeds)
    unpooled: tuple[str, ...] = ()
    noise = None
    if study.seeds > 1:
        # A repeated arm (an exact A/A arm) would shrink the variance without knowing of it.
        values = [arm.log_perplexities for arm in study.arms]
        judged = [arm.role != "reference" for arm in study.arms]
        first = [values.index(value) == index for index, value in enumerate(values)]
        noise = pool(study.values, np.array([judged]) & np.array([first]))
        alone = np.array(judged) & ~noise.members[0]
        unpooled = tuple(study.arms[index].name for index in np.flatnonzero(alone))
    comparisons = _with_controls(study, noise, spec.confidence)
    verdicts = _worded(_judged(study, noise, spec), baseline, comparisons)
    return Judgement(
        baseline=baseline,
        seeds=study.seeds,
        verdicts=verdicts,
        comparisons=comparisons,
        sentences=study_sentences(verdicts, comparisons, spec),
        unpooled=unpooled,
    )


# Arms that can be compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paired:
    """Arms that can be compared, the baseline first.

    Attributes:
        values: Their log perplexities in nats, as one study.
        errors: Standard error over documents in nats of each arm against the baseline.
        control_errors: The same for each (candidate, control).
        error_degrees: Degrees of freedom of those errors, infinite when unknown.
    """

    arms: tuple[Arm, ...]
    values: Float[np.ndarray, "1 arms seeds"]
    errors: Float[np.ndarray, "1 arms"]
    control_errors: dict[tuple[str, str], float]
    error_degrees: float

    @property
    def seeds(self) -> int:
        return int(self.values.shape[2])

    def indices(self, role: str) -> list[int]:
        return [index for index, arm in enumerate(self.arms) if index and arm.role == role]


def _paired(
    arms: Sequence[Arm],
    baseline: str,
    arm_errors: Mapping[str, float] | None,
    pair_errors: Mapping[tuple[str, str], float],
    documents: int | None,
    seeds: Sequence[int] | None,
) -> _Paired:
    """Return the arms with the baseline first, after checking that they can be paired."""
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        raise SpecError(f"arms need different names; got {names}")
    if baseline not in names:
        raise SpecError(f"no arm is called {baseline!r}; got {names}")
    if len(arms) < 2:
        raise SpecError(f"a verdict needs an arm beside the baseline {baseline!r}; got none")
    if documents is not None and documents < 2:
        raise SpecError(f"an error over documents needs at least 2 of them; got {documents}")
    ordered = sorted(arms, key=lambda arm: arm.name != baseline)
    _require_every_seed(ordered, seeds)
    errors, control_errors = _errors(ordered, arm_errors, pair_errors)
    return _Paired(
        arms=tuple(ordered),
        values=np.array([[arm.log_perplexities for arm in ordered]], dtype=np.float64),
        errors=np.array([errors]),
        control_errors=control_errors,
        error_degrees=math.inf if documents is None else documents - 1.0,
    )


def _require_every_seed(arms: Sequence[Arm], seeds: Sequence[int] | None) -> None:
    count = len(arms[0].log_perplexities) if seeds is None else len(seeds)
    for arm in arms:
        if len(arm.log_perplexities) != count:
            raise SpecError(
                f"every arm needs one value for each of the {count} seeds, in their order; "
                f"{arm.name!r} has {len(arm.log_perplexities)}: run the missing ones"
            )
        for index, value in enumerate(arm.log_perplexities):
            if not math.isfinite(value):
                seed = f"seed number {index + 1}" if seeds is None else f"seed {seeds[index]}"
                raise SpecError(
                    f"a log perplexity must be finite; arm {arm.name!r} has {value} at {seed}: "
                    "leave the arm out or run it again"
                )


def _errors(
    arms: Sequence[Arm],
    by_arm: Mapping[str, float] | None,
    by_pair: Mapping[tuple[str, str], float],
) -> tuple[list[float], dict[tuple[str, str], float]]:
    """Return the standard errors of the arms, 0 for the baseline, and of (candidate, control).

    Where that of a pair is not given, the sum of both arms' errors against the baseline stands for
    it: the triangle inequality makes that no smaller than the truth.
    """
    names = [arm.name for arm in arms[1:]]
    by_arm = dict.fromkeys(names, 0.0) if by_arm is None else by_arm
    if set(by_arm) - {arms[0].name} != set(names):
        raise SpecError(
            f"evaluation errors must be given for every arm or for none; arms are {names}, "
            f"errors are given for {list(by_arm)}"
        )
    candidates = [arm.name for arm in arms if arm.role == "candidate"]
    controls = [arm.name for arm in arms if arm.role == "control"]
    own = {arms[0].name: 0.0} | {name: float(by_arm[name]) for name in names}
    pairs = {(one, other): own[one] + own[other] for one in candidates for other in controls}
    for pair in by_pair.keys() - pairs.keys():
        raise SpecError(f"a comparison is one of (candidate, control) {list(pairs)}; got {pair}")
    given = dict(by_arm) | {" against ".join(pair): error for pair, error in by_pair.items()}
    for name, error in given.items():
        if not 0 <= error < math.inf:
            raise SpecError(
                f"an evaluation error must be finite and not negative; {name} has {error}"
            )
    return list(own.values()), pairs | dict(by_pair)


# Candidates against controls


def _with_controls(study: _Paired, noise: Pool | None, confidence: float) -> tuple[Comparison, ...]:
    """Return every candidate against every control; without noise (one seed), no intervals.

    Each interval holds for all candidates at once (Bonferroni). It needs no adjustment over
    controls: a candidate is only said to stand above its controls when it beats them all.
    """
    found = []
    candidates = study.indices("candidate")
    for control in study.indices("control") if candidates else ():
        gains = _gains(study, noise, control, candidates, confidence)
        for index, gain in zip(candidates, gains, strict=True):
            arm, other = study.arms[index], study.arms[control]
            beaten = gain.interval is not None and gain.interval[0] > 0
            unknown = arm.parameters is None or other.parameters is None
            comparison = Comparison(
                arm=arm.name,
                against=other.name,
                gain=gain,
                beaten=beaten,
                no_larger=unknown or (other.parameters or 0) <= (arm.parameters or 0),
                sentence=comparison_sentence(arm.name, other.name, gain, beaten=beaten),
            )
            found.append(comparison)
    return tuple(found)


def _gains(
    study: _Paired, noise: Pool | None, control: int, candidates: list[int], confidence: float
) -> list[Estimate]:
    """Return the gains of the candidates over one control, in per cent."""
    if noise is None:
        effects = (study.values[0, [control]] - study.values[0, candidates]).mean(-1)
        return [gain_estimate(float(effect), seeds=1) for effect in effects]
    names = [(study.arms[one].name, study.arms[control].name) for one in candidates]
    errors = np.array([[study.control_errors[pair] for pair in names]])
    found = paired_differences(
        study.values, noise, control, candidates, errors, study.error_degrees, confidence
    )
    reach = found.reach(np.full(found.effects.shape, found.unadjusted / len(candidates)))
    rows = np.stack([found.effects[0], reach[0], found.standard_error[0]], axis=-1)
    return [
        gain_estimate(effect, (effect - far, effect + far), error, seeds=study.seeds)
        for effect, far, error in rows.tolist()
    ]


# Arms against the baseline


def _judged(study: _Paired, noise: Pool | None, spec: VerdictSpec) -> list[Verdict]:
    """Return the verdicts in the order of the arms; one seed has no intervals, hence no labels.

    On their own, outside the family, stand references, which are not judged, and exact copies of
    the baseline, which cannot be judged wrongly.
    """
    others = range(1, len(study.arms))
    if noise is None:
        effects = (study.values[0, 0, 0] - study.values[0, :, 0]).tolist()
        gains = [gain_estimate(effect, seeds=1) for effect in effects]
        return [_verdict(study, index, gains[index], spec, ONE_SEED) for index in others]
    baseline = study.arms[0].log_perplexities
    family = [
        index
        for index, arm in enumerate(study.arms)
        if arm.role != "reference" and arm.log_perplexities != baseline
    ]
    alone = Pool(members=np.zeros_like(noise.members), mean_square=np.zeros(1))
    groups = [(noise, family)] if family else []
    groups += [(alone, [index]) for index in others if index not in family]
    found: dict[int, Verdict] = {}
    for shared, group in groups:
        errors, degrees = study.errors[:, group], study.error_degrees
        differences = paired_differences(
            study.values, shared, 0, group, errors, degrees, spec.confidence
        )
        ends = simultaneous_ends(differences, spec)
        for position, index in enumerate(group):
            found[index] = _member_verdict(study, index, differences, ends, position, spec)
    return [found[index] for index in sorted(found)]


def _member_verdict(
    study: _Paired, index: int, family: Differences, ends: Ends, position: int, spec: VerdictSpec
) -> Verdict:
    """Return the verdict on the arm that has the given position in its family."""
    low, high = float(ends.low[0, position]), float(ends.high[0, position])
    effect = float(family.effects[0, position])
    if effect != 0.0 and high - low < NEGLIGIBLE:
        return _verdict(study, index, gain_estimate(effect, seeds=study.seeds), spec, NO_SPREAD)
    error = float(family.standard_error[0, position])
    gain = gain_estimate(effect, (low, high), error, seeds=study.seeds)
    verdict = _verdict(study, index, gain, spec)
    if verdict.label != "inconclusive":
        return verdict
    needed = further_seeds(family, ends, position, spec)
    noisy = family.errors[0, position] > 0
    reason = None if needed else TOO_FEW_DOCUMENTS if noisy else ON_A_THRESHOLD
    return msgspec.structs.replace(verdict, seeds_needed=needed, reason=reason)


def _verdict(
    study: _Paired, index: int, gain: Estimate, spec: VerdictSpec, reason: str | None = None
) -> Verdict:
    arm = study.arms[index]
    label = None if arm.role == "reference" else "inconclusive"
    if label is not None and gain.interval is not None:
        low, high = map(np.array, gain.interval)
        label = str(labels(low, high, spec))
    effects = (study.values[0, 0] - study.values[0, index]).tolist()
    return Verdict(
        arm=arm.name,
        role=arm.role,
        gain=gain,
        label=label,
        meaning="reference" if label is None else MEANINGS[label],
        point_scenario=point_scenario(effects, spec),
        reason=reason,
    )


def _worded(
    verdicts: Sequence[Verdict], baseline: str, comparisons: Sequence[Comparison]
) -> tuple[Verdict, ...]:
    """Return the verdicts in words, with the controls that explain their gains."""
    gains = {verdict.arm: verdict.gain for verdict in verdicts}
    worded = []
    for verdict in verdicts:
        if verdict.role == "candidate" and verdict.label in HELPS:
            own = [one for one in comparisons if one.arm == verdict.arm]
            explaining = [one.against for one in own if one.no_larger and not one.beaten]
            verdict = msgspec.structs.replace(verdict, explained_by=explaining)
        sentence = arm_sentence(verdict, baseline, comparisons, gains)
        worded.append(msgspec.structs.replace(verdict, sentence=sentence))
    return tuple(worded)
