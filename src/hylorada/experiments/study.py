"""A study from its plan to its file: register, tune, run, judge, check, write."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from transformers import PreTrainedTokenizerBase

from hylorada.errors import RunError, SpecError
from hylorada.experiments.assembly import load_data, token_store
from hylorada.experiments.checks import self_checks
from hylorada.experiments.config import SubLoRASection, TrainConfig
from hylorada.experiments.engines import open_engine
from hylorada.experiments.engines.board import Board
from hylorada.experiments.engines.work import Engine, Outcome, Task
from hylorada.experiments.judging import findings
from hylorada.experiments.kept import tokenising
from hylorada.experiments.ledger import Ledger, open_ledger
from hylorada.experiments.pipeline import Address, Job, address
from hylorada.experiments.plan import ArmPlan, Plan, register
from hylorada.experiments.records import ArmRecord, RunRecord, read_run
from hylorada.experiments.run import environment
from hylorada.experiments.studies import STUDIES, StudyOptions, plan_of
from hylorada.experiments.summary import boundary_lines, study_entry, study_table
from hylorada.experiments.tables import allocation_table
from hylorada.experiments.tuning import (
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
    plan = plan_of(study, options)
    engine = open_engine(place.engine, place.workers)
    carried = Carried(plan, open_ledger(place.runs), place, console)
    carried.prepare()
    with alone_in(place.out, "a study"):
        registration = register(plan, place.out)
        started = _now()
        with engine:
            tuned = carried.tune(engine)
            carried.run(engine, tuned)
            engine_words = engine.describe()
        records = carried.records(tuned)
        found = findings(tuned, records)
        frozen, again = carried.frozen(), carried.again(records[plan.baseline])
        entry = study_entry(tuned, registration, records, found, carried.curves, frozen)
        if (conclude := STUDIES[study].conclude) is not None:
            entry |= conclude(entry, records, place.ledger)
        verdicts = list(found.verdicts.values())
        checks = self_checks(list(records.values()), verdicts, again, carried.curves)
        entry |= {"command": place.command, "checks": checks}
        entry["provenance"] = carried.provenance(engine_words, records, started)
        write_atomically(place.out / STUDY, json.dumps(entry, indent=1) + "\n")
    return entry


def show(study: dict[str, Any], console: Console) -> None:
    """Print the table, the boundaries, the checks that failed, and the answer."""
    console.print(study_table(study))
    if any(arm.get("allocation") for arm in study["arms"]):
        console.print(allocation_table(study))
    for line in boundary_lines(study):
        console.print(line, markup=False, highlight=False)
    for check in study["checks"]:
        if not check["passed"]:
            console.print(f"CHECK FAILED: {check['name']}: {check['detail']}", markup=False)
    together = "\n".join if study.get("statements") else " ".join
    console.print(together(study["sentences"]), markup=False, highlight=False)


@dataclass(slots=True)
class Carried:
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
        self._require_some(outcomes)
        measured = iter(with_losses(points, outcomes, self.ledger))
        return [[next(measured) for _ in one] for one in grids]

    # Running

    def run(self, engine: Engine, plan: Plan) -> None:
        """Have every arm run with every seed, and what the self-checks need."""
        self.tasks = {}
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
        # One task an address: the same job may be wanted under two names.
        unique = {task.address.id: task for task in self.tasks.values()}
        outcomes = self._carry_out(engine, list(unique.values()), "running")
        if failed := [outcome for outcome in outcomes if outcome.state == "failed"]:
            self._require_some(outcomes)
            raise RunError(
                f"{len(failed)} of {len(outcomes)} runs failed, first {failed[0].task.label}: "
                f"{failed[0].error}; the same command tries them again"
            )

    def _carry_out(self, engine: Engine, tasks: Sequence[Task], phase: str) -> list[Outcome]:
        with Board(self.console, phase, len(tasks)) as board:
            outcomes = engine.run(tasks, self.place.runs, board)
        self.outcomes += outcomes
        return outcomes

    @staticmethod
    def _require_some(outcomes: Sequence[Outcome]) -> None:
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
        """Return versions, hardware, text and how many runs were new, reused or failed."""
        about = environment()
        addresses: dict[str, Address] = {o.task.address.id: o.task.address for o in self.outcomes}
        states = [outcome.state for outcome in self.outcomes]
        base = records[self.plan.baseline].runs[0]
        return {
            "packages": about["packages"] | {"python": about["python"]},
            "commit": about["commit"],
            "hardware": ", ".join(about["accelerators"]) or f"{about['cpus']} CPU cores",
            "data_fingerprint": f"{base.result['data']}/{base.evaluation['test']['fingerprint']}",
            "started": started,
            "finished": _now(),
            "runs": len(addresses),
            "reused": states.count("reused"),
            "failed": sum(len(self.ledger.failures(one)) for one in addresses.values()),
            "engine": engine,
        }

    def _runs(self, arm: ArmPlan, plan: Plan) -> Iterator[RunRecord]:
        for seed in plan.seeds[:1] if arm.is_frozen else plan.seeds:
            yield self._read(arm.name, seed)

    def _read(self, name: str, seed: int) -> RunRecord:
        return read_run(self.ledger, self.tasks[name, seed].address, seed)


FROZEN, AGAIN = "(frozen)", "(again)"


def _without_adapter(arm: ArmPlan) -> ArmPlan:
    adapter = replace(arm.config.adapter, method="none")
    config = replace(
        arm.config, adapter=adapter, sublora=SubLoRASection(), optimisation=OptimisationSpec()
    )
    return replace(arm, name="frozen", config=config)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
