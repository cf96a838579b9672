"""The plan of a study: what it will compare and how it will judge, fixed before it runs."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from hylorada.errors import SpecError
from hylorada.evaluation.metrics import EvaluationSpec
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.identity import deciding_settings, settings_hash
from hylorada.experiments.run_certificate import CertificateSpec
from hylorada.names import require_one_of
from hylorada.verdicts import VerdictSpec
from hylorada.verdicts.arms import ROLES

TUNABLE = ("learning_rate", "landmark_multiplier", "position_bias_multiplier")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """One configuration of a study.

    Attributes:
        config: The run; the study's seeds replace its seed.
        baseline: The arm it is compared with; None for a baseline and for a reference.
        tuned: The field of the optimisation that tuning may set: the rate of what the arm adds.
        repetition: Above zero for a repetition of the baseline in another order.
        certificate: How its runs are compressed and certified; None for neither.
    """

    name: str
    role: str
    description: str
    config: TrainConfig
    evaluation: EvaluationSpec
    baseline: str | None = None
    tuned: str = "learning_rate"
    repetition: int = 0
    certificate: CertificateSpec | None = None

    def __post_init__(self) -> None:
        """Check what the type does not say."""
        require_one_of("an arm's role", self.role, ROLES)
        require_one_of("tuned", self.tuned, TUNABLE)

    @property
    def is_frozen(self) -> bool:
        """Return whether nothing is trained, so that one seed says it all."""
        return self.config.adapter.method == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A comparison beside those with the baseline: the mean of some arms against that of others.

    Attributes:
        question: What it belongs to: the contrasts of one question err together with the plan's
            probability.
    """

    name: str
    arms: tuple[str, ...]
    against_name: str
    against: tuple[str, ...]
    question: str = ""


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
class TuningPlan:
    """The grid every arm may search, and the seed it is searched with.

    Attributes:
        base: Multiples of the base learning rate, for arms that add no component with a rate.
        component: Multiples of the base rate for the component that an arm adds.
        seed: One seed, none of the study's own, so that no result is selected.
    """

    base: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    component: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0)
    seed: int = 7

    def __post_init__(self) -> None:
        """Check that every arm has the same budget."""
        if len(self.base) != len(self.component) or not self.base:
            raise SpecError(
                "both grids must have the same number of rates, so that every arm has the same "
                f"budget; got {len(self.base)} and {len(self.component)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A study as it was meant before the first run."""

    study: str
    title: str
    arms: tuple[ArmPlan, ...]
    baseline: str
    seeds: tuple[int, ...]
    metric: str = "ppl"
    thresholds: VerdictSpec = field(default_factory=VerdictSpec)
    tuning: TuningPlan | None = None
    contrasts: tuple[Contrast, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise SpecError(f"the arms of a study must have different names; got {names}")
        for wanted in (self.baseline, *(arm.baseline for arm in self.arms if arm.baseline)):
            if wanted not in names:
                raise SpecError(f"baseline {wanted!r} must be one of the arms {', '.join(names)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SpecError(
                f"seeds must be given and differ from each other; got {list(self.seeds)}"
            )
        if self.tuning is not None and self.tuning.seed in self.seeds:
            raise SpecError(
                f"the tuning seed must be none of the study's seeds; got {self.tuning.seed}"
            )

    def arm(self, name: str) -> ArmPlan:
        """Return the arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain types, without what changes no number."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        for arm, described in zip(self.arms, plain["arms"], strict=True):
            described["config"] = deciding_settings(arm.config)
            del described["config"]["training"]["seed"]
            del described["evaluation"]["progress"]
            if described["certificate"] is None:  # a plan without certificates says nothing of them
                del described["certificate"]
        for described in plain["contrasts"]:
            if not described["question"]:
                del described["question"]
        return plain

    def hash(self) -> str:
        """Return the hash that results name the plan by."""
        return settings_hash(self.as_dict())
