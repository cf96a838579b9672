"""What the help of every command looks like: purpose, an example to copy, then the options."""

from argparse import RawDescriptionHelpFormatter
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

LINES_HELP = (
    "What lines of plain text become: keep, double (joined by two newlines), drop_blank or "
    "documents (one a line); auto is double for WikiText and keep elsewhere."
)


class HelpFormatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Options with their types and defaults; a description keeps its lines."""


def explained_parser(
    prog: str, purpose: str, example: str, *, notes: str = "", **more: Any
) -> ArgumentParser:
    """Return a parser whose help shows the example on a line of its own.

    Args:
        prog: The command as it is typed.
        purpose: What it does, on one line.
        example: A command line that works.
        notes: Further lines, shown as they are.
        more: What else `ArgumentParser` takes.
    """
    parts = [purpose, f"Example:\n  {example}", *([notes] if notes else [])]
    return ArgumentParser(
        prog=prog,
        description="\n\n".join(parts),
        formatter_class=HelpFormatter,
        exit_on_error=False,
        **more,
    )
