"""What people see while jobs run: how many are done, which run, and the time left."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

SHOWN = 3
# Where each station begins in a job, and its share; only some studies compress and certify.
STATIONS = {
    "train": (0.0, 0.75),
    "evaluate": (0.75, 0.12),
    "inspect": (0.87, 0.03),
    "compress": (0.9, 0.02),
    "certify": (0.92, 0.08),
}


class Board:
    """A bar of all jobs of a phase, moved by the share of each that is done."""

    def __init__(self, console: Console, phase: str, total: int) -> None:
        self._running: dict[str, tuple[str, float]] = {}
        self._done: set[str] = set()
        self._total = total
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            _Count(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[running]}", style="dim"),
            console=console,
        )
        self._bar: TaskID = self._progress.add_task(phase, total=total, running="")

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tell(self, label: str, station: str, share: float) -> None:
        """Move a running job to a share of a station."""
        if label in self._done:  # news from another node may come late
            return
        start, width = STATIONS.get(station, (1.0, 0.0))
        self._running[label] = (station, start + width * min(1.0, share))
        self._draw()

    def finish(self, label: str) -> None:
        """Count a job as done."""
        self._running.pop(label, None)
        self._done.add(label)
        self._draw()

    def drop(self, label: str) -> None:
        """Forget what a job had done so far, because it starts again."""
        self._running.pop(label, None)
        self._draw()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        shown = [f"{label} ({station})" for label, (station, _) in self._running.items()]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        completed = len(self._done) + sum(share for _, share in self._running.values())
        self._progress.update(
            self._bar,
            completed=min(completed, self._total),
            running=", ".join(shown[:SHOWN]) + more,
        )


class _Count(ProgressColumn):
    """Whole jobs done, of all."""

    def render(self, task: Task) -> Text:
        return Text(
            f"{int(task.completed + 1e-9)}/{int(task.total or 0)}", style="progress.download"
        )
