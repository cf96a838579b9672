"""Rows of a dataset named on the hub, streamed through `datasets`."""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hylorada.errors import SpecError
from hylorada.text.readers import Row

# The splits, and what files and datasets call them.
SPLITS = {
    "train": ("train", "training"),
    "valid": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


def looks_like_hub_name(source: str) -> bool:
    """Return whether a string has the form owner/name, name, or either with :config."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?", source) is not None


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the hub's retries out of sight inside the block; what they come to is raised."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def hub_rows(source: str, split: str, *, repair: str = "") -> tuple[Iterable[Row], bool]:
    """Return the rows of a split, and whether the dataset itself names that split.

    A dataset that has only a train split returns its rows with False: the caller divides them.

    Args:
        source: owner/name, or owner/name:config.
        split: "train", "valid", "test" or "all".
        repair: A likely repair to show when the name cannot be loaded.
    """
    import datasets  # slow to import, and only hub names need it

    name, _, config = source.partition(":")
    try:
        named = datasets.get_dataset_split_names(name, config or None)
        chosen = _chosen_splits(named, split, source)
        parts = [
            datasets.load_dataset(name, config or None, split=part, streaming=True)
            for part in chosen
        ]
    except SpecError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(
            f"{source!r} is no file or folder here and could not be read from the hub; {repair}"
            f"check the name and the network ({type(error).__name__}: {reason})"
        ) from error
    rows = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    return rows, split == "all" or len(named) > 1


def _chosen_splits(named: list[str], split: str, source: str) -> list[str]:
    if split == "all" or len(named) == 1:
        return named
    for candidate in SPLITS[split]:
        if candidate in named:
            return [candidate]
    raise SpecError(f"{source} has no {split} split; it has {', '.join(named)}")
