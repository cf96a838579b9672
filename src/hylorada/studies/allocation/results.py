"""What the study `allocation` says beyond every study: bits, bounds, gates and three statements."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec

from hylorada.jobs.certify import CERTIFICATE
from hylorada.records.certificates import CertifiedRun
from hylorada.records.studies import (
    Allocation,
    Arm,
    BitsRisk,
    BoundPart,
    BoundParts,
    Comparison,
    FactorGradients,
    FiguresData,
    Logged,
    NamedCurve,
    NamedTable,
    SeedMean,
    Study,
)
from hylorada.specs.adapters import SubLoRASection
from hylorada.studies.allocation.arms import ASYMMETRIC, DIVISIONS, EQUAL, division_of
from hylorada.studies.allocation.gates import LearnedGates
from hylorada.studies.allocation.hypotheses import hypotheses
from hylorada.studies.components import REPEATED
from hylorada.studies.results import ArmRuns, FinishedRun, over_seeds
from hylorada.subspace.allocation import REST

RISK_UNIT = "bits per token"
SIDES = ("A", "B")


def conclude_allocation(study: Study, runs: Mapping[str, ArmRuns], ledger: str) -> Study:
    """Return the study with what its files and bounds came to, and its statements first."""
    arms = [
        msgspec.structs.replace(arm, allocation=arm_allocation(runs[arm.name], ledger))
        for arm in study.arms
    ]
    statements = hypotheses(asymmetric(study.comparisons), learned_gates(runs))
    said = [f"{one.name} ({one.claim}) is {one.label}: {one.sentence}" for one in statements]
    return msgspec.structs.replace(
        study,
        arms=arms,
        figures_data=figures(arms, runs),
        statements=statements,
        sentences=[*winners(arms), *said, *study.sentences],
    )


def arm_allocation(one: ArmRuns, ledger: str) -> Allocation:
    """Return how an arm divides its coordinates and what its files and bounds came to.

    Risks and bounds are in bits per token; values are means over seeds.
    """
    section, found = _section(one), [_certified(run) for run in one.runs]
    first, layers = found[0], found[0].allocation.layers
    norms = [line.gradient_norm.layers for run in one.runs for line in run.trace]
    gradients = FactorGradients(  # means over training and seeds
        A=[fmean(line[layer].A for line in norms) for layer in layers],
        B=[fmean(line[layer].B for line in norms) for layer in layers],
    )
    gains = [each.gain.bound for each in found if each.gain is not None]
    return Allocation(
        mode=section.allocation_mode,
        ratio=section.allocation_ratio if section.allocation_mode == "fixed" else None,
        budget=section.intrinsic_dim,
        share_of_b=_mean([each.allocation.share_of_b for each in found]),
        bits=_mean([each.bits for each in found]),
        paid_bits=_mean([each.paid_bits for each in found]),
        risk=over_seeds([each.risk for each in found]),
        risk_unquantised=over_seeds([each.risk_unquantised for each in found]),
        bound=_mean([each.bound for each in found]),
        complexity=_mean([each.complexity for each in found]),
        gain_bound=_mean(gains) if gains else None,
        vacuous=sum(each.vacuous for each in found),
        file_bytes=fmean(each.file_bytes for each in found),
        documents=first.documents,
        population=first.population,
        delta=first.delta,
        certificates=[f"{ledger}/{run.address.folder}/{CERTIFICATE}" for run in one.runs],
        layers=[layer_name(layer) for layer in layers] or None,
        gamma=[each.allocation.gamma for each in found] if layers else None,
        gradients=gradients if layers else None,
    )


def layer_name(layer: str) -> str:
    """Return what readers call a group: a layer by its number, or the head."""
    return "head" if layer == REST else f"layer {layer.rpartition('.')[2]}"


def asymmetric(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of asymmetric divisions with the equal one over all budgets."""
    known = [one for one in comparisons if one.against == EQUAL and one.arm in DIVISIONS]
    return [one for one in known if DIVISIONS[one.arm].question == ASYMMETRIC]


def learned_gates(runs: Mapping[str, ArmRuns]) -> list[LearnedGates]:
    """Return γ of every learned run, layers by depth."""
    return [
        LearnedGates(
            name=one.name,
            budget=_section(one).intrinsic_dim,
            seed=run.seed,
            layers=[layer_name(layer) for layer in _certified(run).allocation.layers],
            gamma=_certified(run).allocation.gamma,
        )
        for one in runs.values()
        if _section(one).allocation_mode == "learned"
        for run in one.runs
    ]


def winners(arms: Sequence[Arm]) -> list[str]:
    """Return for each budget which division has the lowest perplexity, bits and bound."""
    by_budget: dict[int, list[Arm]] = {}
    for arm in arms:
        if arm.name != REPEATED:
            by_budget.setdefault(_allocation(arm).budget, []).append(arm)
    said = []
    for budget, own in by_budget.items():
        base = next(arm for arm in own if division_of(arm.name) == EQUAL)
        perplexity = _lowest(own, base, lambda arm: _value(arm.perplexity), ".2f")
        bits = _lowest(own, base, lambda arm: _value(_allocation(arm).bits), ",.0f")
        bound = "and no bound is below that of a uniform guess"
        if telling := [arm for arm in own if not _allocation(arm).vacuous]:
            best = _lowest(telling, base, lambda arm: _value(_allocation(arm).bound), ".3f")
            chance = f"each bound with probability {100 * (1 - _allocation(base).delta):g} %"
            bound = f"the best certified bound {best} {RISK_UNIT}, {chance}"
        said.append(
            f"With {budget:,} coordinates, means over {len(base.runs)} seeds: the lowest "
            f"perplexity has {perplexity}, the fewest bits {bits}, {bound}."
        )
    return said


def _lowest(arms: Sequence[Arm], base: Arm, value: Callable[[Arm], float], form: str) -> str:
    """Return the division with the lowest value, and that of the equal one where it is another."""
    best = min(arms, key=value)
    beside = "" if best is base else f"; equal {value(base):{form}}"
    return f"{division_of(best.name)} ({value(best):{form}}{beside})"


def figures(arms: Sequence[Arm], runs: Mapping[str, ArmRuns]) -> FiguresData:
    """Return the data of the allocation figures."""
    shown = {arm.name: _allocation(arm) for arm in arms if arm.name != REPEATED}
    learned = {name: found for name, found in shown.items() if found.gamma}
    return FiguresData(
        risk_unit=RISK_UNIT,
        bits_risk=[
            BitsRisk(
                name=name,
                bits=found.bits.value,
                risk=found.risk.value,
                interval=found.risk.interval,
            )
            for name, found in shown.items()
        ],
        layer_gates=[
            NamedTable(
                name=name,
                rows=found.layers or [],
                columns=[f"seed {run.seed}" for run in runs[name].runs],
                weights=[list(row) for row in zip(*found.gamma or [], strict=True)],
            )
            for name, found in learned.items()
        ],
        gradient_norms=[
            NamedCurve(name=f"{side}, {name}", points=gradients(runs[name].runs, side))
            for name in learned
            for side in SIDES
        ],
        bound_parts=[_bound_parts(name, found) for name, found in shown.items()],
    )


def gradients(runs: Sequence[FinishedRun], side: str) -> list[Logged]:
    """Return steps and the norm of a factor's gradient, averaged over seeds."""
    by_step: dict[int, list[float]] = {}
    for line in (line for run in runs for line in run.trace):
        by_step.setdefault(line.step, []).append(getattr(line.gradient_norm, side))
    return [(step, fmean(norms)) for step, norms in sorted(by_step.items())]


def _bound_parts(name: str, found: Allocation) -> BoundParts:
    """Return what a bound is the sum of: all parts are means over the same documents and seeds."""
    before = _value(found.risk_unquantised)
    parts = {
        "empirical risk": before,
        "quantisation": _value(found.risk) - before,
        "complexity": _value(found.complexity),
    }
    return BoundParts(name=name, parts=[BoundPart(name=n, value=v) for n, v in parts.items()])


def _certified(run: FinishedRun) -> CertifiedRun:
    assert run.certified is not None, "every run of an allocation study has a certificate"
    return run.certified


def _section(one: ArmRuns) -> SubLoRASection:
    assert isinstance(one.arm.config.adapter, SubLoRASection)
    return one.arm.config.adapter


def _allocation(arm: Arm) -> Allocation:
    assert arm.allocation is not None
    return arm.allocation


def _value(found: SeedMean | None) -> float:
    assert found is not None
    assert found.value is not None
    return found.value


def _mean(values: Sequence[float]) -> SeedMean:
    return SeedMean(value=fmean(values), by_seed=list(values))
