"""The jobs of a study read, tokenise and hash each text once, and each file once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hylorada import files
from hylorada.jobs import assembly
from hylorada.jobs.assembly import load_data, token_store
from hylorada.jobs.engine import Board, Task
from hylorada.jobs.local import InProcess
from hylorada.jobs.pipeline import Job, address
from hylorada.models.pretrained import load_tokenizer
from hylorada.text import tokens
from tests.small_study import small_job


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of the functions that cost time, which still do their work."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str, label: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            found[label(*given)] += 1
            return real(*given, **named)

        monkeypatch.setattr(owner, name, counted)

    count(assembly, "documents", lambda source, split, *_: f"read {split}")
    count(tokens, "_keep_shard", lambda path, *_: f"tokenise {path.parts[-3]}")
    count(files, "fingerprint", lambda path: f"hash {path}")
    count(assembly, "load", lambda *_: "load the model")
    return found


def planned(job: Job, label: str) -> Task:
    """Return a task as a study plans it: the text is tokenised before any worker starts."""
    tokenizer = load_tokenizer(job.config.model.full_source())
    fingerprint = load_data(job.config, tokenizer).fingerprint
    token_store(job.config.data, "test", tokenizer)
    return Task(job=job, address=address(job, fingerprint), label=label)


def test_two_seeds_and_two_arms_share_model_tokens_and_hashes(
    calls: Counter[str], tmp_path: Path
) -> None:
    arms: list[dict[str, Any]] = [{}, {"landmark_enabled": True}]
    jobs = [small_job(tmp_path, seed=seed, **arm) for arm in arms for seed in (1, 2)]
    tasks = [planned(job, f"job {number}") for number, job in enumerate(jobs)]
    board = Board(Console(quiet=True), "running", len(tasks))
    with InProcess() as engine:
        outcomes = engine.run(tasks, str(tmp_path / "runs"), board)
    assert [outcome.state for outcome in outcomes] == ["finished"] * 4
    assert {name: times for name, times in calls.items() if times > 1} == {}
    assert [calls[f"read {split}"] for split in ("train", "valid", "test")] == [1, 1, 1]
    assert sum(name.startswith("tokenise") for name in calls) == 3
    assert calls["load the model"] == 1


def test_another_process_finds_the_tokens_of_the_first(calls: Counter[str], tmp_path: Path) -> None:
    for number in range(2):
        with InProcess() as engine:
            task = planned(small_job(tmp_path, seed=number), "job")
            engine.run([task], str(tmp_path / "runs"), Board(Console(quiet=True), "running", 1))
    assert [calls[f"read {split}"] for split in ("train", "valid", "test")] == [1, 1, 1]
