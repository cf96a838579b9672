"""What lies in the folder of a run and of its adapter, and by which names."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from peft.utils import CONFIG_NAME

from hylorada.errors import CheckpointError, SpecError
from hylorada.experiments.config import ModelSection
from hylorada.files import LOCK, alone_in

CONFIG, ENVIRONMENT, RESULT = "config.yaml", "environment.json", "result.json"
METRICS, ADAPTER, CHECKPOINTS = "metrics.jsonl", "adapter", "checkpoints"


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or not."""
    return all((folder / name).is_file() for name in (CONFIG, ENVIRONMENT))


class Work:
    """Whether a run has got anywhere: what lies in its folder is worth keeping from then on."""

    has_begun = False


@contextmanager
def run_folder(folder: Path) -> Iterator[Work]:
    """Have a run's folder for oneself; a run refused before it has begun leaves no trace in it.

    Only what was not there before is removed: another run would take it for a run of its own
    that differs, and refuse the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with alone_in(folder, "a run"):
        before = {LOCK, *(path.name for path in folder.iterdir())}
        work = Work()
        try:
            yield work
        except (SpecError, CheckpointError, OSError):
            if not work.has_begun:
                _remove_entries(folder, before)
                if before == {LOCK}:
                    _remove_folders(made)
            raise


def _remove_entries(folder: Path, spared: set[str]) -> None:
    for path in folder.iterdir():
        if path.name in spared:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove_folders(made: list[Path]) -> None:
    """Remove a folder that holds a lock only, and those around it up to one in use."""
    if made:
        (made[0] / LOCK).unlink()
    with suppress(OSError):  # not empty: somebody else works there
        for folder in made:
            folder.rmdir()


def model_section(run: Path) -> ModelSection:
    """Return which model a run adapted, from its configuration."""
    path = run / CONFIG
    try:
        return ModelSection(**yaml.safe_load(path.read_text())["model"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(
            f"{path} must hold the configuration of a run, and its model; it does not ({reason})"
        ) from error


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return what PEFT wrote of an adapter into its folder."""
    path = folder / CONFIG_NAME
    try:
        settings = json.loads(path.read_text())
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise SpecError(f"{path} must hold an adapter's configuration in JSON; it cannot be read")
    return settings
