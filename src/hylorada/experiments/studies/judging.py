"""From the runs of a study to verdicts: each arm against its baseline, and planned contrasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hylorada.experiments.studies.plan import Contrast, Plan
from hylorada.experiments.studies.records import ArmRecord, paired_error
from hylorada.verdicts import Arm, Judgement, Verdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a study says: a verdict on every judged arm, comparisons, and sentences."""

    verdicts: Mapping[str, Verdict]
    comparisons: tuple[dict[str, Any], ...]
    sentences: tuple[str, ...]


def findings(plan: Plan, records: Mapping[str, ArmRecord]) -> Findings:
    """Return the verdicts on all arms, each judged beside those that share its baseline.

    All verdicts together err with the plan's probability, and so do all contrasts of a question.
    """
    groups: dict[str, list[str]] = {}
    for arm in plan.arms:
        if arm.baseline is not None:
            groups.setdefault(arm.baseline, []).append(arm.name)
    judged = sum(map(len, groups.values()))
    judgements = {
        base: _judged(plan, records[base], [records[name] for name in names], len(names) / judged)
        for base, names in groups.items()
    }
    verdicts = {v.arm: v for judgement in judgements.values() for v in judgement.verdicts}
    compared = [c.as_dict() for judgement in judgements.values() for c in judgement.comparisons]
    return Findings(
        verdicts=verdicts,
        comparisons=(*compared, *(contrast(plan, records, c) for c in plan.contrasts)),
        sentences=tuple(_sentences(judgements)),
    )


def contrast(plan: Plan, records: Mapping[str, ArmRecord], wanted: Contrast) -> dict[str, Any]:
    """Return a planned comparison of the mean of some arms with that of others."""
    arms = [records[name] for name in wanted.arms]
    against = [records[name] for name in wanted.against]
    together = sum(other.question == wanted.question for other in plan.contrasts)
    verdict = judge(
        [
            Arm(name=wanted.against_name, role="baseline", log_perplexities=_mean(against)),
            Arm(name=wanted.name, role="candidate", log_perplexities=_mean(arms)),
        ],
        baseline=wanted.against_name,
        evaluation_errors={wanted.name: paired_error(arms, against)},
        documents=int(against[0].cluster_tokens.size),
        seeds=plan.seeds,
        spec=plan.thresholds.part(1 / together),
    ).verdict(wanted.name)
    return {
        "arm": wanted.name,
        "against": wanted.against_name,
        "gain": verdict.gain.as_dict(),
        "label": verdict.label,
        "sentence": verdict.sentence,
    }


def _judged(plan: Plan, base: ArmRecord, others: Sequence[ArmRecord], share: float) -> Judgement:
    candidates = [record for record in others if record.arm.role == "candidate"]
    controls = [record for record in others if record.arm.role == "control"]
    return judge(
        [_arm(base, "baseline"), *(_arm(record, record.arm.role) for record in others)],
        baseline=base.name,
        evaluation_errors={record.name: paired_error([record], [base]) for record in others},
        comparison_errors={
            (candidate.name, control.name): paired_error([candidate], [control])
            for candidate in candidates
            for control in controls
        },
        documents=int(base.cluster_tokens.size),
        seeds=plan.seeds,
        spec=plan.thresholds.part(share),
    )


def _arm(record: ArmRecord, role: str) -> Arm:
    return Arm(
        name=record.name,
        log_perplexities=record.log_perplexities,
        role=role,
        parameters=record.parameters,
    )


def _mean(records: Sequence[ArmRecord]) -> tuple[float, ...]:
    means = np.mean([record.log_perplexities for record in records], axis=0)
    return tuple(float(value) for value in means)


def _sentences(judgements: Mapping[str, Judgement]) -> list[str]:
    """Return the sentences of the study; each says its baseline where there are several."""
    if len(judgements) == 1:
        return list(next(iter(judgements.values())).sentences)
    return [f"Against {base}: {' '.join(found.sentences)}" for base, found in judgements.items()]
