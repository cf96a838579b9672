"""Studies on a real Ray cluster of several nodes, one of which dies under them."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hylorada.jobs.engine import Board, Outcome, Task, open_engine
from hylorada.jobs.ledger import open_ledger
from hylorada.jobs.pipeline import address
from hylorada.jobs.ray import RayEngine, attempted
from tests.small_study import small_job

ray = pytest.importorskip("ray", reason="the extra 'cluster' is not installed")
SEEDS = (1, 2, 3)  # one for each node, and one that waits


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    source = tmp_path_factory.mktemp("source")
    jobs = [small_job(source, seed=seed, steps=8) for seed in SEEDS]
    return [
        Task(job=job, address=address(job, "text"), label=f"seed {job.config.training.seed}")
        for job in jobs
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start two nodes with a core each; the second may be lost."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONWARNINGS", "ignore")
        head = {"num_cpus": 1, "include_dashboard": False}
        running = Cluster(initialize_head=True, head_node_args=head)
        second = running.add_node(num_cpus=1)
        ray.init(address=running.address, log_to_driver=False, configure_logging=False)
        yield running, second
        ray.shutdown()
        running.shutdown()


class NodeKiller(Board):
    """A board that takes a node away as soon as it hears that both are training."""

    cluster: Any
    node: Any
    heard: set[str]

    def tell(self, label: str, station: str, share: float) -> None:
        super().tell(label, station, share)
        self.heard.add(label)
        if len(self.heard) == 2 and self.node is not None:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def numbers(place: str, task: Task) -> dict[str, Any]:
    result = json.loads(open_ledger(place).text(task.address, "result.json") or "")
    return {name: result[name] for name in ("valid_loss", "train_loss", "steps")}


def test_a_lost_node_loses_no_run_and_changes_no_number(
    cluster: Any, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYLORADA_LEASE_SECONDS", "4")
    running, second = cluster
    place = f"local://{tmp_path / 'runs'}"  # leases, as on object storage
    with open_engine("ray") as engine, NodeKiller(Console(file=io.StringIO()), "", 3) as board:
        board.cluster, board.node, board.heard = running, second, set()
        described = engine.describe()
        outcomes = engine.run(tasks, place, board)
        again = engine.run(tasks, place, board)
    assert board.node is None, "the node was never taken away"
    assert described == "ray, 2 nodes, 2 cores, 0 GPUs"
    assert [outcome.state for outcome in outcomes] == ["finished"] * 3
    assert [outcome.state for outcome in again] == ["reused"] * 3
    here = Here(tmp_path / "here")
    assert [numbers(place, task) for task in tasks] == [here.numbers(task) for task in tasks]


class Here:
    """The same tasks in this process, as a task of the cluster carries them out."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self.told: list[tuple[str, str, float]] = []

    def numbers(self, task: Task) -> dict[str, Any]:
        outcome = attempted(task, self.place, self)
        assert outcome.state == "finished"
        assert self.told[-1][:2] == (task.label, "result")
        return numbers(self.place, task)

    @property
    def put_nowait(self) -> "Here":
        return self

    def remote(self, news: tuple[str, str, float]) -> None:
        self.told.append(news)


def test_a_task_that_another_process_has_is_handed_back(tasks: list[Task], tmp_path: Path) -> None:
    with open_ledger(str(tmp_path)).claim(tasks[0].address):
        outcome = attempted(tasks[0], str(tmp_path), Here(tmp_path))
    assert outcome.state == "held"


def test_a_task_that_ray_gives_up_is_a_failure_with_a_chance(
    tasks: list[Task], tmp_path: Path
) -> None:
    engine = RayEngine(workers=1)

    class Lost:
        exceptions = ray.exceptions

        @staticmethod
        def get(reference: object) -> Outcome:
            raise ray.exceptions.WorkerCrashedError

    engine.ray = Lost
    outcome = engine._outcome(object(), tasks[0], str(tmp_path))
    assert (outcome.state, outcome.chance) == ("failed", True)
    assert len(open_ledger(str(tmp_path)).failures(tasks[0].address)) == 1
