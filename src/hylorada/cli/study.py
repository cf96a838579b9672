"""hylorada demo, compare and report."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rich.console import Console

from hylorada.cli.command import Command, add_settings, chosen, say
from hylorada.records.studies import Study
from hylorada.specs.study import StudyOptions, StudyPlace

EXAMPLES = """Which studies there are:
  hylorada list studies

Another example:
  hylorada compare allocation --budgets 1000 2000 --seeds 42 123 999 --tune"""

# Too small to settle much, large enough to show how a question is asked: arms that share data,
# order and seeds, controls of the same size, a repeated baseline, and verdicts with intervals.
DEMONSTRATION = StudyOptions(
    designs=("position_adaptive", "learnable", "low_rank", "bias"),
    num_train=128,
    num_val=32,
    num_test=96,
    max_length=256,
    evidence_items=4,
    cpu=True,
)


def _compare_options(parser: ArgumentParser) -> None:
    parser.add_argument("study", help="Its name; hylorada list studies shows them.")
    add_settings(parser, StudyOptions)
    add_settings(parser, StudyPlace, without=["out", "command"])
    parser.add_argument("--out", default=None, help="Folder of the study (default: studies/NAME)")


def _compare(options: Namespace) -> None:
    from hylorada.cli.tables import show
    from hylorada.studies.study import compare

    out = Path(options.out or Path("studies") / options.study)
    options.out, options.command = out, options.typed
    console = Console()
    place = chosen(StudyPlace, options)
    show(compare(options.study, chosen(StudyOptions, options), place, console), console)
    say(f"hylorada report {out} draws the page.")


def _report_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="A study's folder, a folder of studies, or a run's folder.")
    add("--out", default="report.html", help="The page, one file (default: report.html)")
    add("--figures", nargs="*", default=[], help="Also as files: svg png pdf.")
    add("--tables", nargs="*", default=[], help="Also as files: csv tex.")


def _report(options: Namespace) -> None:
    from hylorada.report.page import write

    page = write(
        Path(options.folder),
        Path(options.out),
        figures=" ".join(options.figures),
        tables=" ".join(options.tables),
    )
    print(f"The page lies in {page}.")


def _demo_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="demo", help="Folder for the runs and the report (default: demo)"
    )


def _demo(options: Namespace) -> None:
    demo(Path(options.out), Console())


def demo(out: Path, console: Console, options: StudyOptions = DEMONSTRATION) -> Study:
    """Carry out the study in a folder, draw its page, say what was found, and return the study.

    Finished runs are reused, so an interrupted demonstration goes on where it stopped.
    """
    from hylorada.cli.tables import show
    from hylorada.report.page import write
    from hylorada.studies.study import compare

    arms = len(options.designs or ()) + 2
    console.print(
        f"Adapting the embedded model to State of the Union addresses: {arms} arms, "
        f"{len(options.seeds)} seeds each, on the same text in the same order."
    )
    place = StudyPlace(out=out, ledger=str(out / "runs"), command=f"hylorada demo --out {out}")
    study = compare("landmarks", options, place, console)
    page = write(out, out / "report.html")
    show(study, console)
    console.print(f"The page lies in {page}.", markup=False, soft_wrap=True)
    return study


COMMANDS = {
    "demo": Command(
        "Compare adapters on the embedded model and text, and report.",
        "hylorada demo --out demo",
        _demo_options,
        _demo,
    ),
    "compare": Command(
        "Ask whether a component earns its parameters: arms, seeds, controls, a verdict.",
        "hylorada compare landmarks --seeds 42 123 456 --tune --out studies/landmarks",
        _compare_options,
        _compare,
        EXAMPLES,
    ),
    "report": Command(
        "Draw the page of a study: the verdict first, then tables and figures.",
        "hylorada report studies/landmarks --out report.html --figures svg",
        _report_options,
        _report,
    ),
}
