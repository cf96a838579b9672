"""Studies by name: each registers itself with its question, its arms and what it concludes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hylorada.records.studies import RateGrids, Study
from hylorada.registry import Registry
from hylorada.specs.study import StudyOptions
from hylorada.studies.plan import ArmPlan, Contrast, Plan
from hylorada.studies.results import ArmRuns

# Multiples of the base learning rate, for arms that add no component with a rate of its own, and
# multiples of it for the component that an arm adds: the same number of tries for every arm.
BASE_RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
COMPONENT_RATES = (0.3, 1.0, 3.0, 10.0, 30.0)
TUNING_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a study is made of.

    Attributes:
        contrasts: Comparisons beyond those with a baseline.
        rates: Multiples of the base rate that tuning tries; None for the usual grids.
    """

    arms: list[ArmPlan]
    baseline: str
    contrasts: tuple[Contrast, ...] = ()
    rates: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A study by name: its question, and what it compares under given options.

    Attributes:
        title: The question that it asks.
        conclude: From the study's record, its runs and its ledger to a record that says more.
    """

    name: str
    title: str
    parts: Callable[[StudyOptions], Parts]
    conclude: Callable[[Study, Mapping[str, ArmRuns], str], Study] | None = None

    @property
    def words(self) -> str:
        """Return the question, for lists."""
        return self.title


STUDIES: Registry[Definition] = Registry(
    "study",
    "hylorada.studies",
    "hylorada.studies.components",
    "hylorada.studies.ablation",
    "hylorada.studies.length",
    "hylorada.studies.allocation.arms",
)


def plan_of(study: str, options: StudyOptions) -> Plan:
    """Return the plan of a study, every part of it checked."""
    definition = STUDIES[study]
    parts = definition.parts(options)
    tuning = None
    if options.tune:
        seed = TUNING_SEED
        while seed in options.seeds:
            seed += 1
        tuning = RateGrids(
            base=list(parts.rates or BASE_RATES),
            component=list(parts.rates or COMPONENT_RATES),
            seed=seed,
        )
    return Plan(
        study=study,
        title=definition.title,
        arms=tuple(parts.arms),
        baseline=parts.baseline,
        seeds=options.seeds,
        tuning=tuning,
        contrasts=parts.contrasts,
    )
