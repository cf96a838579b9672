"""A study from its plan to its file: register, tune, run, judge, check, write."""

import errno
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from hylorada.errors import RunError, SpecError
from hylorada.files import Kind, alone_in, parsed_record, write_record
from hylorada.jobs.assembly import adapter_config, load_data, token_store
from hylorada.jobs.engine import Board, Engine, Outcome, Task, open_engine
from hylorada.jobs.ledger import Ledger, open_ledger
from hylorada.jobs.pipeline import Job, address
from hylorada.jobs.run import METRICS, RESULT, environment
from hylorada.models.pretrained import load_tokenizer
from hylorada.records.certificates import CertifiedRun
from hylorada.records.runs import RunEvaluation, RunResult, TraceLine
from hylorada.records.studies import Provenance, RateGrids, Study, TriedRate
from hylorada.specs.adapters import AdapterSection
from hylorada.specs.run import OptimisationSpec, RunConfig
from hylorada.specs.study import StudyOptions, StudyPlace
from hylorada.studies.checks import self_checks
from hylorada.studies.definitions import STUDIES, plan_of
from hylorada.studies.plan import ArmPlan, Plan, register
from hylorada.studies.results import ArmRuns, FinishedRun, findings, study_record
from hylorada.subspace.trace import TRACE

STUDY = "study.json"
FROZEN, AGAIN = "(frozen)", "(again)"  # tasks beside those of the arms


def compare(study: str, options: StudyOptions, place: StudyPlace, console: Console) -> Study:
    """Carry out a study and return what its file holds.

    Started again, it goes on where it stopped; finished runs are never repeated.
    """
    if place.out.is_file():  # said before any text is tokenised
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place.out))
    plan = plan_of(study, options)
    engine = open_engine(place.engine, place.workers)
    progress = StudyInProgress(plan, open_ledger(place.runs), place, console)
    progress.prepare()
    with alone_in(place.out, "a study"):
        registered = register(plan, place.out)
        started = _now()
        with engine:
            tuned = progress.tune(engine)
            progress.run(engine, tuned)
            engine_words = engine.describe()
        runs = progress.arm_runs(tuned)
        found = findings(tuned, runs)
        frozen = progress.read(FROZEN, plan.seeds[0])
        record = study_record(tuned, registered, runs, found, progress.tried, frozen)
        if (conclude := STUDIES[study].conclude) is not None:
            record = conclude(record, runs, place.ledger)
        again = runs[plan.baseline].runs[0], progress.read(AGAIN, plan.seeds[0])
        verdicts = list(found.verdicts.values())
        record = msgspec.structs.replace(
            record,
            command=place.command,
            checks=self_checks(list(runs.values()), verdicts, again, progress.tried),
            provenance=progress.provenance(engine_words, runs[plan.baseline], started),
        )
        write_record(place.out / STUDY, record)
    return record


@dataclass(slots=True)
class StudyInProgress:
    """A study under way: which tasks it has had done, and what came of them."""

    plan: Plan
    ledger: Ledger
    place: StudyPlace
    console: Console
    tried: dict[str, list[TriedRate]] = field(default_factory=dict)
    tasks: dict[tuple[str, int], Task] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerBase | None = None

    def prepare(self) -> None:
        """Check adapters, find model and text and tokenise it, so that faults are said at once."""
        for arm in self.plan.arms:
            adapter_config(arm.config.adapter)
        for arm in self.plan.arms:
            self._fingerprint(arm.config)

    # Tuning

    def tune(self, engine: Engine) -> Plan:
        """Return the plan with each arm's best rate, after searching them all."""
        if self.plan.tuning is None:
            return self.plan
        chosen: dict[str, OptimisationSpec] = {}
        rates: dict[str, float] = {}
        for base in (True, False):  # component rates are searched at the chosen base rate
            arms = tuned_arms(self.plan, base=base)
            grids = [grid(self.plan.tuning, arm, rates) for arm in arms]
            tasks = [[self._task(trial.job, trial.label) for trial in trials] for trials in grids]
            if tasks:
                wanted = chain.from_iterable(tasks)
                _raise_if_all_were_refused(self._carry_out(engine, wanted, "tuning"))
            for trials, own in zip(grids, tasks, strict=True):
                outcomes = [self.outcomes[task.address.id] for task in own]
                done = [with_loss(*one, self.ledger) for one in zip(trials, outcomes, strict=True)]
                winner = best(done)
                if winner is None:
                    reason = done[0].error or "a loss that is not a number"
                    raise RunError(
                        f"every learning rate of {done[0].arm} failed, the first with {reason}; "
                        "lower the grid or repair that"
                    )
                self.tried[winner.arm] = tried_rates(done)
                chosen[winner.arm] = winner.job.config.optimisation
                rates[winner.arm] = winner.job.config.optimisation.learning_rate
        return with_rates(self.plan, chosen)

    # Running

    def run(self, engine: Engine, plan: Plan) -> None:
        """Have every arm run with every seed, and what the self-checks need."""
        first, base = plan.seeds[0], plan.arm(plan.baseline)
        for seed in plan.seeds:
            for arm in plan.arms:
                if not arm.is_frozen or seed == first:  # frozen, one seed says it all
                    self.tasks[arm.name, seed] = self._arm_task(arm, seed)
        unadapted = replace(base.config, adapter=AdapterSection(), optimisation=OptimisationSpec())
        reference = replace(base, name="frozen", config=unadapted)
        self.tasks[FROZEN, first] = self._arm_task(reference, first)
        again = replace(self.tasks[base.name, first].job, replica=1, certificate=None)
        self.tasks[AGAIN, first] = self._task(again, "the baseline again")
        outcomes = self._carry_out(engine, self.tasks.values(), "running")
        if failed := [outcome for outcome in outcomes if outcome.state == "failed"]:
            _raise_if_all_were_refused(outcomes)
            raise RunError(
                f"{len(failed)} of {len(outcomes)} runs failed, first {failed[0].task.label}: "
                f"{failed[0].error}; the same command tries them again"
            )

    def _carry_out(self, engine: Engine, tasks: Iterable[Task], phase: str) -> list[Outcome]:
        """Return one outcome a job; the same job may be wanted under several names."""
        unique = {task.address.id: task for task in tasks}
        with Board(self.console, phase, len(unique)) as board:
            outcomes = engine.run(list(unique.values()), self.place.runs, board)
        self.outcomes |= dict(zip(unique, outcomes, strict=True))
        return outcomes

    def _arm_task(self, arm: ArmPlan, seed: int) -> Task:
        job = Job(
            config=replace(arm.config, training=replace(arm.config.training, seed=seed)),
            evaluation=arm.evaluation,
            repetition=arm.repetition,
            certificate=None if arm.is_frozen else arm.certificate,
        )
        return self._task(job, f"{arm.name}, seed {seed}")

    def _task(self, job: Job, label: str) -> Task:
        fingerprint = self._fingerprint(job.config)
        return Task(job=job, address=address(job, fingerprint), label=label)

    def _fingerprint(self, config: RunConfig) -> str:
        """Return the fingerprint of a job's text, which is tokenised here, before any worker."""
        key = repr(config.data)
        if key not in self.fingerprints:
            if self.tokenizer is None:
                self.tokenizer = load_tokenizer(config.model.full_source())
            self.fingerprints[key] = load_data(config, self.tokenizer).fingerprint
            token_store(config.data, "test", self.tokenizer)
        return self.fingerprints[key]

    # Results

    def arm_runs(self, plan: Plan) -> dict[str, ArmRuns]:
        """Return the runs of every arm, read from the ledger."""
        return {
            arm.name: ArmRuns(
                arm, tuple(self.read(name, seed) for name, seed in self.tasks if name == arm.name)
            )
            for arm in plan.arms
        }

    def read(self, name: str, seed: int) -> FinishedRun:
        """Return a run of an arm, or one beside the arms, from the ledger."""
        address = self.tasks[name, seed].address

        def text(name: str) -> str:
            return self.ledger.text(address, name) or ""

        def record(name: str, kind: type[Kind]) -> Kind:
            where = f"{address.folder}/{name}"
            return parsed_record(text(name), kind, where, "start the study again")

        result, evaluation, *certified = address.files
        logged = [msgspec.json.decode(line) for line in text(METRICS).splitlines()]
        trace = [parsed_record(line, TraceLine, TRACE) for line in text(TRACE).splitlines()]
        return FinishedRun(
            seed=seed,
            address=address,
            result=record(result, RunResult),
            evaluation=record(evaluation, RunEvaluation),
            losses=[(line["step"], line["loss"]) for line in logged if "loss" in line],
            certified=record(certified[0], CertifiedRun) if certified else None,
            trace=tuple(trace),
        )

    def provenance(self, engine: str, baseline: ArmRuns, started: str) -> Provenance:
        """Return versions, hardware, text, and how many runs were reused or failed.

        A failed run has no result, such as a rate at which training diverged; an attempt that
        failed before another one succeeded was `repeated`.
        """
        about, first = environment(), baseline.runs[0]
        states = [outcome.state for outcome in self.outcomes.values()]
        done = [one.task.address for one in self.outcomes.values() if one.state != "failed"]
        return Provenance(
            packages=about.packages | {"python": about.python},
            commit=about.commit,
            hardware=", ".join(about.accelerators) or f"{about.cpus} CPU cores",
            data_fingerprint=f"{first.result.data}/{first.evaluation.test.fingerprint}",
            started=started,
            finished=_now(),
            runs=len(states),
            reused=states.count("reused"),
            failed=states.count("failed"),
            repeated=sum(len(self.ledger.failures(address)) for address in done),
            engine=engine,
        )


def _raise_if_all_were_refused(outcomes: Sequence[Outcome]) -> None:
    """Raise the reason at once where every job was refused for it."""
    errors = [outcome.error or "" for outcome in outcomes]
    if all(error.startswith("SpecError: ") for error in errors):
        raise SpecError(errors[0].removeprefix("SpecError: "))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# Tuning: the same budget for every arm, a grid of learning rates on text that is not the test text.
# First the arms that have only the base rate choose it. Then every arm that adds a component with
# a rate of its own chooses that one, at the base rate that its baseline has chosen.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One rate of an arm's grid: what was set, the job that tries it, and what came of it.

    Attributes:
        loss: On the tuning text, in nats per token.
        error: Why there is no loss.
    """

    arm: str
    multiple: float
    job: Job
    loss: float | None = None
    error: str | None = None

    @property
    def label(self) -> str:
        """Return what people call it."""
        return f"{self.arm} ×{self.multiple:g}"

    @property
    def rate(self) -> float:
        """Return the highest learning rate of what was tried, per step."""
        optimisation = self.job.config.optimisation
        component = optimisation.landmark_multiplier or 1.0
        if self.job.config.adapter.method == "sublora":
            component = optimisation.subspace_multiplier
        elif optimisation.position_bias_multiplier != 1.0:
            component = optimisation.position_bias_multiplier
        return optimisation.learning_rate * component


def tuned_arms(plan: Plan, *, base: bool) -> list[ArmPlan]:
    """Return the arms that search the base rate, or those that search a component's."""
    searching = [arm for arm in plan.arms if not arm.is_frozen and arm.repetition == 0]
    return [arm for arm in searching if (arm.tuned == "learning_rate") == base]


def grid(grids: RateGrids, arm: ArmPlan, rates: Mapping[str, float]) -> list[Trial]:
    """Return the trials of an arm; `rates` holds the base rates chosen so far."""
    start = arm.config.optimisation
    changes: dict[float, dict[str, Any]]
    if arm.tuned == "learning_rate":
        changes = {m: {"learning_rate": start.learning_rate * m} for m in grids.base}
    else:
        rate = rates.get(arm.baseline or arm.name, start.learning_rate)
        changes = {m: {"learning_rate": rate, arm.tuned: m} for m in grids.component}
    shared = replace(arm.config, training=replace(arm.config.training, seed=grids.seed))
    configs = {m: replace(shared, optimisation=replace(start, **changes[m])) for m in changes}
    return [Trial(arm=arm.name, multiple=m, job=Job(config=configs[m])) for m in configs]


def with_rates(plan: Plan, chosen: Mapping[str, OptimisationSpec]) -> Plan:
    """Return the plan with the rates that tuning chose; a repetition has those of its baseline."""
    arms = []
    for arm in plan.arms:
        same = arm.baseline if arm.baseline and arm.repetition else arm.name
        steps = chosen.get(same, arm.config.optimisation)
        arms.append(replace(arm, config=replace(arm.config, optimisation=steps)))
    return replace(plan, arms=tuple(arms))


def with_loss(trial: Trial, outcome: Outcome, ledger: Ledger) -> Trial:
    """Return the trial with its validation loss; a training that diverged has none."""
    if outcome.state == "failed":
        return replace(trial, error=outcome.error)
    text = ledger.text(outcome.task.address, RESULT) or ""
    return replace(trial, loss=parsed_record(text, RunResult, trial.label).valid_loss)


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial of the lowest loss, or None if none has one."""
    found = [trial for trial in trials if trial.loss is not None and math.isfinite(trial.loss)]
    return min(found, key=lambda trial: trial.loss or 0.0, default=None)


def tried_rates(trials: Sequence[Trial]) -> list[TriedRate]:
    """Return what an arm tried, as a study records it."""
    chosen = best(trials)
    return [
        TriedRate(rate=one.rate, multiple=one.multiple, loss=one.loss, chosen=one is chosen)
        for one in trials
    ]
