"""An allocation study as it leaves a comparison behind: 12 arms and a repetition, three seeds."""

import math
from statistics import fmean
from typing import Any

import numpy as np

from hylorada.verdicts import hypotheses

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


def allocation_study(**changes: Any) -> dict[str, Any]:
    """Return the study; its statements are those that its own gates and gains give."""
    arms = [_arm(name, budget) for budget in BUDGETS for name in DIVISIONS]
    arms.append(_arm("equal", BUDGETS[0], repeated=True))
    comparisons = [_contrast(arms, name) for name in ("B-heavy", "A-heavy")]
    gates = [
        {"name": arm["name"], "budget": arm["allocation"]["budget"], "seed": seed}
        | {"layers": LAYERS, "gamma": gamma}
        for arm in _learned(arms)
        for seed, gamma in zip(SEEDS, arm["allocation"]["gamma"], strict=True)
    ]
    statements = hypotheses(comparisons, gates)
    return {
        "schema": 1,
        "study": "allocation",
        "title": "Where should the coordinates go?",
        "command": "hylorada compare allocation --budgets 1000 2000 --seeds 42 123 999",
        "sentences": [f"{one['name']} is {one['label']}: {one['sentence']}" for one in statements],
        "plan": {
            "hash": "5e0a4bb1c77f4d1e",
            "registered": "2026-01-05T09:30:00+00:00",
            "baseline": "equal d=1000",
            "seeds": list(SEEDS),
            "thresholds": {"confidence": 0.95, "strong": 0.02, "moderate": 0.01, "minimal": 0.005},
        },
        "setting": {"model": "random:gpt2-mini", "length": 256, "test_tokens": 51_200},
        "arms": arms,
        "comparisons": comparisons,
        "statements": statements,
        "checks": [{"name": "A/A", "passed": True, "detail": "inconclusive: 0.1 % [-0.9, 1.1]"}],
        "provenance": {"engine": "local", "runs": 39, "failed": 0},
        "figures_data": _figures([arm for arm in arms if arm["name"] != REPEATED]),
        **changes,
    }


def _arm(division: str, budget: int, *, repeated: bool = False) -> dict[str, Any]:
    mode, ratio, width, risk = DIVISIONS[division]
    name = REPEATED if repeated else f"{division} d={budget}"
    draws = np.random.default_rng([*DIVISIONS].index(division) + budget + repeated)
    risk -= 0.17 * math.log2(budget / 1000)
    risks = [risk + 0.012 * seed + float(draws.normal(0, 0.004)) for seed in range(3)]
    perplexities = [2 ** (one + 0.03) for one in risks]
    first = division == "equal" and budget == BUDGETS[0] and not repeated
    role = "baseline" if first else "self_check" if repeated else "candidate"
    if division == "size-neutral" or (division == "equal" and not first and not repeated):
        role = "reference"
    gain = (
        None if division == "equal" and not repeated else 100 * (1 - 2 ** (risk - _equal(budget)))
    )
    return {
        "name": name,
        "role": role,
        "baseline": None if gain is None else f"equal d={budget}",
        "description": f"d = {budget}: {mode}" + (f", B's share {ratio}" if ratio else ""),
        "trainable_parameters": budget + (len(LAYERS) if mode == "learned" else 0),
        "perplexity": {"by_seed": perplexities, "value": fmean(perplexities), "interval": None},
        "gain": None if gain is None else _gain(gain, 1.3),
        "label": None if role in ("baseline", "reference") else _label(gain or 0.0),
        "sentence": None if gain is None else f"{name}: {gain:.2f} % lower than equal's.",
        "runs": [{"seed": seed, "id": f"{seed:016x}"} for seed in SEEDS],
        "cost": {"train_seconds": 41.0, "adapter_bytes": 4 * budget},
        "training_curve": {
            str(seed): [
                [step, fmean(risks) * math.log(2) + 3 * math.exp(-step / 40)] for step in STEPS
            ]
            for seed in SEEDS
        },
        "allocation": _allocation(mode, ratio, budget, width, risks, draws),
    }


def _equal(budget: int) -> float:
    return DIVISIONS["equal"][3] - 0.17 * math.log2(budget / 1000)


def _gain(value: float, reach: float) -> dict[str, Any]:
    interval = [value - reach, value + reach]
    return {"value": value, "standard_error": reach / 4.9, "interval": interval, "clusters": 3}


def _label(gain: float) -> str:
    return "A" if gain > 3.3 else "E" if gain < -1.8 else "inconclusive"


def _allocation(
    mode: str,
    ratio: float | None,
    budget: int,
    width: float,
    risks: list[float],
    draws: np.random.Generator,
) -> dict[str, Any]:
    bits = [budget * width + float(draws.normal(0, 0.02 * budget)) for _ in SEEDS]
    complexity = [math.sqrt((one + 60) * math.log(2) / 2 / TOKENS) * 2.4 for one in bits]
    quantised = [float(abs(draws.normal(0.012, 0.004))) for _ in SEEDS]
    learned = mode == "learned"
    gamma = [
        [0.52 + 0.018 * layer + float(draws.normal(0, 0.005)) for layer in range(6)]
        + [0.71 + float(draws.normal(0, 0.006))]
        for _ in SEEDS
    ]
    shares = [fmean(row) for row in gamma]
    return {
        "mode": mode,
        "ratio": ratio,
        "budget": budget,
        "share_of_b": {"value": fmean(shares), "by_seed": shares} if learned else None,
        "bits": _mean(bits),
        "risk": _mean(risks) | {"interval": [fmean(risks) - 0.03, fmean(risks) + 0.03]},
        "risk_unquantised": _mean([a - b for a, b in zip(risks, quantised, strict=True)]),
        "bound": _mean([a + b for a, b in zip(risks, complexity, strict=True)]),
        "complexity": _mean(complexity),
        "file_bytes": fmean(bits) / 8 + 143,
        "certificates": [f"runs/{seed:016x}/certificate.json" for seed in SEEDS],
        "layers": LAYERS if learned else None,
        "gamma": gamma if learned else None,
        "gradients": _gradients(draws) if learned else None,
    }


def _gradients(draws: np.random.Generator) -> dict[str, list[float]]:
    small = [0.021 - 0.001 * layer + float(draws.normal(0, 0.0006)) for layer in range(7)]
    return {"A": small, "B": [a * (1.4 + 0.25 * index) for index, a in enumerate(small)]}


def _mean(values: list[float]) -> dict[str, Any]:
    return {"value": fmean(values), "by_seed": values}


def _learned(arms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [arm for arm in arms if arm["allocation"]["gamma"]]


def _contrast(arms: list[dict[str, Any]], division: str) -> dict[str, Any]:
    gains = [arm["gain"]["value"] for arm in arms if arm["name"].startswith(f"{division} ")]
    gain = _gain(fmean(gains), 1.1)
    sentence = f"{division}: perplexity {gain['value']:.2f} % lower than equal's."
    return {"arm": division, "against": "equal", "gain": gain, "sentence": sentence}


def _figures(arms: list[dict[str, Any]]) -> dict[str, Any]:
    learned = _learned(arms)
    return {
        "risk_unit": "bits per token",
        "bits_risk": [
            {"name": arm["name"], "bits": arm["allocation"]["bits"]["value"]}
            | {"risk": found["value"], "interval": found["interval"]}
            for arm in arms
            if (found := arm["allocation"]["risk"])
        ],
        "layer_gates": [
            {
                "name": arm["name"],
                "rows": LAYERS,
                "columns": [f"seed {seed}" for seed in SEEDS],
                "weights": [list(row) for row in zip(*arm["allocation"]["gamma"], strict=True)],
            }
            for arm in learned
        ],
        "gradient_norms": [
            {
                "name": f"{side}, {arm['name']}",
                "points": [[step, scale / (1 + step / 60)] for step in STEPS],
            }
            for arm in learned
            for side, scale in (("A", 0.31), ("B", 0.74))
        ],
        "bound_parts": [_bound_parts(arm["name"], arm["allocation"]) for arm in arms],
    }


def _bound_parts(name: str, found: dict[str, Any]) -> dict[str, Any]:
    before, after = found["risk_unquantised"]["value"], found["risk"]["value"]
    parts = {
        "empirical risk": before,
        "quantisation": after - before,
        "complexity": found["complexity"]["value"],
    }
    return {"name": name, "parts": [{"name": n, "value": v} for n, v in parts.items()]}
