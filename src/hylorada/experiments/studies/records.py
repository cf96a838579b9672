"""What runs of a study came to: read from the ledger, averaged over seeds, compared in pairs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from hylorada.errors import SpecError
from hylorada.evaluation.statistics import Floats, ratio_estimate
from hylorada.experiments.job import Address
from hylorada.experiments.ledger import Ledger
from hylorada.experiments.run_folder import METRICS
from hylorada.experiments.studies.plan import ArmPlan
from hylorada.subspace.trace import TRACE

REACH = float(ndtri(0.975))


@dataclass(frozen=True)
class RunRecord:
    """One finished job: its run's result, what was measured, and what was logged.

    Attributes:
        certified: The record of its compressed file and certificate, if it has them.
        trace: Gates and gradient norms of a subspace over the training.
    """

    seed: int
    address: Address
    result: dict[str, Any]
    evaluation: dict[str, Any]
    logged: tuple[dict[str, Any], ...]
    certified: dict[str, Any] | None = None
    trace: tuple[dict[str, Any], ...] = ()

    @property
    def log_perplexity(self) -> float:
        """Return the mean test loss, in nats per token."""
        return float(self.evaluation["metrics"]["ppl"]["loss"]["value"])

    @property
    def training_curve(self) -> list[list[float]]:
        """Return steps and training losses in nats."""
        return [[entry["step"], entry["loss"]] for entry in self.logged if "loss" in entry]


@dataclass(frozen=True)
class ArmRecord:
    """The runs of one arm, in the order of the seeds."""

    arm: ArmPlan
    runs: tuple[RunRecord, ...]

    @property
    def name(self) -> str:
        """Return the arm's name."""
        return self.arm.name

    @property
    def parameters(self) -> int:
        """Return how many numbers were trained."""
        return int(self.runs[0].result["trainable_parameters"])

    @property
    def log_perplexities(self) -> tuple[float, ...]:
        """Return the mean test loss of each seed, in nats per token."""
        return tuple(run.log_perplexity for run in self.runs)

    @cached_property
    def cluster_nats(self) -> Floats:
        """Return the summed loss of each document (or block), averaged over seeds."""
        return np.mean([run.evaluation["clusters"]["nats"] for run in self.runs], axis=0)

    @property
    def cluster_tokens(self) -> Floats:
        """Return the scored tokens of each document (or block)."""
        return np.array(self.runs[0].evaluation["clusters"]["tokens"], dtype=np.float64)

    def perplexity(self) -> dict[str, Any]:
        """Return the perplexity of each seed and their mean, with the noise of text and seeds."""
        summary = over_seeds([run.evaluation["metrics"]["ppl"]["loss"] for run in self.runs])
        interval = summary["interval"]
        return {
            "by_seed": [math.exp(value) for value in self.log_perplexities],
            "value": math.exp(summary["value"]),
            "interval": None if interval is None else [math.exp(end) for end in interval],
        }

    def curve(self, metric: str, *places: str) -> list[dict[str, Any]] | None:
        """Return a measured curve in nats per token, averaged over seeds, or None without one."""
        found = [run.evaluation["metrics"].get(metric, {}).get("curve") for run in self.runs]
        curves = [curve for curve in found if curve]
        if len(curves) < len(self.runs):
            return None
        return [
            {place: points[0][place] for place in places} | over_seeds(points)
            for points in zip(*curves, strict=True)
        ]


def read_run(ledger: Ledger, address: Address, seed: int) -> RunRecord:
    """Return a finished job from the ledger."""
    result, evaluation, *certified = (ledger.text(address, name) for name in address.files)
    assert result is not None, "a finished job has its result"
    assert evaluation is not None, "a finished job has its evaluation"
    return RunRecord(
        seed,
        address,
        json.loads(result),
        json.loads(evaluation),
        _lines(ledger, address, METRICS),
        certified=json.loads(certified[0]) if certified and certified[0] else None,
        trace=_lines(ledger, address, TRACE),
    )


def _lines(ledger: Ledger, address: Address, name: str) -> tuple[dict[str, Any], ...]:
    return tuple(map(json.loads, (ledger.text(address, name) or "").splitlines()))


def over_seeds(estimates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over seeds with a 95 % interval for the noise of the text and of the seeds.

    All seeds are measured on one text, so the text's share of the noise does not average out. The
    seeds' share is that of a t interval; of a single seed it is not known.
    """
    values = np.array([estimate["value"] for estimate in estimates], dtype=np.float64)
    errors = [estimate["standard_error"] for estimate in estimates]
    value = float(values.mean())
    if any(error is None for error in errors):
        return {"value": value, "interval": None}
    text = float(np.mean(errors))
    reach = REACH * text
    if len(values) > 1:
        seeds = math.sqrt(float(values.var(ddof=1)) / len(values))
        reach = math.hypot(reach, float(stdtrit(len(values) - 1, 0.975)) * seeds)
    return {"value": value, "interval": [value - reach, value + reach]}


def paired_error(arms: Sequence[ArmRecord], against: Sequence[ArmRecord]) -> float:
    """Return the standard error over test documents of a mean paired difference, in nats."""
    tokens = arms[0].cluster_tokens
    difference = np.mean([arm.cluster_nats for arm in arms], axis=0) - np.mean(
        [arm.cluster_nats for arm in against], axis=0
    )
    error = ratio_estimate(difference, tokens).standard_error
    if error is None:
        raise SpecError("a verdict needs at least two test documents or blocks; raise num_test")
    return error
