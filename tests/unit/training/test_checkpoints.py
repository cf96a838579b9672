"""The latest intact checkpoint is found, and old ones go."""

from pathlib import Path

import pytest

from hylorada.files import written_atomically
from hylorada.training.loop import checkpoints, last_intact, prune


def write(folder: Path, step: int) -> Path:
    target = folder / f"checkpoint-{step}"
    with written_atomically(target) as partial:
        (partial / "state").write_text("weights")
    return target


def test_the_previous_checkpoint_is_used_when_the_last_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = write(tmp_path, 9), write(tmp_path, 10)
    (bad / "state").write_text("")
    assert last_intact(tmp_path) == good
    assert "checkpoint-10 is damaged" in caplog.text


def test_a_folder_without_checkpoints_has_no_last_one(tmp_path: Path) -> None:
    assert last_intact(tmp_path) is None
    assert last_intact(tmp_path / "absent") is None


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (9, 100, 10):
        write(tmp_path, step)
    (tmp_path / "checkpoint-x").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "checkpoint-100",
        "checkpoint-10",
        "checkpoint-9",
    ]


def test_pruning_keeps_the_latest_and_sweeps_up_half_written_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    (tmp_path / ".partial-checkpoint-4").mkdir()
    prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]
