"""An allocation study as it leaves a comparison behind: 12 arms and a repetition, three seeds."""

import math
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from hylorada.records.evaluations import Estimate, Interval
from hylorada.records.runs import RunCost
from hylorada.records.studies import (
    Allocation,
    Arm,
    BitsRisk,
    BoundPart,
    BoundParts,
    Check,
    Comparison,
    FactorGradients,
    FiguresData,
    NamedCurve,
    NamedTable,
    Provenance,
    RegisteredPlan,
    RunName,
    SeedMean,
    Setting,
    Study,
)
from hylorada.studies.allocation import LearnedGates, hypotheses

SEEDS = (42, 123, 999)
BUDGETS = (1000, 2000)
LAYERS = [*(f"layer {index}" for index in range(6)), "head"]
STEPS = [1, *range(10, 201, 10)]
# Of every division: mode, B's share, bits per coordinate and risk in bits per token at d = 1000.
DIVISIONS: dict[str, tuple[str, float | None, float, float]] = {
    "equal": ("fixed", 0.5, 3.42, 8.214),
    "uniform": ("uniform", None, 3.21, 8.131),
    "B-heavy": ("fixed", 0.8, 3.35, 8.146),
    "A-heavy": ("fixed", 0.2, 3.58, 8.402),
    "learned": ("learned", None, 3.61, 8.163),
    "size-neutral": ("fixed", 0.78, 3.34, 8.150),
}
REPEATED = "A/A"
TOKENS = 12_412  # of the certified documents, so that bits become bits per token


def allocation_study(**changes: Any) -> Study:
    """Return the study; its statements are those that its own gates and gains give."""
    arms = [_arm(name, budget) for budget in BUDGETS for name in DIVISIONS]
    arms.append(_arm("equal", BUDGETS[0], repeated=True))
    comparisons = [_contrast(arms, name) for name in ("B-heavy", "A-heavy")]
    gates = [
        LearnedGates(name=arm.name, budget=found.budget, seed=seed, layers=LAYERS, gamma=gamma)
        for arm, found in _learned(arms)
        for seed, gamma in zip(SEEDS, found.gamma or [], strict=True)
    ]
    statements = hypotheses(comparisons, gates)
    study = Study(
        study="allocation",
        title="Where should the coordinates go?",
        command="hylorada compare allocation --budgets 1000 2000 --seeds 42 123 999",
        sentences=[f"{one.name} is {one.label}: {one.sentence}" for one in statements],
        plan=RegisteredPlan(
            hash="5e0a4bb1c77f4d1e",
            registered="2026-01-05T09:30:00+00:00",
            baseline="equal d=1000",
            seeds=list(SEEDS),
        ),
        setting=Setting(model="random:gpt2-mini", length=256, test_tokens=51_200),
        arms=arms,
        comparisons=comparisons,
        statements=statements,
        checks=[Check(name="A/A", passed=True, detail="inconclusive: 0.1 % [-0.9, 1.1]")],
        provenance=Provenance(engine="local", runs=39, failed=0),
        figures_data=_figures([arm for arm in arms if arm.name != REPEATED]),
    )
    return msgspec.structs.replace(study, **changes)


def allocation_of(**changes: Any) -> Allocation:
    """Return how an arm divides 1000 coordinates, with these fields changed."""
    draws = np.random.default_rng(0)
    return msgspec.structs.replace(
        _allocation("fixed", 0.5, 1000, 3.5, [8.1, 8.2, 8.3], draws), **changes
    )


def _arm(division: str, budget: int, *, repeated: bool = False) -> Arm:
    mode, ratio, width, risk = DIVISIONS[division]
    name = REPEATED if repeated else f"{division} d={budget}"
    draws = np.random.default_rng([*DIVISIONS].index(division) + budget + repeated)
    risk -= 0.17 * math.log2(budget / 1000)
    risks = [risk + 0.012 * seed + float(draws.normal(0, 0.004)) for seed in range(3)]
    first = division == "equal" and budget == BUDGETS[0] and not repeated
    role = "baseline" if first else "self_check" if repeated else "candidate"
    if division == "size-neutral" or (division == "equal" and not first and not repeated):
        role = "reference"
    gain = (
        None if division == "equal" and not repeated else 100 * (1 - 2 ** (risk - _equal(budget)))
    )
    return Arm(
        name=name,
        role=role,
        baseline=None if gain is None else f"equal d={budget}",
        description=f"d = {budget}: {mode}" + (f", B's share {ratio}" if ratio else ""),
        trainable_parameters=budget + (len(LAYERS) if mode == "learned" else 0),
        perplexity=_mean([2 ** (one + 0.03) for one in risks]),
        gain=None if gain is None else _gain(gain, 1.3),
        label=None if role in ("baseline", "reference") else _label(gain or 0.0),
        sentence=None if gain is None else f"{name}: {gain:.2f} % lower than equal's.",
        runs=[RunName(seed=seed, id=f"{seed:016x}") for seed in SEEDS],
        cost=RunCost(train_seconds=41.0, adapter_bytes=4 * budget),
        training_curve={
            str(seed): [
                (step, fmean(risks) * math.log(2) + 3 * math.exp(-step / 40)) for step in STEPS
            ]
            for seed in SEEDS
        },
        allocation=_allocation(mode, ratio, budget, width, risks, draws),
    )


def _equal(budget: int) -> float:
    return DIVISIONS["equal"][3] - 0.17 * math.log2(budget / 1000)


def _gain(value: float, reach: float) -> Estimate:
    interval = (value - reach, value + reach)
    return Estimate(value=value, standard_error=reach / 4.9, interval=interval, clusters=3)


def _label(gain: float) -> str:
    return "A" if gain > 3.3 else "E" if gain < -1.8 else "inconclusive"


def _allocation(
    mode: str,
    ratio: float | None,
    budget: int,
    width: float,
    risks: list[float],
    draws: np.random.Generator,
) -> Allocation:
    bits = [budget * width + float(draws.normal(0, 0.02 * budget)) for _ in SEEDS]
    complexity = [math.sqrt((one + 60) * math.log(2) / 2 / TOKENS) * 2.4 for one in bits]
    quantised = [float(abs(draws.normal(0.012, 0.004))) for _ in SEEDS]
    learned = mode == "learned"
    gamma = [
        [0.52 + 0.018 * layer + float(draws.normal(0, 0.005)) for layer in range(6)]
        + [0.71 + float(draws.normal(0, 0.006))]
        for _ in SEEDS
    ]
    return Allocation(
        mode=mode,
        ratio=ratio,
        budget=budget,
        share_of_b=_mean([fmean(row) for row in gamma]) if learned else SeedMean(value=ratio),
        bits=_mean(bits),
        paid_bits=_mean([one + 60 for one in bits]),
        risk=_mean(risks, (fmean(risks) - 0.03, fmean(risks) + 0.03)),
        risk_unquantised=_mean([a - b for a, b in zip(risks, quantised, strict=True)]),
        bound=_mean([a + b for a, b in zip(risks, complexity, strict=True)]),
        complexity=_mean(complexity),
        gain_bound=None,
        vacuous=0,
        file_bytes=fmean(bits) / 8 + 143,
        documents=500,
        population=TOKENS,
        delta=0.05,
        certificates=[f"runs/{seed:016x}/certificate.json" for seed in SEEDS],
        layers=LAYERS if learned else None,
        gamma=gamma if learned else None,
        gradients=_gradients(draws) if learned else None,
    )


def _gradients(draws: np.random.Generator) -> FactorGradients:
    small = [0.021 - 0.001 * layer + float(draws.normal(0, 0.0006)) for layer in range(7)]
    return FactorGradients(A=small, B=[a * (1.4 + 0.25 * index) for index, a in enumerate(small)])


def _mean(values: list[float], interval: Interval | None = None) -> SeedMean:
    return SeedMean(value=fmean(values), by_seed=list(values), interval=interval)


def _learned(arms: list[Arm]) -> list[tuple[Arm, Allocation]]:
    return [(arm, found) for arm in arms if (found := arm.allocation) and found.gamma]


def _contrast(arms: list[Arm], division: str) -> Comparison:
    gains = [arm.gain.value for arm in arms if arm.gain and arm.name.startswith(f"{division} ")]
    gain = _gain(fmean(gains), 1.1)
    sentence = f"{division}: perplexity {gain.value:.2f} % lower than equal's."
    return Comparison(arm=division, against="equal", gain=gain, sentence=sentence)


def _figures(arms: list[Arm]) -> FiguresData:
    divided = [(arm.name, found) for arm in arms if (found := arm.allocation)]
    learned = _learned(arms)
    return FiguresData(
        bits_risk=[
            BitsRisk(
                name=name,
                bits=found.bits.value,
                risk=found.risk.value,
                interval=found.risk.interval,
            )
            for name, found in divided
        ],
        layer_gates=[
            NamedTable(
                name=arm.name,
                rows=LAYERS,
                columns=[f"seed {seed}" for seed in SEEDS],
                weights=[list(row) for row in zip(*found.gamma or [], strict=True)],
            )
            for arm, found in learned
        ],
        gradient_norms=[
            NamedCurve(
                name=f"{side}, {arm.name}",
                points=[(step, scale / (1 + step / 60)) for step in STEPS],
            )
            for arm, _ in learned
            for side, scale in (("A", 0.31), ("B", 0.74))
        ],
        bound_parts=[_bound_parts(name, found) for name, found in divided],
    )


def _bound_parts(name: str, found: Allocation) -> BoundParts:
    before, after = found.risk_unquantised.value or 0.0, found.risk.value or 0.0
    parts = {
        "empirical risk": before,
        "quantisation": after - before,
        "complexity": found.complexity.value,
    }
    return BoundParts(name=name, parts=[BoundPart(name=n, value=v) for n, v in parts.items()])
