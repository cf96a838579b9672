"""A Ray cluster: jobs go to whatever nodes and GPUs are free, and survive the loss of a node.

A task process keeps the frozen model for the next task, as a local worker does. The ledger must be
a place that every node reaches: a shared folder or object storage.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from hylorada.errors import SpecError
from hylorada.jobs.assembly import Workshop
from hylorada.jobs.engine import (
    PATIENCE_S,
    Agenda,
    Board,
    Engine,
    Outcome,
    Task,
    Throttled,
    attempt,
    carried_settings,
    one_line,
    settle_in,
)
from hylorada.jobs.ledger import open_ledger

SECONDS_BETWEEN_NEWS = 0.5
# Ray starts a task again on another node this often; a node may be lost several times a study.
LOST_NODES = 5
WORKSHOP = Workshop()


class RayEngine(Engine):
    """Runs jobs as tasks of a Ray cluster: the one at RAY_ADDRESS, or one on this machine."""

    def __init__(self, workers: int | None = None) -> None:
        """Find Ray; `workers` jobs are given to the cluster at a time, None as many as fit."""
        try:
            import ray
            from ray.util.queue import Queue
        except ImportError as error:
            raise SpecError("engine 'ray' needs Ray; pip install 'hylorada[cluster]'") from error
        self.ray: Any = ray
        self.queue: Any = Queue
        self.workers = workers
        self.started = False
        self.news: Any = None  # where tasks on all nodes say how far they are
        self.perform: Any = None

    def __enter__(self) -> Engine:
        """Join the cluster."""
        self.started = not self.ray.is_initialized()
        if self.started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self.ray.init(log_to_driver=False, configure_logging=False)
        gpus = self.ray.cluster_resources().get("GPU", 0)
        here = self.ray.get_runtime_context().get_node_id()
        beside = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            node_id=here, soft=False
        )
        self.news = self.queue(actor_options={"num_cpus": 0, "scheduling_strategy": beside})
        self.perform = self.ray.remote(carry_out).options(
            num_cpus=1, num_gpus=1 if gpus else 0, max_retries=LOST_NODES
        )
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the cluster, if this engine joined it."""
        self.news.shutdown(force=True)
        if self.started:
            self.ray.shutdown()

    def describe(self) -> str:
        """Return the engine and its size in a few words."""
        resources = self.ray.cluster_resources()
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        cores, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        return f"ray, {nodes} nodes, {cores} cores, {gpus} GPUs"

    def run(self, tasks: Sequence[Task], place: str, board: Board) -> list[Outcome]:
        """Return one outcome a task, in the order given."""
        agenda = Agenda(tasks, board)
        running: dict[Any, Task] = {}
        most, settings = self.workers or len(tasks), carried_settings()
        while agenda.is_open:
            while agenda.waiting and len(running) < most:
                task = agenda.waiting.popleft()
                running[self.perform.remote(task, place, self.news.actor, settings)] = task
            done, _ = self.ray.wait(list(running), timeout=SECONDS_BETWEEN_NEWS)
            for label, station, share in self.news.get_nowait_batch(self.news.size()):
                board.tell(label, station, share)
            for reference in done:
                agenda.settle(self._outcome(reference, running.pop(reference), place))
        return agenda.outcomes()

    def _outcome(self, reference: Any, task: Task, place: str) -> Outcome:
        try:
            outcome: Outcome = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # lost too often, or out of memory
            text = one_line(error)[:1000]
            open_ledger(place).fail(task.address, text)
            return Outcome(task=task, state="failed", error=text, chance=True)
        return outcome


def carry_out(task: Task, place: str, news: Any, settings: dict[str, str]) -> Outcome:
    """Carry out a task in the process that Ray gave it to."""
    settle_in(1, settings)
    return attempted(task, place, news)


def attempted(task: Task, place: str, news: Any) -> Outcome:
    """Attempt a task on this node; the claim keeps any other from doing it."""

    def send(station: str, share: float) -> None:
        news.put_nowait.remote((task.label, station, share))

    outcome = attempt(task, open_ledger(place), WORKSHOP, Throttled(send, SECONDS_BETWEEN_NEWS))
    if outcome.state == "held":  # a lost node's claim ends a moment after the node
        time.sleep(PATIENCE_S)
    return outcome
