"""What the runs of a study came to: averaged over seeds, judged in pairs, and its record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean

import numpy as np
from scipy.special import ndtri, stdtrit

from hylorada.errors import SpecError
from hylorada.evaluation.statistics import Floats, params_per_percent, ratio_estimate
from hylorada.jobs.ledger import Address
from hylorada.records import studies as records
from hylorada.records.certificates import CertifiedRun, RiskEstimate
from hylorada.records.evaluations import Estimate
from hylorada.records.runs import RunCost, RunEvaluation, RunResult, TraceLine
from hylorada.records.studies import Comparison, Logged, SeedMean, TriedRate
from hylorada.studies.plan import ArmPlan, Contrast, Plan
from hylorada.verdicts import Arm, Judgement, Verdict, judge

NORMAL_REACH = float(ndtri(0.975))
JUDGED = [name for name in Verdict.__struct_fields__ if name not in ("arm", "role")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """One finished job: its run's result, what was measured, and what was logged.

    Attributes:
        losses: Steps and training losses in nats.
        certified: What its compressed file and certificate came to, if it has them.
        trace: Gates and gradient norms of a subspace over the training.
    """

    seed: int
    address: Address
    result: RunResult
    evaluation: RunEvaluation
    losses: list[Logged]
    certified: CertifiedRun | None = None
    trace: tuple[TraceLine, ...] = ()

    @property
    def log_perplexity(self) -> float:
        """Return the mean test loss, in nats per token."""
        return self.evaluation.ppl.loss.value


@dataclass(frozen=True)  # without slots: the mean over seeds is kept once computed
class ArmRuns:
    """The runs of one arm, in the order of the seeds."""

    arm: ArmPlan
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """Return the arm's name."""
        return self.arm.name

    @property
    def parameters(self) -> int:
        """Return how many numbers were trained."""
        return self.runs[0].result.trainable_parameters

    @property
    def log_perplexities(self) -> tuple[float, ...]:
        """Return the mean test loss of each seed, in nats per token."""
        return tuple(run.log_perplexity for run in self.runs)

    @cached_property
    def cluster_nats(self) -> Floats:
        """Return the summed loss of each document (or block), averaged over seeds."""
        return np.mean([run.evaluation.clusters.nats for run in self.runs], axis=0)

    @property
    def cluster_tokens(self) -> Floats:
        """Return the scored tokens of each document (or block)."""
        return np.array(self.runs[0].evaluation.clusters.tokens, dtype=np.float64)

    def perplexity(self) -> SeedMean:
        """Return the perplexity of each seed and their mean, with the noise of text and seeds."""
        mean = over_seeds([run.evaluation.ppl.loss for run in self.runs])
        assert mean.value is not None
        ends = mean.interval
        return SeedMean(
            value=math.exp(mean.value),
            interval=None if ends is None else (math.exp(ends[0]), math.exp(ends[1])),
            by_seed=[math.exp(value) for value in self.log_perplexities],
        )


def over_seeds(estimates: Sequence[Estimate | RiskEstimate]) -> SeedMean:
    """Return the mean over seeds with a 95 % interval for the noise of the text and of the seeds.

    All seeds are measured on one text, so the text's share of the noise does not average out. The
    seeds' share is that of a t interval; of a single seed it is not known.
    """
    values = np.array([estimate.value for estimate in estimates], dtype=np.float64)
    errors = [estimate.standard_error for estimate in estimates]
    value = float(values.mean())
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return SeedMean(value=value, by_seed=values.tolist())
    reach = NORMAL_REACH * float(np.mean(known))
    if len(values) > 1:
        seeds = math.sqrt(float(values.var(ddof=1)) / len(values))
        reach = math.hypot(reach, float(stdtrit(len(values) - 1, 0.975)) * seeds)
    return SeedMean(value=value, interval=(value - reach, value + reach), by_seed=values.tolist())


def paired_error(arms: Sequence[ArmRuns], against: Sequence[ArmRuns]) -> float:
    """Return the standard error over test documents of a mean paired difference, in nats."""
    tokens = arms[0].cluster_tokens
    difference = np.mean([arm.cluster_nats for arm in arms], axis=0) - np.mean(
        [arm.cluster_nats for arm in against], axis=0
    )
    error = ratio_estimate(difference, tokens).standard_error
    if error is None:
        raise SpecError("a verdict needs at least two test documents or blocks; raise num_test")
    return error


# Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a study says: a verdict on every judged arm, comparisons, and sentences."""

    verdicts: Mapping[str, Verdict]
    comparisons: tuple[Comparison, ...]
    sentences: tuple[str, ...]


def findings(plan: Plan, runs: Mapping[str, ArmRuns]) -> Findings:
    """Return the verdicts on all arms, each judged beside those that share its baseline.

    All verdicts together err with the plan's probability, and so do all contrasts of a question.
    """
    groups: dict[str, list[str]] = {}
    for arm in plan.arms:
        if arm.baseline is not None:
            groups.setdefault(arm.baseline, []).append(arm.name)
    judged = sum(map(len, groups.values()))
    judgements = {
        base: _judged(plan, runs[base], [runs[name] for name in names], len(names) / judged)
        for base, names in groups.items()
    }
    if len(judgements) == 1:
        sentences = list(next(iter(judgements.values())).sentences)
    else:
        said = {base: " ".join(found.sentences) for base, found in judgements.items()}
        sentences = [f"Against {base}: {words}" for base, words in said.items()]
    found = judgements.values()
    return Findings(
        verdicts={v.arm: v for judgement in found for v in judgement.verdicts},
        comparisons=(
            *(one for judgement in found for one in judgement.comparisons),
            *(contrast(plan, runs, one) for one in plan.contrasts),
        ),
        sentences=tuple(sentences),
    )


def contrast(plan: Plan, runs: Mapping[str, ArmRuns], wanted: Contrast) -> Comparison:
    """Return a planned comparison of the mean of some arms with that of others."""
    arms, against = ([runs[name] for name in names] for names in (wanted.arms, wanted.against))
    together = sum(other.question == wanted.question for other in plan.contrasts)
    verdict = judge(
        [
            Arm(name=wanted.against_name, role="baseline", log_perplexities=_mean(against)),
            Arm(name=wanted.name, role="candidate", log_perplexities=_mean(arms)),
        ],
        baseline=wanted.against_name,
        evaluation_errors={wanted.name: paired_error(arms, against)},
        documents=int(against[0].cluster_tokens.size),
        seeds=plan.seeds,
        spec=plan.thresholds.part(1 / together),
    ).verdict(wanted.name)
    return Comparison(
        arm=wanted.name,
        against=wanted.against_name,
        gain=verdict.gain,
        label=verdict.label,
        sentence=verdict.sentence,
    )


def _judged(plan: Plan, base: ArmRuns, others: Sequence[ArmRuns], share: float) -> Judgement:
    candidates = [one for one in others if one.arm.role == "candidate"]
    controls = [one for one in others if one.arm.role == "control"]
    return judge(
        [
            Arm(
                name=one.name,
                log_perplexities=one.log_perplexities,
                role="baseline" if one is base else one.arm.role,
                parameters=one.parameters,
            )
            for one in (base, *others)
        ],
        baseline=base.name,
        evaluation_errors={one.name: paired_error([one], [base]) for one in others},
        comparison_errors={
            (candidate.name, control.name): paired_error([candidate], [control])
            for candidate in candidates
            for control in controls
        },
        documents=int(base.cluster_tokens.size),
        seeds=plan.seeds,
        spec=plan.thresholds.part(share),
    )


def _mean(arms: Sequence[ArmRuns]) -> tuple[float, ...]:
    means = np.mean([one.log_perplexities for one in arms], axis=0)
    return tuple(float(value) for value in means)


# The study's record


def study_record(
    plan: Plan,
    registered: records.RegisteredPlan,
    runs: Mapping[str, ArmRuns],
    found: Findings,
    tuning: Mapping[str, list[TriedRate]],
    frozen: FinishedRun,
) -> records.Study:
    """Return the study's record without its checks, command and provenance."""
    return records.Study(
        study=plan.study,
        title=plan.title,
        sentences=list(found.sentences),
        plan=registered,
        setting=setting_record(runs[plan.baseline]),
        frozen=records.Frozen(perplexity=math.exp(frozen.log_perplexity)),
        arms=[
            arm_record(
                one,
                None if one.arm.baseline is None else runs[one.arm.baseline],
                found.verdicts.get(one.name),
                tuning.get(one.name),
            )
            for one in runs.values()
        ],
        comparisons=list(found.comparisons),
    )


def arm_record(
    one: ArmRuns, base: ArmRuns | None, verdict: Verdict | None, tuning: list[TriedRate] | None
) -> records.Arm:
    """Return what a study says of one arm."""
    added = None if base is None else one.parameters - base.parameters
    price = None
    if base is not None and added is not None and added > 0:
        without, with_it = (math.exp(fmean(arm.log_perplexities)) for arm in (base, one))
        price = params_per_percent(added, without, with_it)
    judged = {} if verdict is None else {name: getattr(verdict, name) for name in JUDGED}
    return records.Arm(
        name=one.name,
        role=one.arm.role,
        baseline=one.arm.baseline,
        description=one.arm.description,
        trainable_parameters=one.parameters,
        added_parameters=added,
        perplexity=one.perplexity(),
        params_per_percent=price,
        **judged,
        cost=cost(one.runs),
        runs=[records.RunName(seed=run.seed, id=run.address.folder) for run in one.runs],
        training_curve={str(run.seed): run.losses for run in one.runs},
        position_curve=position_curve(one.runs),
        depth_curve=depth_curve(one.runs),
        boundaries=boundaries(one),
        gates=one.runs[0].evaluation.gates,
        tuning=tuning,
        optimisation=asdict(one.arm.config.optimisation),
    )


def cost(runs: Sequence[FinishedRun]) -> RunCost:
    """Return the mean time and the largest size over seeds; None where it was not measured."""
    measured: dict[str, list[float]] = {
        name: [value for run in runs if (value := getattr(run.evaluation.cost, name)) is not None]
        for name in RunCost.__struct_fields__
    }
    seconds, speeds = measured["train_seconds"], measured["tokens_per_second"]
    return RunCost(
        train_seconds=fmean(seconds) if seconds else None,
        tokens_per_second=fmean(speeds) if speeds else None,
        peak_memory_bytes=max(measured["peak_memory_bytes"], default=None),
        adapter_bytes=max(measured["adapter_bytes"], default=None),
    )


def position_curve(runs: Sequence[FinishedRun]) -> list[records.CurvePoint]:
    """Return the loss by position in nats per token, averaged over seeds."""
    curves = zip(*(run.evaluation.position_curve.curve for run in runs), strict=True)
    means = [(points[0], over_seeds(points)) for points in curves]
    return [
        records.CurvePoint(start=at.start, end=at.end, value=mean.value, interval=mean.interval)
        for at, mean in means
    ]


def depth_curve(runs: Sequence[FinishedRun]) -> list[records.DepthMean] | None:
    """Return the answer's loss by depth of the evidence, averaged over seeds, if all have it."""
    curves = [run.evaluation.evidence.curve for run in runs if run.evaluation.evidence is not None]
    if len(curves) < len(runs):
        return None
    means = [(points[0], over_seeds(points)) for points in zip(*curves, strict=True)]
    return [
        records.DepthMean(depth=at.depth, value=mean.value, interval=mean.interval)
        for at, mean in means
    ]


def boundaries(one: ArmRuns) -> records.Boundaries | None:
    """Return the learned boundaries of each seed beside the uniform ones, in tokens."""
    learned = [run.evaluation.boundaries for run in one.runs]
    known = [found for found in learned if found is not None]
    if len(known) < len(learned):
        return None
    context, buckets = one.arm.config.data.length, len(known[0]) + 1
    return records.Boundaries(
        learned=known,
        uniform=[context * index / buckets for index in range(1, buckets)],
        context=context,
    )


def setting_record(baseline: ArmRuns) -> records.Setting:
    """Return the model, the text and the training that all arms share."""
    config, first = baseline.arm.config, baseline.runs[0]
    return records.Setting(
        model=config.model.source,
        data=config.data.source,
        length=config.data.length,
        num_train=config.data.num_train,
        num_val=config.data.num_val,
        epochs=config.training.epochs,
        batch_size=config.training.batch_size,
        precision=config.training.precision,
        learning_rate=config.optimisation.learning_rate,
        num_landmarks=getattr(config.adapter, "num_landmarks", None),
        steps=first.result.steps,
        valid_tokens=first.result.valid_tokens,
        test_tokens=first.evaluation.ppl.tokens,
        test_documents=first.evaluation.test.documents,
        independent_unit=first.evaluation.clusters.unit,
        valid_share=first.evaluation.valid_share,
        replace=dict(config.data.replace),
    )
