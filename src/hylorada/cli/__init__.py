"""The command `hylorada`: one sub-command per job. Bad input ends in one line and exit code 2."""

import os
import select
import sys
from collections.abc import Sequence

from hylorada.cli import certificates, evaluate, listing, study, train
from hylorada.cli.command import Command, parsed
from hylorada.errors import CheckpointError, CodecError, RunError, SpecError
from hylorada.files import PARTIAL
from hylorada.names import known

OVERVIEW = """usage: hylorada COMMAND [options]

Adapt causal language models with few trainable numbers, and find out whether each one helped.

{commands}

Start with:
    hylorada demo

Then, from texts and a model to a certificate that anyone can check:
    hylorada train --data.source=my_texts --adapter.method=sublora --out=runs/first
    hylorada evaluate runs/first --data my_texts
    hylorada report runs/first --out report.html
    hylorada compress runs/first --out adapter.hyl
    hylorada bound adapter.hyl --data my_texts --out certificate.json
    hylorada verify certificate.json --data my_texts

Each command explains itself:
    hylorada COMMAND --help
"""

COMMANDS: dict[str, Command] = {
    name: command
    for module in (study, train, evaluate, certificates, listing)
    for name, command in module.COMMANDS.items()
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code: 0 for success, 2 for bad input, 1 otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            _dispatch(words)
        finally:
            sys.stdout.flush()  # here, where a reader who has left is noticed without a traceback
    except (SpecError, CheckpointError, CodecError) as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        return 1 if _reader_has_left(error) else _unusable(error)
    except RunError as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hylorada: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _reader_has_left(error: OSError) -> bool:
    """Return whether standard output was closed at its other end; what is left goes nowhere."""
    if not isinstance(error, BrokenPipeError):
        return False
    output = sys.stdout.fileno()
    poller = select.poll()
    poller.register(output, select.POLLOUT)
    if not any(event & select.POLLERR for _, event in poller.poll(0)):
        return False  # another pipe, such as that of a worker
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _unusable(error: OSError) -> int:
    """Say what cannot be read or written, and return 2 where another name may repair it."""
    reason = (error.strerror or f"{type(error).__name__}: {error}").partition("\n")[0]
    if error.filename is None:  # such as a disk that is full
        print(f"hylorada: the system refuses to read or write: {reason}", file=sys.stderr)
        return 1
    place = str(error.filename).replace(PARTIAL, "")  # the file that it would have become
    print(f"hylorada: cannot use {place} ({reason.lower()}); name another", file=sys.stderr)
    return 2


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:10s} {command.purpose}" for name, command in COMMANDS.items()]
        print(OVERVIEW.format(commands="\n".join(lines)))
        return
    name, *rest = words
    if name == "--version":
        from importlib.metadata import version

        print(f"hylorada {version('hylorada')}")
        return
    command = COMMANDS[known(name, COMMANDS, "command")]
    command.work(parsed(name, command, rest))
