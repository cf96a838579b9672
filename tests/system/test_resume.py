"""A run that is killed, again and again, ends with the bits of one that was left alone."""

import json
import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from hylorada.cli.train import parse
from hylorada.jobs.pipeline import train_run
from hylorada.specs.run import RunConfig
from hylorada.training.loop import checkpoints
from tests.small_run import small_arguments

PATIENCE_S = 100.0
# Children start from a process that has imported everything, so that kills hit work, not imports.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["hylorada.jobs.pipeline", "hylorada.cli.train"])


def started(config: RunConfig) -> ForkServerProcess:
    process = SERVER.Process(target=train_run, args=(config,))
    process.start()
    return process


def wait_for(condition: Callable[[], bool], process: ForkServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.is_alive(), f"the run ended early, with exit code {process.exitcode}"
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.0005)


def kill(process: ForkServerProcess) -> None:
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def reached(folder: Path, step: int) -> bool:
    found = checkpoints(folder)
    return step == 0 or (bool(found) and int(found[0].name.partition("-")[2]) >= step)


def numbers(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    return {
        "result": result,
        "metrics": (folder / "metrics.jsonl").read_text(),
        "adapter": (folder / "adapter" / "adapter_model.safetensors").read_bytes(),
    }


def finish(config: RunConfig) -> None:
    process = started(config)
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_five_kills_and_a_damaged_checkpoint_change_no_bit(tmp_path: Path) -> None:
    options = ["--checkpoint_every=2", "--evaluate_every=4", "--keep_best=true", "--epochs=14"]
    config = parse([*small_arguments(tmp_path), *options])
    whole = replace(config, out=str(tmp_path / "whole"))
    broken = replace(config, out=str(tmp_path / "broken"))
    finish(whole)

    folder = tmp_path / "broken" / "checkpoints"
    draws = random.Random(5)
    for target in (0, 8, 20, 30, 40):
        process = started(broken)
        wait_for(partial(reached, folder, target), process)
        if target == 30:  # in the middle of writing a checkpoint
            wait_for(lambda: any(folder.glob(".partial-*")), process)
        else:  # at a random moment: loading, stepping, evaluating or writing
            time.sleep(draws.uniform(0.0, 0.25))
        kill(process)
        if target == 20:  # and the last checkpoint rots on the disk
            payload = checkpoints(folder)[0] / "training.pt"
            payload.write_bytes(payload.read_bytes()[:-100])
    finish(broken)

    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    config = replace(parse(small_arguments(tmp_path)), out=str(tmp_path / "run"))
    first = train_run(config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert train_run(config) == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
