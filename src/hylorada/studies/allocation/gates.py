"""Learned gates as replicates: one number a run, its spread over seeds, a label."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit
from scipy.stats import rankdata

from hylorada.errors import SpecError
from hylorada.records.evaluations import Interval

OPEN = "inconclusive"
FEWEST_SEEDS = 3  # two have one degree of freedom: an interval a dozen standard errors wide
NEGLIGIBLE = 1e-12  # a spread that only rounding made


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedGates:
    """The gates that one run learned: γ is B's share of a layer's coordinates, layers by depth."""

    name: str
    budget: int
    seed: int
    layers: list[str]
    gamma: list[float]

    def __post_init__(self) -> None:
        where = f"run {self.name!r} of budget {self.budget} and seed {self.seed}"
        if not self.layers or len(self.layers) != len(self.gamma):
            raise SpecError(
                f"{where} must have one gate a layer; "
                f"got {len(self.layers)} layers and {len(self.gamma)} gates"
            )
        if not all(math.isfinite(share) and 0 <= share <= 1 for share in self.gamma):
            raise SpecError(f"a gate is a share between 0 and 1; {where} has {self.gamma}")

    @property
    def by_layer(self) -> dict[str, float]:
        """Return γ by layer."""
        return dict(zip(self.layers, self.gamma, strict=True))

    @property
    def stack(self) -> list[float]:
        """Return γ of the stack's layers, whose names end in a number, by depth."""
        return [share for layer, share in self.by_layer.items() if layer[-1].isdigit()]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
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

    def label(self, smallest: float, level: float, seeds: int | None = None) -> str:
        """Return whether the mean is shown to be beyond ±`smallest`, or inside in every budget.

        `level` is the error probability; `seeds` asks what so many would show, with the estimates
        and spreads as they are.
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


def replicates(
    runs: Sequence[LearnedGates], measure: Callable[[LearnedGates], float]
) -> Replicates:
    """Return a measure of every run, averaged over the runs that share a seed."""
    by_seed: dict[int, list[float]] = defaultdict(list)
    by_budget: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        value = measure(run)
        by_seed[run.seed].append(value)
        by_budget[run.budget][run.seed].append(value)
    return Replicates(
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

    Values that are all equal have no more spread than a single one: too few were seen to rely on
    their never differing.
    """
    if values.size < 2 or float(values.std()) < NEGLIGIBLE:
        return None
    count = count or values.size
    reach = float(stdtrit(count - 1, 1 - level / 2) * values.std(ddof=1)) / math.sqrt(count)
    mean = float(values.mean())
    return mean - reach, mean + reach
