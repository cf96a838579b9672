"""A checkpoint is complete or absent, and damage is seen."""

from pathlib import Path

import pytest

from hylorada.files import MANIFEST, is_intact, write_atomically, written_atomically
from hylorada.training.checkpoints import checkpoints, last_intact, prune


def write(folder: Path, step: int, content: str = "weights") -> Path:
    target = folder / f"checkpoint-{step}"
    with written_atomically(target) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "state").write_text(content)
    return target


def test_a_written_checkpoint_is_intact(tmp_path: Path) -> None:
    target = write(tmp_path, 1)
    assert is_intact(target)
    assert (target / "inner" / "state").read_text() == "weights"


def test_an_interrupted_write_leaves_no_checkpoint(tmp_path: Path) -> None:
    def interrupted() -> None:
        with written_atomically(tmp_path / "checkpoint-1") as partial:
            (partial / "state").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert checkpoints(tmp_path) == []


def test_an_interrupted_overwrite_keeps_the_old_one(tmp_path: Path) -> None:
    target = write(tmp_path, 1, "old")

    def interrupted() -> None:
        with written_atomically(target):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_intact(target)


def test_an_overwrite_replaces_every_file(tmp_path: Path) -> None:
    target = write(tmp_path, 1, "old")
    with written_atomically(target) as partial:
        (partial / "other").write_text("new")
    assert sorted(path.name for path in target.iterdir()) == [MANIFEST, "other"]


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "no manifest", "bad manifest"]
)
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    target = write(tmp_path, 1)
    state, manifest = target / "inner" / "state", target / MANIFEST
    match damage:
        case "truncated":
            state.write_text("weigh")
        case "flipped":
            state.write_text("weighty")
        case "missing":
            state.unlink()
        case "no manifest":
            manifest.unlink()
        case "bad manifest":
            manifest.write_text(manifest.read_text()[:-5])
    assert not is_intact(target)


def test_the_previous_checkpoint_is_used_when_the_last_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = write(tmp_path, 9), write(tmp_path, 10)
    (bad / "inner" / "state").write_text("")
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


def test_a_text_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
