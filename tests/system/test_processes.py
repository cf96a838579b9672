"""Two processes take the steps of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hylorada.cli.train import parse
from hylorada.jobs.pipeline import train_run
from tests.small_run import small_arguments


def losses(folder: Path) -> list[tuple[int, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    return [
        (entry["step"], entry[key])
        for entry in entries
        for key in ("loss", "eval_loss", "grad_norm")
        if key in entry
    ]


def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path) -> None:
    # The last batch of an epoch is short, and dropout would differ between processes.
    options = ["--lora_dropout=0", "--log_every=1", "--num_train=22", "--evaluate_every=3"]
    arguments = [*small_arguments(tmp_path), *options, "--checkpoint_every=4"]
    train_run(parse([*arguments, f"--out={tmp_path / 'one'}"]))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, "-m", "hylorada", "train", *arguments, f"--out={tmp_path / 'two'}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == 12 + 12 + 4 + 1
    assert [step for step, _ in two] == [step for step, _ in one]
    assert [value for _, value in two] == pytest.approx([value for _, value in one], abs=1e-5)
    described = [
        json.loads((tmp_path / n / "environment.json").read_text()) for n in ("one", "two")
    ]
    assert [each["processes"] for each in described] == [1, 2]
    assert described[0]["run"] == described[1]["run"]
