"""A study from its plan to its file: register, tune, run, judge, check, write."""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from hylorada.errors import RunError, SpecError
from hylorada.experiments.assembly import load_data, token_store
from hylorada.experiments.config import SubLoRASection, TrainConfig
from hylorada.experiments.engines import open_engine
from hylorada.experiments.engines.board import Board
from hylorada.experiments.engines.tasks import Engine, Outcome, Task
from hylorada.experiments.job import Job, address
from hylorada.experiments.kept import tokenising
from hylorada.experiments.ledger import Ledger, open_ledger
from hylorada.experiments.run import environment
from hylorada.experiments.studies import STUDIES, StudyOptions, plan_of
from hylorada.experiments.studies.checks import self_checks
from hylorada.experiments.studies.judging import findings
from hylorada.experiments.studies.plan import ArmPlan, Plan
from hylorada.experiments.studies.records import ArmRecord, RunRecord, read_run
from hylorada.experiments.studies.registration import register
from hylorada.experiments.studies.summary import study_entry
from hylorada.experiments.studies.tuning import (
    Point,
    best,
    curve,
    grid,
    tuned_arms,
    with_losses,
    with_rates,
)
from hylorada.files import alone_in, write_atomically
from hylorada.models.pretrained import load_tokenizer
from hylorada.training.optimisation import OptimisationSpec

STUDY = "study.json"
FROZEN, AGAIN = "(frozen)", "(again)"  # tasks beside those of the arms


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a study works: its folder, the ledger of its runs, and the engine that runs them.

    Attributes:
        ledger: A folder or an fsspec URL; studies that share it share their runs.
        workers: Jobs at a time; None lets the engine choose.
    """

    out: Path
    ledger: str = "runs"
    engine: str = "local"
    workers: int | None = None
    command: str = ""

    @property
    def runs(self) -> str:
        """Return the ledger as every process finds it, wherever it was started."""
        if urlsplit(self.ledger).scheme:
            return self.ledger
        return str(Path(self.ledger).expanduser().absolute())


def compare(study: str, options: StudyOptions, place: Place, console: Console) -> dict[str, Any]:
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
        registration = register(plan, place.out)
        started = _now()
        with engine:
            tuned = progress.tune(engine)
            progress.run(engine, tuned)
            engine_words = engine.describe()
        records = progress.records(tuned)
        found = findings(tuned, records)
        frozen, again = progress.frozen(), progress.again(records[plan.baseline])
        entry = study_entry(tuned, registration, records, found, progress.curves, frozen)
        if (conclude := STUDIES[study].conclude) is not None:
            entry |= conclude(entry, records, place.ledger)
        verdicts = list(found.verdicts.values())
        checks = self_checks(list(records.values()), verdicts, again, progress.curves)
        entry |= {"command": place.command, "checks": checks}
        entry["provenance"] = progress.provenance(engine_words, records, started)
        write_atomically(place.out / STUDY, json.dumps(entry, indent=1) + "\n")
    return entry


@dataclass(slots=True)
class StudyInProgress:
    """A study under way: which tasks it has had done, and what came of them."""

    plan: Plan
    ledger: Ledger
    place: Place
    console: Console
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tasks: dict[tuple[str, int], Task] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    fingerprints: dict[str, str] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerBase | None = None

    def prepare(self) -> None:
        """Find model and text, and tokenise it, so that what is missing is said at once."""
        for arm in self.plan.arms:
            self._fingerprint(arm.config)

    # Tuning

    def tune(self, engine: Engine) -> Plan:
        """Return the plan with each arm's best rate, after searching them all."""
        if self.plan.tuning is None:
            return self.plan
        chosen = {}
        rates: dict[str, float] = {}
        for base in (True, False):  # component rates are searched at the chosen base rate
            arms = tuned_arms(self.plan, base=base)
            if not arms:
                continue
            for points in self._searched(engine, [grid(self.plan, arm, rates) for arm in arms]):
                winner = best(points)
                if winner is None:
                    raise RunError(
                        f"every learning rate of {points[0].arm} failed, the first with "
                        f"{self._reason(points[0])}; lower the grid or repair that"
                    )
                self.curves[winner.arm] = curve(points)
                chosen[winner.arm] = winner.job.config.optimisation
                rates[winner.arm] = winner.job.config.optimisation.learning_rate
        return with_rates(self.plan, chosen)

    def _reason(self, point: Point) -> str:
        """Return why a tuning run has no loss."""
        label = point.label
        errors = [one.error for one in self.outcomes if one.task.label == label and one.error]
        return errors[0] if errors else "a loss that is not a number"

    def _searched(self, engine: Engine, grids: Sequence[list[Point]]) -> list[list[Point]]:
        points = [point for one in grids for point in one]
        tasks = [self._task(point.job, point.label) for point in points]
        outcomes = self._carry_out(engine, tasks, "tuning")
        self._raise_if_all_were_refused(outcomes)
        by_job = {outcome.task.address.id: outcome for outcome in outcomes}
        found = [by_job[task.address.id] for task in tasks]
        measured = iter(with_losses(points, found, self.ledger))
        return [[next(measured) for _ in one] for one in grids]

    # Running

    def run(self, engine: Engine, plan: Plan) -> None:
        """Have every arm run with every seed, and what the self-checks need."""
        for seed in plan.seeds:
            for arm in plan.arms:
                if not arm.is_frozen:
                    self.tasks[arm.name, seed] = self._arm_task(arm, seed)
        first, base = plan.seeds[0], plan.arm(plan.baseline)
        for arm in plan.arms:
            if arm.is_frozen:
                self.tasks[arm.name, first] = self._arm_task(arm, first)
        self.tasks[FROZEN, first] = self._arm_task(_without_adapter(base), first)
        again = replace(self._arm_task(base, first).job, replica=1, certificate=None)
        self.tasks[AGAIN, first] = self._task(again, "the baseline again")
        outcomes = self._carry_out(engine, self.tasks.values(), "running")
        if failed := [outcome for outcome in outcomes if outcome.state == "failed"]:
            self._raise_if_all_were_refused(outcomes)
            raise RunError(
                f"{len(failed)} of {len(outcomes)} runs failed, first {failed[0].task.label}: "
                f"{failed[0].error}; the same command tries them again"
            )

    def _carry_out(self, engine: Engine, tasks: Iterable[Task], phase: str) -> list[Outcome]:
        """Return one outcome a job; the same job may be wanted under several names."""
        unique = {task.address.id: task for task in tasks}
        with Board(self.console, phase, len(unique)) as board:
            outcomes = engine.run(list(unique.values()), self.place.runs, board)
        self.outcomes += outcomes
        return outcomes

    @staticmethod
    def _raise_if_all_were_refused(outcomes: Sequence[Outcome]) -> None:
        """Raise the reason at once where every job was refused for it."""
        errors = [outcome.error or "" for outcome in outcomes]
        if all(error.startswith("SpecError: ") for error in errors):
            raise SpecError(errors[0].removeprefix("SpecError: "))

    def _arm_task(self, arm: ArmPlan, seed: int) -> Task:
        config = replace(arm.config, training=replace(arm.config.training, seed=seed))
        job = Job(
            config=config,
            evaluation=arm.evaluation,
            repetition=arm.repetition,
            certificate=None if arm.is_frozen else arm.certificate,
        )
        return self._task(job, f"{arm.name}, seed {seed}")

    def _task(self, job: Job, label: str) -> Task:
        fingerprint = self._fingerprint(job.config)
        return Task(job=job, address=address(job, fingerprint), label=label)

    def _fingerprint(self, config: TrainConfig) -> str:
        """Return the fingerprint of a job's text, which is tokenised here, before any worker."""
        key = json.dumps(config.as_dict()["data"])
        if key not in self.fingerprints:
            if self.tokenizer is None:
                self.tokenizer = load_tokenizer(config.model.full_source())
            with tokenising():
                self.fingerprints[key] = load_data(config, self.tokenizer).fingerprint
                token_store(config.data, "test", self.tokenizer, progress=False)
        return self.fingerprints[key]

    # Results

    def records(self, plan: Plan) -> dict[str, ArmRecord]:
        """Return the runs of every arm, read from the ledger."""
        return {arm.name: ArmRecord(arm, tuple(self._runs(arm, plan))) for arm in plan.arms}

    def frozen(self) -> RunRecord:
        """Return the frozen model's record."""
        return self._read(FROZEN, self.plan.seeds[0])

    def again(self, baseline: ArmRecord) -> tuple[RunRecord, RunRecord]:
        """Return the baseline's first run, and the same run done again."""
        return baseline.runs[0], self._read(AGAIN, self.plan.seeds[0])

    def provenance(
        self, engine: str, records: dict[str, ArmRecord], started: str
    ) -> dict[str, Any]:
        """Return versions, hardware, text, and how many runs were reused or failed.

        A failed run has no result, such as a rate at which training diverged; an attempt that
        failed before another one succeeded was `repeated`.
        """
        about = environment()
        ended = {outcome.task.address.id: outcome for outcome in self.outcomes}
        states = [outcome.state for outcome in ended.values()]
        done = [one.task.address for one in ended.values() if one.state != "failed"]
        base = records[self.plan.baseline].runs[0]
        return {
            "packages": about["packages"] | {"python": about["python"]},
            "commit": about["commit"],
            "hardware": ", ".join(about["accelerators"]) or f"{about['cpus']} CPU cores",
            "data_fingerprint": f"{base.result['data']}/{base.evaluation['test']['fingerprint']}",
            "started": started,
            "finished": _now(),
            "runs": len(ended),
            "reused": states.count("reused"),
            "failed": states.count("failed"),
            "repeated": sum(len(self.ledger.failures(address)) for address in done),
            "engine": engine,
        }

    def _runs(self, arm: ArmPlan, plan: Plan) -> Iterator[RunRecord]:
        for seed in plan.seeds[:1] if arm.is_frozen else plan.seeds:
            yield self._read(arm.name, seed)

    def _read(self, name: str, seed: int) -> RunRecord:
        return read_run(self.ledger, self.tasks[name, seed].address, seed)


def _without_adapter(arm: ArmPlan) -> ArmPlan:
    adapter = replace(arm.config.adapter, method="none")
    config = replace(
        arm.config, adapter=adapter, sublora=SubLoRASection(), optimisation=OptimisationSpec()
    )
    return replace(arm, name="frozen", config=config)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
