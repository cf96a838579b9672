"""What every study checks of itself: could its numbers be wrong without anybody noticing?"""

import math
from collections.abc import Mapping, Sequence

from hylorada.records.studies import Check, TriedRate
from hylorada.studies.results import ArmRuns, FinishedRun
from hylorada.verdicts import Verdict

# A tenth of the smallest gain that a verdict names.
SAME_PERCENT = 0.05
# Logits are compared after kernels that may round differently, never by more than this share.
LEAK_SHARE = {"float32": 1e-4, "autocast": 1e-2, "bfloat16": 1e-2}


def self_checks(
    arms: Sequence[ArmRuns],
    verdicts: Sequence[Verdict],
    again: tuple[FinishedRun, FinishedRun],
    tuning: Mapping[str, Sequence[TriedRate]],
) -> list[Check]:
    """Return every check with its outcome; `again` holds the same run done twice."""
    trained = [one for one in arms if not one.arm.is_frozen]
    return [
        *(repetition_is_noise(verdict) for verdict in verdicts if verdict.role == "self_check"),
        same_seed_same_numbers(*again),
        everything_trained(trained),
        every_position_is_text(trained),
        adapters_are_float32(trained),
        no_token_sees_the_future(arms),
        *([best_rates_are_inside(tuning)] if tuning else []),
    ]


def repetition_is_noise(verdict: Verdict) -> Check:
    """A repetition of the baseline must not be found to help or to harm."""
    name = f"{verdict.arm}: the baseline repeated differs by noise only"
    passed = verdict.label in ("D", "inconclusive")
    return Check(name=name, passed=passed, detail=verdict.sentence)


def same_seed_same_numbers(first: FinishedRun, second: FinishedRun) -> Check:
    """The same run, done twice, must give the same perplexity."""
    change = 100 * abs(math.expm1(second.log_perplexity - first.log_perplexity))
    how = "exactly" if change == 0 else f"up to {change:.2g} % of the perplexity"
    return Check(
        name="the same seed twice gives the same numbers",
        passed=change <= SAME_PERCENT,
        detail=f"seed {first.seed} run again agrees {how}",
    )


def everything_trained(arms: Sequence[ArmRuns]) -> Check:
    """Every declared parameter of every run must have been optimised and have moved."""
    runs = [(one.name, run.seed, run.result.audit or "") for one in arms for run in one.runs]
    wrong = [f"{arm}, seed {seed}: {said}" for arm, seed, said in runs if said[:4] != "all "]
    detail = f"all parameters of {len(runs)} runs are optimised, received gradients and moved"
    name = "every declared parameter trained"
    return Check(name=name, passed=not wrong, detail="; ".join(wrong) or detail)


def every_position_is_text(arms: Sequence[ArmRuns]) -> Check:
    """No padding may be trained on or scored; padding must not be most of the data."""
    share = min(run.evaluation.valid_share for one in arms for run in one.runs)
    tokens = arms[0].runs[0].evaluation.ppl.tokens
    return Check(
        name="share of valid tokens",
        passed=share > 0.5,
        detail=f"{share:.1%} of the training positions are text and labelled; "
        f"{tokens:,} test tokens are scored, none of them padding",
    )


def adapters_are_float32(arms: Sequence[ArmRuns]) -> Check:
    """Low precision would round small updates away."""
    runs = [run for one in arms for run in one.runs]
    kinds = sorted({kind for run in runs for kind in run.evaluation.adapter_dtypes})
    return Check(
        name="adapters are float32, so that no update is lost",
        passed=kinds == ["F32"],
        detail=f"stored adapters hold {', '.join(kinds)}; no audit found a lost update",
    )


def no_token_sees_the_future(arms: Sequence[ArmRuns]) -> Check:
    """Logits must not depend on later tokens."""
    shares = []
    for one in arms:
        leaks = [run.evaluation.future_leak for run in one.runs]
        worst = max(leak.largest_change / max(leak.largest_logit, 1e-12) for leak in leaks)
        shares.append((worst, one.name, LEAK_SHARE[one.arm.config.training.precision]))
    share, name, _ = max(shares)
    detail = f"changing later tokens moves earlier logits by {share:.1e} of their size at most"
    return Check(
        name="no token sees the future",
        passed=all(worst <= allowed for worst, _, allowed in shares),
        detail=detail + (f" ({name})" if share else ""),
    )


def best_rates_are_inside(tuning: Mapping[str, Sequence[TriedRate]]) -> Check:
    """A best rate at the end of its grid may not be the best there is."""
    at_edge = [name for name, tried in tuning.items() if tried[0].chosen or tried[-1].chosen]
    inside = f"all {len(tuning)} arms chose a rate between the ends of their grid"
    return Check(
        name="no best learning rate lies at the end of its grid",
        passed=not at_edge,
        detail=f"at the end: {', '.join(at_edge)}" if at_edge else inside,
    )
