"""The plan of a study: what it compares and how it judges, registered before the first run."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from hylorada.errors import SpecError
from hylorada.files import read_record, write_record
from hylorada.identity import settings_hash
from hylorada.names import require_one_of
from hylorada.records import Record
from hylorada.records.studies import RateGrids, RegisteredPlan, Thresholds
from hylorada.specs.adapters import AdapterSection
from hylorada.specs.evaluation import CertificateSpec, EvaluationSpec
from hylorada.specs.run import DataSection, ModelSection, OptimisationSpec, RunConfig, TrainingSpec
from hylorada.specs.study import StudyOptions
from hylorada.verdicts import VerdictSpec
from hylorada.verdicts.judge import ROLES

TUNABLE = ("learning_rate", "landmark_multiplier", "position_bias_multiplier")
LOGGED_POINTS = 25
CURVE_BUCKETS = 16
PLAN = "plan.json"
LONGEST_SHOWN = 80
USUAL = VerdictSpec()


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
    config: RunConfig
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


def arm(
    options: StudyOptions,
    name: str,
    role: str,
    description: str,
    adapter: AdapterSection,
    *,
    length: int | None = None,
    baseline: str | None = None,
    tuned: str = "learning_rate",
    repetition: int = 0,
    certificate: CertificateSpec | None = None,
) -> ArmPlan:
    """Return an arm of a study; `length` keeps the tokens of a step, an epoch and a test."""
    usual, length = options.length, length or options.length
    batch = max(1, options.batch_size * usual // length)
    sequences = max(1, options.num_train * usual // length)
    steps = math.ceil(options.epochs * math.ceil(sequences / batch))
    rate = options.learning_rate
    config = RunConfig(
        model=ModelSection(source=options.model),
        data=DataSection(
            source=options.data,
            length=length,
            num_train=sequences,
            num_val=max(1, options.num_val * usual // length),
            lines=options.lines,
            replace=options.replace,
        ),
        adapter=adapter,
        training=TrainingSpec(
            epochs=options.epochs,
            batch_size=batch,
            evaluation_batch_size=batch,
            precision=options.precision,
            log_every=max(1, steps // LOGGED_POINTS),
            progress=False,
            cpu=options.cpu,
            deterministic=True,
        ),
        optimisation=OptimisationSpec() if rate is None else OptimisationSpec(learning_rate=rate),
    )
    return ArmPlan(
        name=name,
        role=role,
        description=description,
        config=config,
        evaluation=EvaluationSpec(
            max_length=length,
            max_tokens=options.num_test * usual,
            position_buckets=min(CURVE_BUCKETS, length - 1),
            evidence_items=options.evidence_items,
            progress=False,
        ),
        baseline=baseline,
        tuned=tuned,
        repetition=repetition,
        certificate=certificate,
    )


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
class Plan:
    """A study as it was meant before the first run."""

    study: str
    title: str
    arms: tuple[ArmPlan, ...]
    baseline: str
    seeds: tuple[int, ...]
    metric: str = "ppl"
    thresholds: VerdictSpec = USUAL
    tuning: RateGrids | None = None
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
        tuning = self.tuning
        if tuning is not None and tuning.seed in self.seeds:  # or a result would be selected
            raise SpecError(f"the tuning seed must be none of the study's seeds; got {tuning.seed}")
        if tuning is not None and (len(tuning.base) != len(tuning.component) or not tuning.base):
            raise SpecError(
                "both grids must have the same number of rates, so that every arm has the same "
                f"budget; got {len(tuning.base)} and {len(tuning.component)}"
            )

    def arm(self, name: str) -> ArmPlan:
        """Return the arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def settings(self) -> dict[str, Any]:
        """Return the plan in plain types, without what changes no number."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        for planned, described in zip(self.arms, plain["arms"], strict=True):
            described["config"] = planned.config.deciding_settings()
            del described["config"]["training"]["seed"]
            del described["evaluation"]["progress"]
        return plain


# Registration: a plan may change after it was registered, but not silently


class RegisteredEntry(Record, kw_only=True):
    """A plan as it was registered."""

    hash: str
    registered: str
    plan: dict[str, Any]


class Plans(Record, kw_only=True):
    """Every plan that was registered for a study, the newest apart."""

    schema: int = 1
    current: RegisteredEntry
    history: list[RegisteredEntry] = []


def register(plan: Plan, folder: Path) -> RegisteredPlan:
    """Write the plan into the study's folder; an earlier, different one is kept beside it."""
    path, settings = folder / PLAN, plan.settings()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = RegisteredEntry(hash=settings_hash(settings), registered=now, plan=settings)
    plans = Plans(current=entry)
    if path.is_file():
        plans = read_record(path, Plans, "choose another folder with --out")
        if plans.current.hash != entry.hash:
            plans = Plans(current=entry, history=[*plans.history, plans.current])
    if plans.current is entry:
        write_record(path, plans)
    changes = [
        f"{later.registered}: plan {earlier.hash} became {later.hash}: "
        + "; ".join(_differences(earlier.plan, later.plan))
        for earlier, later in pairwise([*plans.history, plans.current])
    ]
    return RegisteredPlan(
        hash=plans.current.hash,
        registered=plans.current.registered,
        changes=changes,
        baseline=plan.baseline,
        metric=plan.metric,
        seeds=list(plan.seeds),
        thresholds=Thresholds(**msgspec.structs.asdict(plan.thresholds)),
        tuning=plan.tuning,
    )


def _differences(earlier: dict[str, Any], later: dict[str, Any]) -> Iterator[str]:
    """Yield what differs between two plans, arms by their names."""
    old, new = (
        {name: value for name, value in plan.items() if name != "arms"}
        | {f"arm {arm['name']}": arm for arm in plan["arms"]}
        for plan in (earlier, later)
    )
    for name in sorted(old.keys() ^ new.keys()):
        yield f"{name} was {'removed' if name in old else 'added'}"
    for name in sorted(old.keys() & new.keys()):
        before, after = dict(_leaves(old[name], (name,))), dict(_leaves(new[name], (name,)))
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                yield f"{'.'.join(key)} from {_short(before.get(key))} to {_short(after.get(key))}"


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"
