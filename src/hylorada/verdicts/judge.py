"""Say whether each arm of a study earns its parameters, and how sure that is; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hylorada.evaluation.statistics import Estimate
from hylorada.verdicts.arms import Arm, PairedArms, paired_arms
from hylorada.verdicts.comparisons import compare_with_controls, explaining
from hylorada.verdicts.gains import gain_estimate
from hylorada.verdicts.intervals import Ends, study_ends
from hylorada.verdicts.judgements import Comparison, Judgement, Verdict
from hylorada.verdicts.labels import HELPS, MEANINGS, VerdictSpec, labels, point_scenario
from hylorada.verdicts.power import further_seeds
from hylorada.verdicts.sentences import arm_sentence, study_sentences
from hylorada.verdicts.spread import Pool, Spread, pool, spread

ONE_SEED = "one seed has no spread, run at least three"
NO_SPREAD = "every seed gave the same difference, so its spread is unknown"
TOO_FEW_DOCUMENTS = "no number of seeds settles it, score more test documents"
ON_A_THRESHOLD = "the estimate lies on a threshold, no number of seeds is likely to settle it"
NEGLIGIBLE = 1e-9  # Nats: closer than any two trainings come unless they are the same one.


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
    study = paired_arms(
        arms,
        baseline=baseline,
        evaluation_errors=evaluation_errors,
        comparison_errors=comparison_errors,
        documents=documents,
        seeds=seeds,
    )
    noise = pool(study.values, study.informative()) if study.seeds > 1 else None
    comparisons = compare_with_controls(study, noise, confidence=spec.confidence)
    found = _single_seed(study, spec) if noise is None else _judged(study, noise, spec)
    verdicts = _worded(found, baseline, comparisons)
    return Judgement(
        baseline=baseline,
        seeds=study.seeds,
        verdicts=verdicts,
        comparisons=comparisons,
        sentences=study_sentences(verdicts, comparisons, spec),
        unpooled=() if noise is None else _unpooled(study, noise),
    )


def _single_seed(study: PairedArms, spec: VerdictSpec) -> list[Verdict]:
    """Return verdicts without intervals, hence without labels."""
    return [
        _verdict(
            study,
            index,
            gain_estimate(study.effects(index)[0], None, None, seeds=1),
            spec,
            reason=ONE_SEED,
        )
        for index in range(1, len(study.arms))
    ]


def _judged(study: PairedArms, noise: Pool, spec: VerdictSpec) -> list[Verdict]:
    """Return the verdicts in the order of the arms.

    On their own, outside the family, stand references, which are not judged, and exact copies of
    the baseline, which cannot be judged wrongly.
    """
    baseline = study.arms[0].log_perplexities
    family = [
        index
        for index, arm in enumerate(study.arms)
        if arm.role != "reference" and arm.log_perplexities != baseline
    ]
    alone = Pool(members=np.zeros_like(noise.members), mean_square=np.zeros(1))
    singles = [(alone, [index]) for index in range(1, len(study.arms)) if index not in family]
    found: dict[int, Verdict] = {}
    for shared, group in [(noise, family), *singles] if family else singles:
        found |= _family_verdicts(study, shared, group, spec)
    return [found[index] for index in sorted(found)]


def _family_verdicts(
    study: PairedArms, noise: Pool, group: list[int], spec: VerdictSpec
) -> dict[int, Verdict]:
    """Return the verdicts on arms that are judged together."""
    differences = spread(
        study.values,
        noise,
        first=0,
        others=group,
        errors=study.errors[:, group],
        error_degrees=study.error_degrees,
        confidence=spec.confidence,
    )
    ends = study_ends(differences, spec)
    return {
        index: _member_verdict(study, index, differences, ends, position, spec)
        for position, index in enumerate(group)
    }


def _member_verdict(
    study: PairedArms, index: int, family: Spread, ends: Ends, position: int, spec: VerdictSpec
) -> Verdict:
    """Return the verdict on the arm that has the given position in its family."""
    low, high = float(ends.low[0, position]), float(ends.high[0, position])
    effect = float(family.effects[0, position])
    if effect != 0.0 and high - low < NEGLIGIBLE:
        gain = gain_estimate(effect, None, None, seeds=study.seeds)
        return _verdict(study, index, gain, spec, reason=NO_SPREAD)
    error = float(family.standard_error[0, position])
    gain = gain_estimate(effect, (low, high), error, seeds=study.seeds)
    if _label(study.arms[index], gain, spec) != "inconclusive":
        return _verdict(study, index, gain, spec)
    needed = further_seeds(family, ends, position, spec)
    noisy = family.errors[0, position] > 0
    reason = None if needed else TOO_FEW_DOCUMENTS if noisy else ON_A_THRESHOLD
    return _verdict(study, index, gain, spec, needed=needed, reason=reason)


def _verdict(
    study: PairedArms,
    index: int,
    gain: Estimate,
    spec: VerdictSpec,
    *,
    needed: int | None = None,
    reason: str | None = None,
) -> Verdict:
    arm = study.arms[index]
    label = _label(arm, gain, spec)
    return Verdict(
        arm=arm.name,
        role=arm.role,
        gain=gain,
        label=label,
        meaning="reference" if label is None else MEANINGS[label],
        seeds_needed=needed,
        explained_by=(),
        point_scenario=point_scenario(study.effects(index), spec),
        reason=reason,
        sentence="",
    )


def _label(arm: Arm, gain: Estimate, spec: VerdictSpec) -> str | None:
    if arm.role == "reference":
        return None
    if gain.interval is None:
        return "inconclusive"
    low, high = map(np.array, gain.interval)
    return str(labels(low, high, spec))


def _worded(
    verdicts: Sequence[Verdict], baseline: str, comparisons: Sequence[Comparison]
) -> tuple[Verdict, ...]:
    """Return the verdicts with the controls that explain their gains, in words."""
    explained = [
        replace(verdict, explained_by=explaining(verdict.arm, comparisons))
        if verdict.role == "candidate" and verdict.label in HELPS
        else verdict
        for verdict in verdicts
    ]
    gains = {verdict.arm: verdict.gain for verdict in explained}
    return tuple(
        replace(verdict, sentence=arm_sentence(verdict, baseline, comparisons, gains))
        for verdict in explained
    )


def _unpooled(study: PairedArms, noise: Pool) -> tuple[str, ...]:
    return tuple(
        arm.name
        for arm, inside in zip(study.arms, noise.members[0].tolist(), strict=True)
        if not inside and arm.role != "reference"
    )
