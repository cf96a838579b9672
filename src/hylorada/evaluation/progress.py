"""Progress bars on the standard error stream, so that results on standard output stay clean."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

Item = TypeVar("Item")


def track(items: Sequence[Item], description: str, *, enabled: bool) -> Iterator[Item]:
    """Yield the items while showing how many are done; silently if not `enabled`."""
    console = Console(stderr=True)
    yield from rich_track(items, description, console=console, disable=not enabled)
