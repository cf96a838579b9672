"""The command `hylorada`: one sub-command per job. Bad input ends in one line and exit code 2."""

import sys
from collections.abc import Sequence

from hylorada.cli import bench, certificate, compress, evaluate, study, text, train
from hylorada.cli.command import Command, parsed
from hylorada.errors import CheckpointError, CodecError, RunError, SpecError
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

COMMANDS: dict[str, Command] = (
    study.COMMANDS
    | text.COMMANDS
    | evaluate.COMMANDS
    | compress.COMMANDS
    | certificate.COMMANDS
    | bench.COMMANDS
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code: 0 for success, 2 for bad input, 1 otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(words)
    except (SpecError, CheckpointError, CodecError) as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 2
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        reason = (error.strerror or type(error).__name__).lower()
        print(f"hylorada: cannot use {error.filename} ({reason}); name another", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hylorada: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def _dispatch(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        print(OVERVIEW.format(commands=_command_list()))
        return
    name, *rest = words
    if name == "--version":
        from importlib.metadata import version

        print(f"hylorada {version('hylorada')}")
    elif name == "train":  # reads YAML files and dotted options of its own
        train.train(rest)
    elif name in COMMANDS:
        COMMANDS[name].work(parsed(name, COMMANDS[name], rest))
    else:
        known(name, ["train", *COMMANDS], "command")


def _command_list() -> str:
    purposes = {"train": train.PURPOSE} | {name: c.purpose for name, c in COMMANDS.items()}
    return "\n".join(f"  {name:10s} {purpose}" for name, purpose in purposes.items())
