"""A study as a comparison of landmarks leaves it behind, made up from a seed."""

import math
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from hylorada.records.evaluations import Estimate
from hylorada.records.runs import RunCost, Table
from hylorada.records.studies import (
    Arm,
    BitsRisk,
    Boundaries,
    BoundPart,
    BoundParts,
    Check,
    Comparison,
    CurvePoint,
    DepthMean,
    FiguresData,
    Frozen,
    GainCurve,
    GainCurves,
    GainPoint,
    Logged,
    NamedCurve,
    NamedTable,
    Provenance,
    RateGrids,
    RegisteredPlan,
    RunName,
    SeedMean,
    Setting,
    Study,
    TriedRate,
)
from tests.unit.report.allocation_study import allocation_study

SEEDS = (42, 123, 456)
CONTEXT = 256
BASELINE = 28.3684
# name: role, description, added parameters, gain in per cent, half of its interval, label, meaning
ARMS: dict[str, tuple[str, str, int, float, float, str | None, str | None]] = {
    "rsLoRA": ("baseline", "rank 8 on attention", 0, 0.0, 0.0, None, None),
    "original": ("candidate", "one gate for all tokens", 2304, 0.21, 0.19, "D", "none"),
    "per_layer": ("candidate", "landmarks in every layer", 9216, 0.93, 0.55, "inconclusive", None),
    "position_adaptive": ("candidate", "a gate per bucket", 4353, 1.62, 0.41, "B", "moderate"),
    "learnable": ("candidate", "learned boundaries", 4384, 1.55, 0.47, "B", "moderate"),
    "shared": ("candidate", "one set for all layers", 1160, -0.84, 0.22, "E", "harmful"),
    "bias": ("control", "one vector after the norm", 128, 0.64, 0.10, "C", "minimal"),
    "low_rank": ("control", "a plain low-rank map", 4096, 2.44, 0.30, "A", "strong"),
    "rank+1": ("control", "LoRA with one more rank", 6144, 0.11, 0.30, "D", "none"),
    "A/A": ("self_check", "the baseline again", 0, 0.02, 0.27, "D", "none"),
}


def example(**changes: Any) -> Study:
    """Return a study with data for every section that a comparison has."""
    study = Study(
        study="landmarks",
        title="Do landmarks earn their parameters?",
        command="hylorada compare landmarks --model tiny --data sotu --seeds 42 123 456 --tune",
        sentences=[
            "Position-adaptive landmarks lower perplexity by 1.62 % [1.21, 2.03] over three seeds.",
            "A plain low-rank map of the same size lowers it by 2.44 % [2.14, 2.74], so the "
            "control explains the gain.",
        ],
        plan=RegisteredPlan(
            hash="9b1f6a0c55d2e7a4",
            registered="2026-01-05T09:30:00+00:00",
            baseline="rsLoRA",
            seeds=list(SEEDS),
            tuning=RateGrids(base=[1.0, 2.0, 4.0, 8.0], component=[0.3, 1.0, 3.0, 10.0], seed=7),
        ),
        setting=Setting(
            model="tiny",
            data="sotu",
            length=CONTEXT,
            num_train=160,
            epochs=1.0,
            batch_size=8,
            valid_tokens=16320,
            test_tokens=32640,
            test_documents=24,
        ),
        frozen=Frozen(perplexity=29.678),
        arms=[_arm(name) for name in ARMS],
        comparisons=_comparisons(),
        checks=[
            Check(name="A/A arm", passed=True, detail="D none: 0.02 % [-0.25, 0.29]"),
            Check(name="same seed twice", passed=True, detail="equal to the last bit"),
            Check(name="no future leak", passed=True, detail="0 of 256 positions changed"),
        ],
        provenance=Provenance(
            packages={"hylorada": "0.1.0", "torch": "2.13.0", "peft": "0.21.2"},
            commit="fa4d8e293d5520d8c1f12044459d508ca65d4821",
            hardware="2 CPUs",
            data_fingerprint="2fbf19837d910201",
            started="2026-01-05T09:30:02+00:00",
            finished="2026-01-05T09:36:41+00:00",
            runs=30,
            reused=6,
            failed=0,
            engine="local",
        ),
    )
    return msgspec.structs.replace(study, **changes)


def small(**changes: Any) -> Study:
    """Return a study of two arms, with a table and two figures."""
    without = dict.fromkeys(("training_curve", "position_curve", "depth_curve", "tuning"))
    arms = [msgspec.structs.replace(_arm(name), **without) for name in ("rsLoRA", "bias")]
    return example(**{"arms": arms, "comparisons": [], **changes})


def allocation() -> Study:
    """Return a study with data for every section that any study has."""
    divided = allocation_study()
    divisions = [arm.allocation for arm in divided.arms[:6]]
    arms = [
        msgspec.structs.replace(_arm(name), allocation=found)
        for name, found in zip(ARMS, [*divisions, *[None] * 4], strict=True)
    ]
    return example(
        study="allocation",
        title="Where should the coordinates go?",
        arms=arms,
        statements=divided.statements,
        figures_data=_figures_data(),
    )


def _figures_data() -> FiguresData:
    weights = [[0.5 + 0.04 * layer - 0.02 * seed for seed in range(3)] for layer in range(6)]
    names = ["uniform 1000", "learned 1000", "uniform 2000", "learned 2000"]
    gains = {"position_adaptive": (1.6, 1.1, 0.4), "low_rank": (2.4, 2.3, 2.4)}
    return FiguresData(
        gain_curves=GainCurves(
            over="context, tokens",
            curves=[
                GainCurve(
                    name=name,
                    points=[
                        GainPoint(x=x, value=value, interval=(value - 0.3, value + 0.3))
                        for x, value in zip((512, 1024, 2048), values, strict=True)
                    ],
                )
                for name, values in gains.items()
            ],
        ),
        bits_risk=[
            BitsRisk(name=name, bits=4000 + 2100 * i, risk=4.1 - 0.11 * i)
            for i, name in enumerate(names)
        ],
        layer_gates=[
            NamedTable(
                name="learned 1000",
                rows=[f"layer {index}" for index in range(6)],
                columns=[f"seed {seed}" for seed in SEEDS],
                weights=weights,
            )
        ],
        gradient_norms=[
            NamedCurve(name=which, points=[(s, scale / (1 + s / 20)) for s in range(0, 101, 10)])
            for which, scale in (("A coordinates", 0.4), ("B coordinates", 1.1))
        ],
        bound_parts=[
            BoundParts(
                name=name,
                parts=[
                    BoundPart(name="empirical risk", value=4.1 - 0.11 * i),
                    BoundPart(name="quantisation loss", value=0.08),
                    BoundPart(name="complexity", value=0.4 + 0.1 * i),
                ],
            )
            for i, name in enumerate(names)
        ],
    )


def _arm(name: str) -> Arm:
    role, description, added, gain, reach, label, meaning = ARMS[name]
    draws = np.random.default_rng(list(ARMS).index(name))
    value = BASELINE * (1 - gain / 100)
    estimate = Estimate(
        value=gain, standard_error=reach / 4.3, interval=(gain - reach, gain + reach), clusters=3
    )
    judged = role != "baseline"
    return Arm(
        name=name,
        role=role,
        description=description,
        trainable_parameters=49152 + added,
        added_parameters=added,
        perplexity=SeedMean(
            by_seed=[value + shift for shift in (-0.05, 0.07, -0.02)],
            value=value,
            interval=(value - 0.16, value + 0.16),
        ),
        gain=estimate if judged else None,
        label=label,
        meaning=meaning,
        seeds_needed=6 if label == "inconclusive" else None,
        explained_by=["low_rank"] if label == "B" else [],
        point_scenario=f"{label}: keep as ablation (sd 0.21 %, below 1 %)" if judged else None,
        sentence=_sentence(name, gain, reach) if judged else None,
        params_per_percent=added / gain if gain > 0.1 else None,
        cost=RunCost(
            train_seconds=7.4 + added / 4000,
            tokens_per_second=5300 - added / 10,
            peak_memory_bytes=412_000_000 + 16 * added,
            adapter_bytes=4 * (49152 + added),
        ),
        runs=[RunName(seed=seed, id=f"{seed:016x}") for seed in SEEDS],
        training_curve=_training(gain),
        position_curve=_positions(gain, draws),
        depth_curve=_depths(gain, draws),
        boundaries=_boundaries(draws) if name == "learnable" else None,
        gates=_gates(draws) if name in ("position_adaptive", "learnable") else None,
        tuning=_tuning(value) if role != "self_check" else None,
    )


def _sentence(name: str, gain: float, reach: float) -> str:
    direction = "lower" if gain > 0 else "higher"
    ends = sorted((abs(gain) - reach, abs(gain) + reach))
    return (
        f"{name}: perplexity {abs(gain):.2f} % [{ends[0]:.2f}, {ends[1]:.2f}] {direction} "
        "than rsLoRA's (3 seeds)."
    )


def _training(gain: float) -> dict[str, list[Logged]]:
    curves: dict[str, list[Logged]] = {}
    for seed in SEEDS:
        batches = np.random.default_rng(seed).normal(0, 0.06, 20)  # shared by all arms
        curves[str(seed)] = [
            (step, 3.36 + 0.5 * math.exp(-step / 60) + float(noise) - gain / 100 * step / 200)
            for step, noise in zip(range(10, 210, 10), batches, strict=True)
        ]
    return curves


def _positions(gain: float, draws: np.random.Generator) -> list[CurvePoint]:
    rows = []
    for start, end in pairwise([0, 4, 8, 16, 32, 64, 128, 256]):
        middle = (start + end) / 2
        value = 3.1 + 2.0 / math.sqrt(1 + middle / 6) - gain / 100 + float(draws.normal(0, 0.004))
        interval = (value - 0.09, value + 0.09)
        rows.append(CurvePoint(start=start, end=end, value=value, interval=interval))
    return rows


def _depths(gain: float, draws: np.random.Generator) -> list[DepthMean]:
    rows = []
    for step in range(11):
        depth = step / 10
        value = 2.4 + 0.5 * math.sin(math.pi * depth) - gain / 25 + float(draws.normal(0, 0.01))
        rows.append(DepthMean(depth=depth, value=value, interval=(value - 0.12, value + 0.12)))
    return rows


def _boundaries(draws: np.random.Generator) -> Boundaries:
    uniform = [CONTEXT * step / 8 for step in range(1, 8)]
    learned = [
        [
            place - 14 * math.sin(math.pi * place / CONTEXT) + float(draws.normal(0, 2))
            for place in uniform
        ]
        for _ in SEEDS
    ]
    return Boundaries(learned=learned, uniform=uniform, context=CONTEXT)


def _gates(draws: np.random.Generator) -> Table:
    return Table(
        rows=[f"{32 * row}–{32 * row + 31}" for row in range(8)],
        columns=[f"landmark {column + 1}" for column in range(8)],
        weights=draws.dirichlet(np.full(8, 6.0), size=8).tolist(),
    )


def _tuning(perplexity: float) -> list[TriedRate]:
    rates = (1e-4, 3e-4, 1e-3, 3e-3)
    losses = [math.log(perplexity) + 0.03 * abs(math.log10(rate / 1e-3)) for rate in rates]
    return [
        TriedRate(rate=rate, loss=loss, chosen=loss == min(losses))
        for rate, loss in zip(rates, losses, strict=True)
    ]


def _comparisons() -> list[Comparison]:
    pairs = []
    for arm in ("position_adaptive", "learnable"):
        for control in ("bias", "low_rank", "rank+1"):
            gain = ARMS[arm][3] - ARMS[control][3]
            better = "beats" if gain > 0.5 else "does not beat"
            pairs.append(
                Comparison(
                    arm=arm,
                    against=control,
                    gain=Estimate(value=gain, interval=(gain - 0.4, gain + 0.4), clusters=3),
                    sentence=f"{arm} {better} {control}.",
                )
            )
    return pairs
