"""What the study `allocation` says beyond every study: bits, bounds, gates and three statements."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from hylorada.experiments.run_certificate import CERTIFICATE
from hylorada.experiments.studies.allocation import ASYMMETRIC, EQUAL, QUESTIONS, division_of
from hylorada.experiments.studies.components import REPEATED
from hylorada.experiments.studies.records import ArmRecord, RunRecord, over_seeds
from hylorada.subspace.allocation import REST
from hylorada.verdicts.allocation import hypotheses

RISK_UNIT = "bits per token"
LEARNED = "learned"
SIDES = ("A", "B")


def conclude_allocation(
    entry: Mapping[str, Any], records: Mapping[str, ArmRecord], ledger: str
) -> dict[str, Any]:
    """Return what replaces or joins the entry of a study: arms, figures, statements, sentences."""
    arms = [
        arm | {"allocation": arm_allocation(records[arm["name"]], ledger)} for arm in entry["arms"]
    ]
    statements = hypotheses(asymmetric(entry["comparisons"]), learned_gates(records))
    return {
        "arms": arms,
        "figures_data": figures(arms, records),
        "statements": statements,
        "sentences": [*winners(arms), *map(statement_sentence, statements), *entry["sentences"]],
    }


def arm_allocation(record: ArmRecord, ledger: str) -> dict[str, Any]:
    """Return how an arm divides its coordinates and what its files and bounds came to.

    Risks and bounds are in bits per token; values are means over seeds.
    """
    certified = [_certified(run) for run in record.runs]
    section = record.arm.config.sublora
    found = {
        "mode": section.allocation_mode,
        "ratio": section.allocation_ratio if section.allocation_mode == "fixed" else None,
        "budget": section.intrinsic_dim,
        "share_of_b": _mean([one["allocation"]["share_of_b"] for one in certified]),
        "bits": _mean([one["bits"] for one in certified]),
        "paid_bits": _mean([one["paid_bits"] for one in certified]),
        "risk": _risk([one["risk"] for one in certified]),
        "risk_unquantised": _risk([one["risk_unquantised"] for one in certified]),
        "bound": _mean([one["bound"] for one in certified]),
        "complexity": _mean([one["complexity"] for one in certified]),
        "gain_bound": _mean([one["gain"]["bound"] for one in certified if one["gain"]]),
        "vacuous": sum(one["vacuous"] for one in certified),
        "file_bytes": fmean(one["file_bytes"] for one in certified),
        "documents": certified[0]["documents"],
        "population": certified[0]["population"],
        "delta": certified[0]["delta"],
        "certificates": [f"{ledger}/{run.address.folder}/{CERTIFICATE}" for run in record.runs],
    }
    return found | _gates(record, certified)


def _gates(record: ArmRecord, certified: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return layers by depth, γ of each seed, and the mean norms of both factors' gradients."""
    layers = certified[0]["allocation"]["layers"]
    if not layers:
        return {"layers": None, "gamma": None, "gradients": None}
    return {
        "layers": [layer_name(layer) for layer in layers],
        "gamma": [one["allocation"]["gamma"] for one in certified],
        "gradients": {
            side: [
                fmean(
                    line["gradient_norm"]["layers"][layer][side]
                    for run in record.runs
                    for line in run.trace
                )
                for layer in layers
            ]
            for side in SIDES
        },
    }


def layer_name(layer: str) -> str:
    """Return what readers call a group: a layer by its number, or the head."""
    return "head" if layer == REST else f"layer {layer.rpartition('.')[2]}"


# Statements


def asymmetric(comparisons: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the comparisons of asymmetric divisions with the equal one over all budgets."""
    return [
        one
        for one in comparisons
        if one["against"] == EQUAL and QUESTIONS.get(one["arm"]) == ASYMMETRIC
    ]


def learned_gates(records: Mapping[str, ArmRecord]) -> list[dict[str, Any]]:
    """Return γ of every learned run, layers by depth."""
    return [
        {
            "name": record.name,
            "budget": record.arm.config.sublora.intrinsic_dim,
            "seed": run.seed,
            "layers": [layer_name(layer) for layer in _certified(run)["allocation"]["layers"]],
            "gamma": _certified(run)["allocation"]["gamma"],
        }
        for record in records.values()
        if record.arm.config.sublora.allocation_mode == LEARNED
        for run in record.runs
    ]


def winners(arms: Sequence[dict[str, Any]]) -> list[str]:
    """Return for each budget which division has the lowest perplexity, bits and bound."""
    budgets = dict.fromkeys(arm["allocation"]["budget"] for arm in arms)
    return [_winners(_compared(arms, budget), budget) for budget in budgets]


def _compared(arms: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    return [
        arm for arm in arms if arm["allocation"]["budget"] == budget and arm["name"] != REPEATED
    ]


def _winners(arms: Sequence[dict[str, Any]], budget: int) -> str:
    base = next(arm for arm in arms if division_of(arm["name"]) == EQUAL)
    perplexity = _lowest(arms, base, lambda arm: float(arm["perplexity"]["value"]), ".2f")
    bits = _lowest(arms, base, lambda arm: float(arm["allocation"]["bits"]["value"]), ",.0f")
    return (
        f"With {budget:,} coordinates, means over {len(base['runs'])} seeds: the lowest perplexity "
        f"has {perplexity}, the fewest bits {bits}, {_best_bound(arms, base)}."
    )


def _best_bound(arms: Sequence[dict[str, Any]], base: dict[str, Any]) -> str:
    """Return which division has the best certified bound, if any says something."""
    telling = [arm for arm in arms if not arm["allocation"]["vacuous"]]
    if not telling:
        return "and no bound is below that of a uniform guess"
    best = _lowest(telling, base, lambda arm: float(arm["allocation"]["bound"]["value"]), ".3f")
    chance = f"{100 * (1 - base['allocation']['delta']):g} %"
    return f"the best certified bound {best} {RISK_UNIT}, each bound with probability {chance}"


def _lowest(
    arms: Sequence[dict[str, Any]],
    base: dict[str, Any],
    value: Callable[[dict[str, Any]], float],
    form: str,
) -> str:
    """Return the division with the lowest value, and that of the equal one where it is another."""
    best = min(arms, key=value)
    beside = "" if best is base else f"; equal {value(base):{form}}"
    return f"{division_of(best['name'])} ({value(best):{form}}{beside})"


def statement_sentence(statement: Mapping[str, Any]) -> str:
    """Return a statement with its verdict in plain words."""
    claim = statement["claim"]
    return f"{statement['name']} ({claim}) is {statement['label']}: {statement['sentence']}"


# Figures


def figures(arms: Sequence[dict[str, Any]], records: Mapping[str, ArmRecord]) -> dict[str, Any]:
    """Return the data of the allocation figures."""
    shown = [arm for arm in arms if arm["name"] != REPEATED]
    learned = [arm for arm in shown if arm["allocation"]["gamma"]]
    return {
        "risk_unit": RISK_UNIT,
        "bits_risk": [_bits_risk(arm["name"], arm["allocation"]) for arm in shown],
        "layer_gates": [_layer_gates(arm) for arm in learned],
        "gradient_norms": [
            {"name": f"{side}, {arm['name']}", "points": gradients(records[arm["name"]].runs, side)}
            for arm in learned
            for side in SIDES
        ],
        "bound_parts": [_bound_parts(arm["name"], arm["allocation"]) for arm in shown],
    }


def gradients(runs: Sequence[RunRecord], side: str) -> list[list[float]]:
    """Return steps and the norm of a factor's gradient, averaged over seeds."""
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for line in run.trace:
            by_step.setdefault(line["step"], []).append(line["gradient_norm"][side])
    return [[step, fmean(norms)] for step, norms in sorted(by_step.items())]


def _bits_risk(name: str, allocation: dict[str, Any]) -> dict[str, Any]:
    risk = allocation["risk"]
    return {
        "name": name,
        "bits": allocation["bits"]["value"],
        "risk": risk["value"],
        "interval": risk["interval"],
    }


def _layer_gates(arm: dict[str, Any]) -> dict[str, Any]:
    allocation = arm["allocation"]
    return {
        "name": arm["name"],
        "rows": allocation["layers"],
        "columns": [f"seed {run['seed']}" for run in arm["runs"]],
        "weights": [list(row) for row in zip(*allocation["gamma"], strict=True)],
    }


def _bound_parts(name: str, allocation: dict[str, Any]) -> dict[str, Any]:
    """Return what a bound is the sum of: all parts are means over the same documents and seeds."""
    before, after = (allocation[key]["value"] for key in ("risk_unquantised", "risk"))
    parts = {
        "empirical risk": before,
        "quantisation": after - before,
        "complexity": allocation["complexity"]["value"],
    }
    return {"name": name, "parts": [{"name": n, "value": v} for n, v in parts.items()]}


def _certified(run: RunRecord) -> dict[str, Any]:
    assert run.certified is not None, "every run of an allocation study has a certificate"
    return run.certified


def _mean(values: Sequence[float]) -> dict[str, Any] | None:
    return {"value": fmean(values), "by_seed": list(values)} if values else None


def _risk(estimates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return over_seeds(estimates) | {"by_seed": [one["value"] for one in estimates]}
