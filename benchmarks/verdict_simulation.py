"""Check the rule of a verdict on simulated studies whose truth is known.

    python benchmarks/verdict_simulation.py --studies 2000 --out benchmarks/results/FILE.json

Null studies: no arm has any effect; noise is equal, unequal, heavy-tailed, shared by look-alike
arms, or comes from the test documents. Counted are studies with any arm wrongly said to help, and
studies whose intervals all contain the truth. Then the same with true effects, and the power that
`hylorada.verdicts.power` states against the share of labels in independently drawn studies.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy.special import stdtrit
from scipy.stats import nct

from hylorada.verdicts import Arm, judge
from hylorada.verdicts.intervals import pool
from hylorada.verdicts.labels import HELPS, MEANINGS, VerdictSpec, effect_nats, gain_percent
from hylorada.verdicts.labels import labels as labels_of
from hylorada.verdicts.power import judged_ends, judged_labels, power

SPEC = VerdictSpec()
SEEDS = (3, 5, 8)
ARMS = (4, 10)
# Of an arm's noise, nats: about the threshold of "minimal", and far above.
DEVIATIONS = (0.005, 0.05)
DOCUMENTS = {"documents": 100, "documents, unequal arms": 100, "few documents": 20}
Noise = tuple[np.ndarray, np.ndarray]  # Studies × arms × seeds, and document errors.
SCALES: dict[str, Callable[[int], list[float]]] = {
    "equal": lambda arms: [1.0] * arms,
    "one arm x3": lambda arms: [1.0] * (arms - 1) + [3.0],
    "one arm x10": lambda arms: [1.0] * (arms - 1) + [10.0],
    "two arms x5": lambda arms: [1.0] * (arms - 2) + [5.0, 5.0],
    "half x3": lambda arms: [1.0] * (arms // 2) + [3.0] * (arms - arms // 2),
    "half x10": lambda arms: [1.0] * (arms // 2) + [10.0] * (arms - arms // 2),
    "spread 1 to 4": lambda arms: [1.0, *np.geomspace(1, 4, arms - 1)],
    "spread 0.3 to 10": lambda arms: [1.0, *np.geomspace(0.3, 10, arms - 1)],
    "spread 0.3 to 30": lambda arms: [0.3, *np.geomspace(0.3, 30, arms - 1)],
    "baseline x3": lambda arms: [3.0] + [1.0] * (arms - 1),
    "all but one x0.1": lambda arms: [0.1, 1.0] + [0.1] * (arms - 2),
}
BEYOND = "spread 0.3 to 30"
EFFECTS: dict[str, tuple[float, ...]] = {
    "one strong": (0.04,),
    "half strong": (0.05, 0.0),
    "all strong": (0.03,) * 9,
    "on the thresholds": (0.02, 0.01, 0.005, -0.005),
    "just above strong": (0.025, 0.025, 0.0),
    "mixed": (0.06, 0.015, 0.007, 0.0, -0.03),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    began = time.perf_counter()
    null = [cell for cells in null_cells(chosen.studies, chosen.seed) for cell in cells]
    true = [cell for cells in effect_cells(chosen.studies, chosen.seed) for cell in cells]
    result = {
        "protocol": __doc__,
        "versions": {"numpy": np.__version__, "scipy": scipy.__version__},
        "studies": chosen.studies,
        "seed": chosen.seed,
        "null": null,
        "effects": true,
        "power": power_cells(chosen.studies, chosen.seed),
        "two_arms": two_arm_cells(),
        "judge": judged_cell(chosen.seed),
        "beyond": beyond_cells(chosen.studies, chosen.seed),
        "pooled_alone": pooled_alone_cells(chosen.studies, chosen.seed),
    }
    result["summary"] = summary(result)
    result["seconds"] = round(time.perf_counter() - began, 1)
    chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


def noise(kind: str, random: np.random.Generator, shape: tuple[int, int, int]) -> Noise:
    """Return unit noise of arms without effects, and the document errors a study would state."""
    studies, arms, seeds = shape
    values = random.standard_normal(shape)
    errors = np.zeros((studies, arms - 1))
    if kind in SCALES:
        values *= np.array(SCALES[kind](arms))[:, None]
    elif kind == "heavy tails":
        values = random.standard_t(3, shape) / np.sqrt(3)
    elif kind == "lognormal deviations":
        values *= np.exp(random.standard_normal((studies, arms, 1)))
    elif kind == "look-alikes":
        values[:, 2:] = 0.95 * values[:, 2:3] + np.sqrt(1 - 0.95**2) * values[:, 2:]
    elif kind == "noisy look-alikes":
        values[:, 2:] = 4 * (0.95 * values[:, 2:3] + np.sqrt(1 - 0.95**2) * values[:, 2:])
        values[:, 1] *= 0.3
    else:
        values, errors = _with_documents(kind, values, random)
    return values + 5 * random.standard_normal((studies, 1, seeds)), errors


def _with_documents(kind: str, values: np.ndarray, random: np.random.Generator) -> Noise:
    """Add the noise of one set of test documents, scored under every seed."""
    count = DOCUMENTS[kind]
    size = 2 * np.sqrt(count)
    studies, arms, _ = values.shape
    if kind == "documents, unequal arms":
        values = values * np.geomspace(0.3, 3, arms)[:, None]
    by_document = random.standard_normal((studies, arms, count))
    by_document += 2 * random.standard_normal((studies, 1, count))  # Hard for every arm alike.
    by_document[:, arms // 2 :] += random.standard_normal((studies, 1, count))
    differences = size * (by_document[:, :1] - by_document[:, 1:])
    errors = differences.std(-1, ddof=1) / np.sqrt(count)
    return values + size * by_document.mean(-1, keepdims=True), errors


NOISES = (
    *(kind for kind in SCALES if kind != BEYOND),
    "heavy tails",
    "lognormal deviations",
    "look-alikes",
    "noisy look-alikes",
    "documents",
    "few documents",
    "documents, unequal arms",
)


def null_cells(studies: int, seed: int) -> list[list[dict[str, Any]]]:
    """Return what the rule says when nothing has an effect."""
    return [
        [
            study_cell(kind, studies, arms, seeds, deviation, (0.0,), seed)
            for arms in ARMS
            for seeds in SEEDS
            for deviation in DEVIATIONS
        ]
        for kind in NOISES
    ]


def effect_cells(studies: int, seed: int) -> list[list[dict[str, Any]]]:
    """Return what the rule says when arms have effects, so that the step-down steps."""
    return [
        [
            {"effects": name} | study_cell(kind, studies, arms, seeds, deviation, effects, seed)
            for arms in ARMS
            for seeds in SEEDS
            for deviation in (0.002, 0.01)
        ]
        for name, effects in EFFECTS.items()
        for kind in ("equal", "spread 0.3 to 10", "look-alikes", "documents")
    ]


def study_cell(
    kind: str,
    studies: int,
    arms: int,
    seeds: int,
    deviation: float,
    effects: tuple[float, ...],
    seed: int,
) -> dict[str, Any]:
    """Return rates over studies of one kind; effects are repeated over the arms."""
    random = np.random.default_rng([seed, *kind.encode(), arms, seeds, round(1e6 * deviation)])
    values, errors = noise(kind, random, (studies, arms, seeds))
    truth = np.resize(np.array([effect_nats(share) for share in effects]), arms - 1)
    values, errors = values * deviation, errors * deviation
    values[:, 1:] -= truth[:, None]
    ends = judged_ends(values, errors, SPEC, error_degrees=DOCUMENTS.get(kind, math.inf) - 1)
    labels = labels_of(gain_percent(ends.low), gain_percent(ends.high), SPEC)
    gains = gain_percent(truth) / 100
    return {
        "noise": kind,
        "arms": arms,
        "seeds": seeds,
        "deviation": deviation,
        "wrong_help": rate((np.isin(labels, HELPS) & (gains < SPEC.minimal)).any(1)),
        "wrong_label": rate(wrong(labels, gains).any(1)),
        "coverage": rate(((ends.low <= truth) & (truth <= ends.high)).all(1)),
        "no_effect_or_open": rate(np.isin(labels, ("D", "inconclusive"))),
    }


def wrong(labels: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """Return which labels state something untrue of the true gains, shares."""
    slack = 1e-12
    return (
        ((labels == "A") & (gains < SPEC.strong - slack))
        | ((labels == "B") & (gains < SPEC.moderate - slack))
        | ((labels == "C") & (gains < SPEC.minimal - slack))
        | ((labels == "D") & (abs(gains) > SPEC.minimal + slack))
        | ((labels == "E") & (gains > -SPEC.minimal + slack))
    )


def power_cells(studies: int, seed: int) -> list[dict[str, Any]]:
    """Return stated power beside the share of labels among independently drawn studies."""
    cells = []
    for effect in (0.0, 0.01, 0.02, 0.03):
        for deviation in (0.002, 0.005):
            for arms in ARMS:
                for seeds in SEEDS:
                    stated = power(effect, deviation, seeds, arms)
                    random = np.random.default_rng([seed, arms, seeds, round(1e6 * effect)])
                    values, errors = noise("equal", random, (studies, arms, seeds))
                    values *= deviation / np.sqrt(2)
                    values[:, 1] -= effect_nats(effect)
                    labels = judged_labels(values, errors, SPEC)[:, 0]
                    simulated = {label: rate(labels == label) for label in MEANINGS}
                    cells.append(
                        {
                            "effect": effect,
                            "sd": deviation,
                            "arms": arms,
                            "seeds": seeds,
                            "stated": stated,
                            "simulated": simulated,
                            "largest_difference": max(
                                abs(stated[label] - simulated[label]) for label in MEANINGS
                            ),
                        }
                    )
    return cells


def two_arm_cells() -> list[dict[str, Any]]:
    """Return stated power of a single comparison beside the noncentral t distribution's."""
    cells = []
    for effect, deviation, seeds in ((0.03, 0.002, 3), (0.03, 0.005, 5), (0.025, 0.005, 8)):
        stated = power(effect, deviation, seeds, 2)["A"]
        distance = (effect_nats(effect) - effect_nats(SPEC.strong)) / deviation * np.sqrt(seeds)
        exact = nct.sf(stdtrit(seeds - 1, 0.975), seeds - 1, distance)
        cells.append(
            {
                "effect": effect,
                "sd": deviation,
                "seeds": seeds,
                "stated": stated,
                "exact": float(exact),
            }
        )
    return cells


def beyond_cells(studies: int, seed: int) -> list[dict[str, Any]]:
    """Return what the rule says where deviations differ a hundredfold: where it gives way."""
    return [
        study_cell(BEYOND, studies, arms, seeds, 0.05, (0.0,), seed)
        for arms in (4, 5, 7, 10)
        for seeds in SEEDS
    ]


def pooled_alone_cells(studies: int, seed: int) -> list[dict[str, Any]]:
    """Return what the plain pooled variance would say, with Bonferroni and nothing else."""
    cells = []
    for kind in ("equal", "one arm x10", "baseline x3", "look-alikes"):
        for seeds in SEEDS:
            values, _ = noise(kind, np.random.default_rng([seed, seeds]), (studies, 10, seeds))
            square = pool(values, np.ones((studies, 10), dtype=bool), wild=0.0).mean_square
            reach = -stdtrit(9 * (seeds - 1), 0.025 / 9) * np.sqrt(2 * square / seeds)
            effects = (values[:, :1] - values[:, 1:]).mean(-1)
            missed = (abs(effects) > reach[:, None]).any(1)
            cells.append({"noise": kind, "arms": 10, "seeds": seeds, "coverage": rate(~missed)})
    return cells


def judged_cell(seed: int, *, studies: int = 200) -> dict[str, Any]:
    """Return whether `judge`, one study at a time, gives the labels of the vectorised rule."""
    values, _ = noise("spread 1 to 4", np.random.default_rng([seed, 7]), (studies, 5, 3))
    values *= 0.003
    values[:, 1] -= effect_nats(0.04)
    expected = judged_labels(values, np.zeros((studies, 4)), SPEC)
    same = 0
    for study, labels in zip(values, expected, strict=True):
        arms = [
            Arm(name=str(index), role="candidate", log_perplexities=tuple(row.tolist()))
            for index, row in enumerate(study)
        ]
        same += [one.label for one in judge(arms, baseline="0").verdicts] == labels.tolist()
    return {"studies": studies, "same_labels": same}


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return the worst cell of every requirement."""
    null, true = result["null"], result["effects"]
    return {
        "null_cells": len(null),
        "null_wrong_help": max(null, key=lambda cell: cell["wrong_help"]),
        "null_coverage": min(null, key=lambda cell: cell["coverage"]),
        "null_by_noise": {
            kind: {
                "wrong_help": max(c["wrong_help"] for c in null if c["noise"] == kind),
                "coverage": min(c["coverage"] for c in null if c["noise"] == kind),
            }
            for kind in NOISES
        },
        "a_a_no_effect_or_open": min(c["no_effect_or_open"] for c in null if c["noise"] == "equal"),
        "effect_cells": len(true),
        "effects_wrong_label": max(true, key=lambda cell: cell["wrong_label"]),
        "effects_coverage": min(true, key=lambda cell: cell["coverage"]),
        "power_cells": len(result["power"]),
        "power_largest_difference": max(c["largest_difference"] for c in result["power"]),
        "two_arms_largest_difference": max(
            abs(cell["stated"] - cell["exact"]) for cell in result["two_arms"]
        ),
        "judge": result["judge"],
        "beyond_coverage": min(result["beyond"], key=lambda cell: cell["coverage"]),
        "beyond_wrong_help": max(cell["wrong_help"] for cell in result["beyond"]),
        "pooled_alone_coverage": min(result["pooled_alone"], key=lambda cell: cell["coverage"]),
    }


def rate(hits: np.ndarray | np.bool_) -> float:
    return round(float(np.mean(hits)), 5)


if __name__ == "__main__":
    main()
