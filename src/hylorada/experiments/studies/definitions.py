"""The studies that ship: which arms each compares. A new one is one entry of `STUDIES`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hylorada.experiments.studies.ablation import ablation_parts
from hylorada.experiments.studies.allocation import allocation_parts
from hylorada.experiments.studies.allocation_results import conclude_allocation
from hylorada.experiments.studies.components import single_components
from hylorada.experiments.studies.length import length_parts
from hylorada.experiments.studies.options import StudyOptions
from hylorada.experiments.studies.plan import Parts, Plan, TuningPlan
from hylorada.experiments.studies.records import ArmRecord
from hylorada.names import known

# From the entry of a study, its runs and its ledger to what replaces or joins the entry.
Conclude = Callable[[dict[str, Any], Mapping[str, ArmRecord], str], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A study by name: its question, and what it compares under given options.

    Attributes:
        conclude: What the study adds to its file beyond what every study says.
    """

    title: str
    parts: Callable[[StudyOptions], Parts]
    conclude: Conclude | None = None


def plan_of(study: str, options: StudyOptions) -> Plan:
    """Return the plan of a study, every part of it checked."""
    definition = STUDIES[known(study, STUDIES, "study")]
    parts = definition.parts(options)
    tuning = None
    if options.tune:
        seed = next(
            seed for seed in range(7, 7 + len(options.seeds) + 1) if seed not in options.seeds
        )
        same = {} if parts.rates is None else dict.fromkeys(("base", "component"), parts.rates)
        tuning = TuningPlan(seed=seed, **same)
    return Plan(
        study=study,
        title=definition.title,
        arms=tuple(parts.arms),
        baseline=parts.baseline,
        seeds=options.seeds,
        tuning=tuning,
        contrasts=parts.contrasts,
    )


STUDIES: dict[str, Definition] = {
    "landmarks": Definition(
        title="Do landmarks earn their parameters?",
        parts=single_components(
            "original",
            "per_layer",
            "position_adaptive",
            "shared",
            "bias",
            "low_rank",
            "static",
            "rank+1",
            "norm_gain",
        ),
    ),
    "bucketing": Definition(
        title="Is it worth learning where position buckets end?",
        parts=single_components("position_adaptive", "uniform", "learnable", "low_rank", "bias"),
    ),
    "ablation": Definition(title="What does each component add?", parts=ablation_parts),
    "length": Definition(title="Does the gain last in longer contexts?", parts=length_parts),
    "allocation": Definition(
        title="How should coordinates be divided between A and B?",
        parts=allocation_parts,
        conclude=conclude_allocation,
    ),
}
