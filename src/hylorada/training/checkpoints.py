"""The checkpoints of a training, of which only intact ones are continued."""

import logging
import shutil
from pathlib import Path

from hylorada.files import PARTIAL, is_intact

PREFIX = "checkpoint-"

logger = logging.getLogger(__name__)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the latest step first, intact or not."""
    found = [path for path in folder.glob(f"{PREFIX}*") if _step(path) >= 0]
    return sorted(found, key=_step, reverse=True)


def last_intact(folder: Path) -> Path | None:
    """Return the latest checkpoint whose files are as they were written, or None.

    Damaged ones are named in the log and passed over.
    """
    for path in checkpoints(folder):
        if is_intact(path):
            return path
        logger.warning("%s is damaged (its files do not match its manifest); passed over", path)
    return None


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest `keep` checkpoints, and what a killed process left half-written."""
    for path in (*checkpoints(folder)[keep:], *folder.glob(f"{PARTIAL}*")):
        shutil.rmtree(path)


def _step(path: Path) -> int:
    number = path.name.removeprefix(PREFIX)
    return int(number) if number.isdigit() else -1
