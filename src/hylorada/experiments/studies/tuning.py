"""The same budget for every arm: a grid of learning rates, on text that is not the test text.

First the arms that have only the base rate choose it. Then every arm that adds a component with a
rate of its own chooses that one, at the base rate that its baseline has chosen.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hylorada.experiments.engines.tasks import Outcome
from hylorada.experiments.job import Job
from hylorada.experiments.ledger import Ledger
from hylorada.experiments.run_folder import RESULT
from hylorada.experiments.studies.plan import ArmPlan, Plan
from hylorada.training.optimisation import OptimisationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One rate of an arm's grid: what was set, the job that tries it, and its loss in nats."""

    arm: str
    multiple: float
    job: Job
    loss: float | None = None

    @property
    def label(self) -> str:
        """Return what people call it."""
        return f"{self.arm} ×{self.multiple:g}"


def tuned_arms(plan: Plan, *, base: bool) -> list[ArmPlan]:
    """Return the arms that search the base rate, or those that search a component's."""
    searching = [arm for arm in plan.arms if not arm.is_frozen and arm.repetition == 0]
    return [arm for arm in searching if (arm.tuned == "learning_rate") == base]


def grid(plan: Plan, arm: ArmPlan, rates: Mapping[str, float]) -> list[Point]:
    """Return the points an arm tries; `rates` holds the base rates chosen so far."""
    assert plan.tuning is not None
    config, start = arm.config, arm.config.optimisation
    tried: dict[float, dict[str, Any]]
    if arm.tuned == "learning_rate":
        tried = {m: {"learning_rate": start.learning_rate * m} for m in plan.tuning.base}
    else:
        rate = rates.get(arm.baseline or arm.name, start.learning_rate)
        tried = {m: {"learning_rate": rate, arm.tuned: m} for m in plan.tuning.component}
    training = replace(config.training, seed=plan.tuning.seed)
    return [
        Point(
            arm=arm.name,
            multiple=multiple,
            job=Job(
                config=replace(config, training=training, optimisation=replace(start, **changes))
            ),
        )
        for multiple, changes in tried.items()
    ]


def with_rates(plan: Plan, chosen: Mapping[str, OptimisationSpec]) -> Plan:
    """Return the plan with the rates that tuning chose; a repetition has those of its baseline."""
    arms = []
    for arm in plan.arms:
        found = chosen.get((arm.baseline or arm.name) if arm.repetition else arm.name)
        if found is None:
            arms.append(arm)
        else:
            arms.append(replace(arm, config=replace(arm.config, optimisation=found)))
    return replace(plan, arms=tuple(arms))


def with_losses(
    points: Sequence[Point], outcomes: Sequence[Outcome], ledger: Ledger
) -> list[Point]:
    """Return the points with their validation losses; a training that diverged has none."""
    return [
        replace(point, loss=None if outcome.state == "failed" else _loss(outcome, ledger))
        for point, outcome in zip(points, outcomes, strict=True)
    ]


def best(points: Sequence[Point]) -> Point | None:
    """Return the point of the lowest loss, or None if none has one."""
    found = [point for point in points if point.loss is not None and math.isfinite(point.loss)]
    return min(found, key=lambda point: point.loss or 0.0, default=None)


def curve(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the arm's curve for a report: rate, loss, and which one was chosen."""
    chosen = best(points)
    return [
        {
            "rate": rate_of(point),
            "multiple": point.multiple,
            "loss": point.loss,
            "chosen": point is chosen,
        }
        for point in points
    ]


def rate_of(point: Point) -> float:
    """Return the highest learning rate of what the point tried, per step."""
    optimisation = point.job.config.optimisation
    if point.job.config.adapter.method == "sublora":
        return optimisation.learning_rate * optimisation.subspace_multiplier
    component = optimisation.landmark_multiplier or 1.0
    if optimisation.position_bias_multiplier != 1.0:
        component = optimisation.position_bias_multiplier
    return optimisation.learning_rate * component


def _loss(outcome: Outcome, ledger: Ledger) -> float | None:
    text = ledger.text(outcome.task.address, RESULT)
    assert text is not None, "a finished job has its result"
    loss: float | None = json.loads(text)["valid_loss"]
    return loss
