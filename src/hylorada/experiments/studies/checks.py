"""What every study checks of itself: could its numbers be wrong without anybody noticing?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hylorada.experiments.studies.records import ArmRecord, RunRecord
from hylorada.verdicts import Verdict

# A tenth of the smallest gain that a verdict names.
SAME_PERCENT = 0.05
# Logits are compared after kernels that may round differently, never by more than this share.
LEAK_SHARE = {"float32": 1e-4, "autocast": 1e-2, "bfloat16": 1e-2}

Check = dict[str, Any]


def self_checks(
    records: Sequence[ArmRecord],
    verdicts: Sequence[Verdict],
    again: tuple[RunRecord, RunRecord],
    tuning: Mapping[str, Sequence[dict[str, Any]]],
) -> list[Check]:
    """Return every check with its outcome; `again` holds the same run done twice."""
    repeated = [verdict for verdict in verdicts if verdict.role == "self_check"]
    trained = [record for record in records if not record.arm.is_frozen]
    return [
        *(repetition_is_noise(verdict) for verdict in repeated),
        same_seed_same_numbers(*again),
        everything_trained(trained),
        every_position_is_text(trained),
        adapters_are_float32(trained),
        no_token_sees_the_future(records),
        *([best_rates_are_inside(tuning)] if tuning else []),
    ]


def repetition_is_noise(verdict: Verdict) -> Check:
    """A repetition of the baseline must not be found to help or to harm."""
    return {
        "name": f"{verdict.arm}: the baseline repeated differs by noise only",
        "passed": verdict.label in ("D", "inconclusive"),
        "detail": verdict.sentence,
    }


def same_seed_same_numbers(first: RunRecord, second: RunRecord) -> Check:
    """The same run, done twice, must give the same perplexity."""
    change = 100 * abs(math.expm1(second.log_perplexity - first.log_perplexity))
    how = "exactly" if change == 0 else f"up to {change:.2g} % of the perplexity"
    return {
        "name": "the same seed twice gives the same numbers",
        "passed": change <= SAME_PERCENT,
        "detail": f"seed {first.seed} run again agrees {how}",
    }


def everything_trained(records: Sequence[ArmRecord]) -> Check:
    """Every declared parameter of every run must have been optimised and have moved."""
    runs = [(record.name, run) for record in records for run in record.runs]
    wrong = [
        f"{name}, seed {run.seed}: {run.result['audit']}"
        for name, run in runs
        if not run.result["audit"].startswith("all ")
    ]
    detail = f"all parameters of {len(runs)} runs are optimised, received gradients and moved"
    return {
        "name": "every declared parameter trained",
        "passed": not wrong,
        "detail": "; ".join(wrong) or detail,
    }


def every_position_is_text(records: Sequence[ArmRecord]) -> Check:
    """No padding may be trained on or scored; padding must not be most of the data."""
    shares = [run.evaluation["valid_share"] for record in records for run in record.runs]
    tokens = records[0].runs[0].evaluation["metrics"]["ppl"]["tokens"]
    return {
        "name": "share of valid tokens",
        "passed": min(shares) > 0.5,
        "detail": f"{min(shares):.1%} of the training positions are text and labelled; "
        f"{tokens:,} test tokens are scored, none of them padding",
    }


def adapters_are_float32(records: Sequence[ArmRecord]) -> Check:
    """Low precision would round small updates away."""
    runs = [run for record in records for run in record.runs]
    kinds = sorted({kind for run in runs for kind in run.evaluation["adapter_dtypes"]})
    return {
        "name": "adapters are float32, so that no update is lost",
        "passed": kinds == ["F32"],
        "detail": f"stored adapters hold {', '.join(kinds)}; no audit found a lost update",
    }


def no_token_sees_the_future(records: Sequence[ArmRecord]) -> Check:
    """Logits must not depend on later tokens."""
    worst, name, passed = 0.0, records[0].name, True
    for record in records:
        allowed = LEAK_SHARE[record.arm.config.training.precision]
        for run in record.runs:
            leak = run.evaluation["future_leak"]
            share = leak["largest_change"] / max(leak["largest_logit"], 1e-12)
            passed = passed and share <= allowed
            if share > worst:
                worst, name = share, record.name
    detail = f"changing later tokens moves earlier logits by {worst:.1e} of their size at most"
    return {
        "name": "no token sees the future",
        "passed": passed,
        "detail": detail + (f" ({name})" if worst else ""),
    }


def best_rates_are_inside(tuning: Mapping[str, Sequence[dict[str, Any]]]) -> Check:
    """A best rate at the end of its grid may not be the best there is."""
    at_edge = [name for name, curve in tuning.items() if curve[0]["chosen"] or curve[-1]["chosen"]]
    inside = f"all {len(tuning)} arms chose a rate between the ends of their grid"
    return {
        "name": "no best learning rate lies at the end of its grid",
        "passed": not at_edge,
        "detail": f"at the end: {', '.join(at_edge)}" if at_edge else inside,
    }
