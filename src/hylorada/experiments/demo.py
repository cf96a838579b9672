"""The demonstration: a small study of landmarks on the embedded model and text.

Too small to settle much, large enough to show how a question is asked: arms that share data, order
and seeds, controls of the same size, a repeated baseline, and verdicts with their intervals.
"""

from pathlib import Path
from typing import Any

from rich.console import Console

from hylorada.experiments.studies import StudyOptions
from hylorada.experiments.studies.tables import show
from hylorada.experiments.study import Place, compare

OPTIONS = StudyOptions(
    designs=("position_adaptive", "learnable", "low_rank", "bias"),
    num_train=128,
    num_val=32,
    num_test=96,
    max_length=256,
    evidence_items=4,
    cpu=True,
)


def demo(out: Path, console: Console, options: StudyOptions = OPTIONS) -> dict[str, Any]:
    """Carry out the study in a folder and return what its file holds.

    Finished runs are reused, so an interrupted demonstration goes on where it stopped.
    """
    arms = len(options.designs or ()) + 2
    console.print(
        f"Adapting the embedded model to State of the Union addresses: {arms} arms, "
        f"{len(options.seeds)} seeds each, on the same text in the same order."
    )
    place = Place(out=out, ledger=str(out / "runs"), command=f"hylorada demo --out {out}")
    return compare("landmarks", options, place, console)


def farewell(study: dict[str, Any], page: Path, console: Console) -> None:
    """Say what was found, and where the page lies."""
    show(study, console)
    console.print(f"The page lies in {page}.", markup=False, soft_wrap=True)
