"""A study as one file: everything a reader or a page needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hylorada.evaluation.statistics import params_per_percent
from hylorada.experiments.studies.judging import Findings
from hylorada.experiments.studies.plan import Plan
from hylorada.experiments.studies.records import ArmRecord, RunRecord
from hylorada.experiments.studies.registration import Registration
from hylorada.verdicts import Verdict

SCHEMA = 1
AT_LENGTH = " @ "  # as the arms of the length study are named
TIME_FIELDS = ("train_seconds", "tokens_per_second")
SIZE_FIELDS = ("peak_memory_bytes", "adapter_bytes")


def arm_entry(
    record: ArmRecord,
    base: ArmRecord | None,
    verdict: Verdict | None,
    tuning: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Return what a study file says of one arm."""
    judged = {} if verdict is None else verdict.as_dict()
    added = None if base is None else record.parameters - base.parameters
    perplexity = record.perplexity()
    price = None
    if base is not None and added is not None and added > 0:
        price = params_per_percent(added, base.perplexity()["value"], perplexity["value"])
    fields = ("gain", "label", "meaning", "seeds_needed", "explained_by", "point_scenario")
    return {
        "name": record.name,
        "role": record.arm.role,
        "baseline": record.arm.baseline,
        "description": record.arm.description,
        "trainable_parameters": record.parameters,
        "added_parameters": added,
        "perplexity": perplexity,
        **{name: judged.get(name) for name in (*fields, "sentence", "reason")},
        "params_per_percent": price,
        "cost": cost(record.runs),
        "runs": [{"seed": run.seed, "id": run.address.folder} for run in record.runs],
        "training_curve": {str(run.seed): run.training_curve for run in record.runs},
        "position_curve": record.curve("position_curve", "start", "end"),
        "depth_curve": record.curve("lim_ppl", "depth"),
        "boundaries": boundaries(record),
        "gates": record.runs[0].evaluation["gates"],
        "tuning": tuning,
        "optimisation": asdict(record.arm.config.optimisation),
    }


def cost(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return the mean time and the largest size over seeds; None where it was not measured."""
    costs = [run.evaluation["cost"] for run in runs]
    known = {name: [c[name] for c in costs if c[name] is not None] for name in costs[0]}
    means = {n: sum(known[n]) / len(known[n]) if known[n] else None for n in TIME_FIELDS}
    return means | {name: max(known[name], default=None) for name in SIZE_FIELDS}


def boundaries(record: ArmRecord) -> dict[str, Any] | None:
    """Return the learned boundaries of each seed beside the uniform ones, in tokens."""
    learned = [run.evaluation["boundaries"] for run in record.runs]
    if any(found is None for found in learned):
        return None
    context = record.arm.config.data.length
    buckets = len(learned[0]) + 1
    return {
        "learned": learned,
        "uniform": [context * index / buckets for index in range(1, buckets)],
        "context": context,
    }


def plan_entry(plan: Plan, registration: Registration) -> dict[str, Any]:
    """Return what was registered, when, and what has changed since."""
    return {
        "hash": registration.hash,
        "registered": registration.registered,
        "changes": list(registration.changes),
        "baseline": plan.baseline,
        "metric": plan.metric,
        "seeds": list(plan.seeds),
        "thresholds": asdict(plan.thresholds),
        "tuning": None if plan.tuning is None else asdict(plan.tuning),
    }


def setting_entry(baseline: ArmRecord) -> dict[str, Any]:
    """Return the model, the text and the training that all arms share."""
    config, first = baseline.arm.config, baseline.runs[0]
    return {
        "model": config.model.source,
        "data": config.data.source,
        "length": config.data.length,
        "num_train": config.data.num_train,
        "num_val": config.data.num_val,
        "epochs": config.training.epochs,
        "batch_size": config.training.batch_size,
        "precision": config.training.precision,
        "learning_rate": config.optimisation.learning_rate,
        "num_landmarks": config.adapter.num_landmarks,
        "steps": first.result["steps"],
        "valid_tokens": first.result["valid_tokens"],
        "test_tokens": first.evaluation["metrics"]["ppl"]["tokens"],
        "test_documents": first.evaluation["test"]["documents"],
        "independent_unit": first.evaluation["clusters"]["unit"],
        "valid_share": first.evaluation["valid_share"],
        "replace": dict(config.data.replace),
    }


def study_entry(
    plan: Plan,
    registration: Registration,
    records: Mapping[str, ArmRecord],
    found: Findings,
    tuning: Mapping[str, list[dict[str, Any]]],
    frozen: RunRecord,
) -> dict[str, Any]:
    """Return the study file without its checks, command and provenance."""
    arms = []
    for arm in plan.arms:
        base = None if arm.baseline is None else records[arm.baseline]
        verdict = found.verdicts.get(arm.name)
        arms.append(arm_entry(records[arm.name], base, verdict, tuning.get(arm.name)))
    return {
        "schema": SCHEMA,
        "study": plan.study,
        "title": plan.title,
        "sentences": list(found.sentences),
        "plan": plan_entry(plan, registration),
        "setting": setting_entry(records[plan.baseline]),
        "frozen": {"perplexity": math.exp(frozen.log_perplexity)},
        "arms": arms,
        "comparisons": list(found.comparisons),
        "figures_data": figures_data(arms),
    }


def figures_data(arms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return each component's gain over the context length, where arms are named by it."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for arm in arms:
        name, at, length = arm["name"].partition(AT_LENGTH)
        if at and arm["gain"] is not None:
            curves.setdefault(name, []).append({"x": int(length), **arm["gain"]})
    if not curves:
        return {}
    points = [{"name": name, "points": found} for name, found in curves.items()]
    return {"gain_curves": {"over": "context, tokens", "curves": points}}
