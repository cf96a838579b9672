"""Learned gates as replicates: one number a run, its spread over seeds, a label; no torch."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit
from scipy.stats import rankdata

from hylorada.errors import SpecError
from hylorada.verdicts.allocation.findings import FEWEST_SEEDS, OPEN, Interval
from hylorada.verdicts.power import further_seeds_until

MOST_SEEDS = 1000
NEGLIGIBLE = 1e-12  # a spread that only rounding made


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """The gates that one run learned: γ is B's share of a layer's coordinates, layers by depth."""

    name: str
    budget: int
    seed: int
    layers: tuple[str, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        where = f"run {self.name!r} of budget {self.budget} and seed {self.seed}"
        if not self.layers or len(self.layers) != len(self.shares):
            raise SpecError(
                f"{where} must have one gate a layer; "
                f"got {len(self.layers)} layers and {len(self.shares)} gates"
            )
        if not all(math.isfinite(share) and 0 <= share <= 1 for share in self.shares):
            raise SpecError(f"a gate is a share between 0 and 1; {where} has {self.shares}")

    @property
    def stack(self) -> list[float]:
        """Return γ of the stack's layers, whose names end in a number, by depth."""
        return [share for layer, share in self._pairs() if _is_block(layer)]

    @property
    def outside(self) -> dict[str, float]:
        """Return γ of what lies outside the stack, such as the head."""
        return {layer: share for layer, share in self._pairs() if not _is_block(layer)}

    @property
    def departure(self) -> float:
        """Return the mean of γ − ½ over all groups of the run."""
        return fmean(self.shares) - 0.5

    @property
    def distance(self) -> float:
        """Return the mean of |γ − ½| over all groups of the run."""
        return fmean(abs(share - 0.5) for share in self.shares)

    @property
    def slope(self) -> float:
        """Return the least-squares change of γ from the first layer of the stack to the last."""
        depth = np.linspace(0.0, 1.0, len(self.stack))
        return float(np.polyfit(depth, self.stack, 1)[0])

    @property
    def rank_correlation(self) -> float | None:
        """Return Spearman's correlation of γ with depth; None where γ is the same everywhere."""
        if len(set(self.stack)) < 2:
            return None
        depth = np.arange(len(self.stack))
        return float(np.corrcoef(depth, rankdata(self.stack))[0, 1])

    def _pairs(self) -> list[tuple[str, float]]:
        return list(zip(self.layers, self.shares, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number of every run, by budget and seed; runs of one seed are one replicate."""

    overall: Float[np.ndarray, " seeds"]
    budgets: dict[int, Float[np.ndarray, " runs"]]

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return float(self.overall.mean())

    @property
    def fewest_seeds(self) -> int:
        """Return the number of seeds of the budget that has the fewest."""
        return min(values.size for values in self.budgets.values())

    def interval(self, level: float) -> Interval | None:
        """Return the t interval over seeds with this error probability; None without a spread."""
        return t_interval(self.overall, level)

    def label(self, smallest: float, level: float, seeds: int | None = None) -> str:
        """Return whether the mean is shown to be beyond ±`smallest`, or inside in every budget.

        Args:
            smallest: Least size worth the name.
            level: Error probability.
            seeds: As if there were so many, with the estimates and spreads as they are.
        """
        if self.fewest_seeds < FEWEST_SEEDS:
            return OPEN
        whole = t_interval(self.overall, level, seeds)
        parts = [t_interval(values, level, seeds) for values in self.budgets.values()]
        if whole is None or None in parts:
            return OPEN
        alike = len({bool(values.mean() > 0) for values in self.budgets.values()}) == 1
        if alike and (whole[0] >= smallest or whole[1] <= -smallest):
            return "supported"
        inside = all(part and -smallest <= part[0] and part[1] <= smallest for part in parts)
        return "refuted" if inside else OPEN

    def further_seeds(self, smallest: float, level: float) -> int | None:
        """Return how many more seeds would settle it if estimates stayed; None if none would."""
        return further_seeds_until(
            lambda seeds: self.label(smallest, level, seeds) != OPEN, self.overall.size, MOST_SEEDS
        )


def read_runs(gates: Sequence[dict[str, Any]]) -> list[GateRun]:
    """Return the runs of a study's learned arms, after checking them."""
    return [
        GateRun(
            name=str(run["name"]),
            budget=int(run["budget"]),
            seed=int(run["seed"]),
            layers=tuple(run["layers"]),
            shares=tuple(float(share) for share in run["gamma"]),
        )
        for run in gates
    ]


def measured(runs: Sequence[GateRun], measure: Callable[[GateRun], float]) -> Measured:
    """Return a measure of every run, averaged over the runs that share a seed."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    by_budget: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        value = measure(run)
        by_seed[run.seed].append(value)
        by_budget[run.budget][run.seed].append(value)
    return Measured(
        overall=np.array([fmean(values) for values in by_seed.values()]),
        budgets={
            budget: np.array([fmean(values) for values in seeds.values()])
            for budget, seeds in sorted(by_budget.items())
        },
    )


def t_interval(
    values: Float[np.ndarray, " replicates"], level: float, count: int | None = None
) -> Interval | None:
    """Return the t interval of a mean with this error probability; None without a spread.

    Values that are all equal have one no more than a single value: that they never differ was
    not seen often enough to be relied on.
    """
    if values.size < 2 or float(values.std()) < NEGLIGIBLE:
        return None
    count = count or values.size
    reach = float(stdtrit(count - 1, 1 - level / 2) * values.std(ddof=1)) / math.sqrt(count)
    mean = float(values.mean())
    return mean - reach, mean + reach


def consistent_layers(runs: Sequence[GateRun], side: float) -> tuple[int, int]:
    """Return how many gates lie on one side of ½ in every run, of how many that all runs have.

    The side is above where `side` is positive, below where it is negative.
    """
    departures = [
        {layer: share - 0.5 for layer, share in zip(run.layers, run.shares, strict=True)}
        for run in runs
    ]
    shared = [layer for layer in runs[0].layers if all(layer in run for run in departures)]
    same = [layer for layer in shared if all(run[layer] * side > 0 for run in departures)]
    return len(same), len(shared)


def _is_block(layer: str) -> bool:
    return re.search(r"\d$", layer) is not None
