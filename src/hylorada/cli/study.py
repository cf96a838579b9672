"""hylorada demo, compare and report."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command


def _demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", help="Folder for the runs and the report.")


def _demo(options: Namespace) -> None:
    from hylorada.experiments.demo import demo

    demo(Path(options.out), Console())


COMMANDS = {
    "demo": Command(
        "Compare adapters on the embedded model and text, and report.",
        "hylorada demo --out demo",
        _demo_options,
        _demo,
    ),
}
