"""Where results go: a file, standard output, or a line for the reader."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from hylorada.errors import SpecError
from hylorada.files import write_atomically


def require_place(option: str, target: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured for it."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(f"{option} must name a file in a folder that exists; got {target}")


def write_json(result: dict[str, Any], target: str | None) -> None:
    """Write a result where `--json` says; nowhere without it.

    Before it is shown, because a reader may close the pipe (`| head`).
    """
    text = json.dumps(result, indent=1)
    if target == "-":
        print(text)
    elif target is not None:
        write_atomically(Path(target), text + "\n")


def say(line: str) -> None:
    """Print a line as it is, however long."""
    Console().print(line, markup=False, soft_wrap=True)
