"""How far a reader has to walk: the functions and files that a command's work goes through.

    python benchmarks/trace_path.py [--json FILE]

Two paths are walked on the embedded model, as small as they can be: from a text to a certificate
(train, compress, bound), and from a question to a page (compare, report). What is counted, inside
the package only:

- functions: those that are entered at all, in any thread of this process. Comprehensions, lambdas,
  bodies of classes and what a module calls while it is imported do not count.
- files: the files that these functions lie in.
- changes of file: somebody who reads along meets the functions in the order in which they are
  first entered, and reads each of them once. From one to the next the reader goes back to the
  function that calls it, unless that is the one just read (a change by return where it lies in
  another file), and then follows the call (a change by call where that leads to another file).

Counted so, version 0.1 came to 520 functions in 83 files with 437 changes of file (250 by calls,
187 by returns) from a text to a certificate.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

from rich.console import Console
from rich.table import Table

import hylorada
from hylorada.cli import main

HOME = str(Path(hylorada.__file__).parent) + os.sep
TRAIN = (
    *("train", "--adapter.method=sublora", "--intrinsic_dim=8", "--length=64", "--num_train=4"),
    *("--num_val=2", "--steps=2", "--batch_size=2", "--cpu=true", "--progress=false", "--out=run"),
)
CERTIFIED = ("--data", "sotu", "--samples", "4", "--max_length", "64", "--device", "cpu")
COMPARE = (
    *("compare", "landmarks", "--designs", "position_adaptive", "bias", "--seeds", "1"),
    *("--max_length", "64", "--num_train", "4", "--num_val", "2", "--num_test", "4"),
    *("--batch_size", "2", "--evidence_items", "1", "--workers", "0", "--cpu", "--out", "study"),
)
PATHS: dict[str, list[tuple[str, ...]]] = {
    "text → certificate": [
        TRAIN,
        ("compress", "run", "--out", "adapter.hyl"),
        ("bound", "adapter.hyl", *CERTIFIED, "--out", "certificate.json"),
    ],
    "question → page": [COMPARE, ("report", "study", "--out", "page.html")],
}
TARGETS = {"text → certificate": (40, 200), "question → page": (60, None)}


class Tracer:
    """Notes every function of the package when it is entered for the first time, and by whom."""

    def __init__(self) -> None:
        self.callers: dict[CodeType, CodeType | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Hear of a call, as `sys.setprofile` tells it."""
        code = frame.f_code
        if event == "call" and _is_ours(code) and code not in self.callers:
            callers = list(_of_package(frame))
            if not any(caller.co_name == "<module>" for caller in callers):
                self.callers[code] = next(filter(_is_ours, callers), None)

    def found(self) -> dict[str, int]:
        """Return the numbers by name."""
        calls = returns = 0
        for last, code in pairwise(self.callers):
            caller = self.callers[code] or last
            returns += last.co_filename != caller.co_filename
            calls += caller.co_filename != code.co_filename
        return {
            "functions": len(self.callers),
            "files": len({code.co_filename for code in self.callers}),
            "changes": calls + returns,
            "calls": calls,
            "returns": returns,
        }


def _of_package(frame: FrameType) -> Iterator[CodeType]:
    """Yield what called a frame, from the nearest on, as far as it lies in the package."""
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith(HOME):
            yield caller.f_code
        caller = caller.f_back


def _is_ours(code: CodeType) -> bool:
    is_function = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
    return bool(is_function) and code.co_filename.startswith(HOME)


def traced(commands: list[tuple[str, ...]]) -> Tracer:
    """Carry out commands one after the other in this process, and return what was entered."""
    tracer = Tracer()
    for words in commands:
        quiet = io.StringIO()
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        try:
            with redirect_stdout(quiet), redirect_stderr(quiet):
                code = main(words)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if code:
            raise SystemExit(f"hylorada {' '.join(words)} ended with {code}: {quiet.getvalue()}")
    return tracer


def shown(found: dict[str, dict[str, int]]) -> Table:
    """Return the numbers of each path as a table, beside the targets."""
    table = Table("path", title="What a path enters", title_justify="left")
    for heading in ("functions", "files", "changes of file", "by calls", "by returns"):
        table.add_column(heading, justify="right")
    for path, numbers in found.items():
        files, changes = TARGETS[path]
        goals = {"files": files, "changes": changes}
        cells = [
            f"{number}" if goals.get(name) is None else f"{number} (at most {goals[name]})"
            for name, number in numbers.items()
        ]
        table.add_row(path, *cells)
    return table


def trace_all() -> dict[str, dict[str, int]]:
    """Walk every path in a folder of its own, and return what each came to."""
    found = {}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYLORADA_CACHE"] = f"{folder}/cache"
        os.chdir(folder)
        try:
            for path, commands in PATHS.items():
                found[path] = traced(commands).found()
        finally:
            os.chdir(here)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", help="File for all numbers; - is standard output.")
    target = parser.parse_args().json
    numbers = trace_all()
    if target == "-":
        print(json.dumps(numbers, indent=1))
    else:
        Console().print(shown(numbers))
        if target is not None:
            Path(target).write_text(json.dumps(numbers, indent=1) + "\n")
