"""Where results go: a file or standard output."""

import json
from pathlib import Path
from typing import Any

from hylorada.errors import SpecError


def require_place(target: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured for it."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(f"--json must name a file in a folder that exists; got {target}")


def write_json(result: dict[str, Any], target: str | None) -> None:
    """Write a result where `--json` says; nowhere without it."""
    text = json.dumps(result, indent=1)
    if target == "-":
        print(text)
    elif target is not None:
        from hylorada.files import write_atomically

        write_atomically(Path(target), text + "\n")
