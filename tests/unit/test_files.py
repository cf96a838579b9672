"""A folder is complete or absent; nothing half-written stays behind."""

from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.files import (
    MANIFEST,
    embedded,
    is_intact,
    write_atomically,
    written_atomically,
)


def written(parent: Path) -> Path:
    target = parent / "folder"
    with written_atomically(target) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "state").write_text("weights")
    return target


def test_a_block_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def refused() -> None:
        with written_atomically(tmp_path / "adapter") as partial:
            (partial / "weights").write_text("half")
            raise SpecError("no such tensor")

    with pytest.raises(SpecError, match="no such tensor"):
        refused()
    assert list(tmp_path.iterdir()) == []


def test_what_is_shipped_lies_under_its_name() -> None:
    assert (embedded("tiny") / "config.json").is_file()
    assert (embedded("sotu") / "sotu.jsonl.xz").is_file()


def test_a_written_folder_is_intact(tmp_path: Path) -> None:
    target = written(tmp_path)
    assert is_intact(target)
    assert (target / "inner" / "state").read_text() == "weights"


def test_an_interrupted_overwrite_keeps_the_old_one(tmp_path: Path) -> None:
    target = written(tmp_path)

    def interrupted() -> None:
        with written_atomically(target):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_intact(target)


def test_an_overwrite_replaces_every_file(tmp_path: Path) -> None:
    target = written(tmp_path)
    with written_atomically(target) as partial:
        (partial / "other").write_text("new")
    assert sorted(path.name for path in target.iterdir()) == [MANIFEST, "other"]


@pytest.mark.parametrize(
    "damage", ["truncated", "flipped", "missing", "no manifest", "bad manifest"]
)
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    target = written(tmp_path)
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


def test_a_text_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
