"""The command `hylorada`: one sub-command per job. Bad input ends in one line and exit code 2."""

import json
import os
import sys
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.errors import CheckpointError, RunError, SpecError

OVERVIEW = """usage: hylorada COMMAND [options]

Adapt causal language models with few trainable numbers, and find out whether each one helped.

{commands}

Start with:  hylorada demo
Each command explains itself:  hylorada COMMAND --help
"""


class Command(NamedTuple):
    """A sub-command: its one-line purpose, an example, its options and its job."""

    purpose: str
    example: str
    add_options: Callable[[ArgumentParser], None]
    work: Callable[[Namespace], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return the exit code: 0 for success, 2 for bad input, 1 otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _dispatch(words)
    except (SpecError, CheckpointError) as error:
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
        _train(rest)
    elif name in COMMANDS:
        COMMANDS[name].work(_parsed(name, rest))
    else:
        known = ["train", *COMMANDS]
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise SpecError(f"unknown command {name!r}; {hint}")


def _parsed(name: str, words: list[str]) -> Namespace:
    command = COMMANDS[name]
    parser = ArgumentParser(
        prog=f"hylorada {name}",
        description=f"{command.purpose} Example:  {command.example}",
        exit_on_error=False,
    )
    command.add_options(parser)
    try:
        return parser.parse_args([underscored(word) for word in words])
    except ArgumentError as error:
        raise SpecError(f"{' '.join(str(error).split())} (hylorada {name} --help)") from error


def underscored(word: str) -> str:
    """Return an option with underscores for dashes: --max-length is --max_length."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.removeprefix("--").partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _command_list() -> str:
    purposes = {"train": TRAIN_PURPOSE} | {name: c.purpose for name, c in COMMANDS.items()}
    return "\n".join(f"  {name:10s} {purpose}" for name, purpose in purposes.items())


# train

TRAIN_PURPOSE = "Train an adapter: --config FILE, then --section.field=value for what differs."


def _train(words: list[str]) -> None:
    from hylorada.experiments.config import parse
    from hylorada.experiments.run import run

    config = parse(words)
    result = run(config)
    if os.environ.get("RANK", "0") != "0":  # several processes have one result
        return
    folder = config.out or f"runs/{result['id']}"
    Console().print(
        f"run {result['id']}: {result['steps']} steps, "
        f"{result['trainable_parameters']:,} trainable parameters, "
        f"validation perplexity {_shown(result['valid_perplexity'])} "
        f"on {result['valid_tokens']:,} tokens → {folder}",
        markup=False,
        soft_wrap=True,
    )


def _shown(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


# prepare


def _prepare_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    parser.add_argument("--tokenizer", default="tiny", help="A model whose tokenizer to use.")
    parser.add_argument("--out", required=True, help="Folder for the tokens, one per split.")
    parser.add_argument("--splits", nargs="+", default=["train", "valid", "test"])


def _prepare(options: Namespace) -> None:
    from hylorada.models.pretrained import load_tokenizer
    from hylorada.text.corpus import documents
    from hylorada.text.tokens import require_disjoint, tokenise

    tokenizer = load_tokenizer(options.tokenizer)
    # Every split is looked up before the first one is written.
    texts = {split: documents(options.data, split) for split in options.splits}
    stores = {
        split: tokenise(text, tokenizer, Path(options.out) / split) for split, text in texts.items()
    }
    require_disjoint(stores)
    for split, store in stores.items():
        print(f"{split}: {len(store):,} documents, {len(store.tokens):,} tokens")


# evaluate


def _evaluate_options(parser: ArgumentParser) -> None:
    from hylorada.evaluation.metrics import DEFAULT_METRICS, METRICS

    parser.add_argument("subject", help="A model, an adapter folder or a run folder.")
    parser.add_argument("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    parser.add_argument("--split", default="test", help="train, valid or test.")
    parser.add_argument(
        "--lines", default="auto", help="auto, keep, double, drop_blank, documents."
    )
    parser.add_argument("--model", default=None, help="The base model of an adapter, if moved.")
    parser.add_argument(
        "--metrics", nargs="+", default=list(DEFAULT_METRICS), help=f"Of {', '.join(METRICS)}."
    )
    parser.add_argument("--max_length", type=int, default=512, help="Tokens of context.")
    parser.add_argument("--max_tokens", type=int | None, default=131_072, help="Tokens read.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of generated items.")
    parser.add_argument("--device", default=None, help="cpu or cuda; chosen by itself.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _evaluate(options: Namespace) -> None:
    from hylorada.evaluation.metrics import EvaluationSpec, require_metrics
    from hylorada.experiments.subject import evaluate_subject

    require_metrics(options.metrics)
    _require_place(options.json)
    result = evaluate_subject(
        options.subject,
        data=options.data,
        split=options.split,
        lines=options.lines,
        base=options.model,
        metrics=options.metrics,
        spec=EvaluationSpec(
            max_length=options.max_length, max_tokens=options.max_tokens, seed=options.seed
        ),
        device=options.device,
    )
    if options.json != "-":
        from hylorada.experiments.tables import evaluation_table

        Console().print(evaluation_table(result))
    _write_json(result, options.json)


# bench


def _bench_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=["adapters"], help="What to measure.")
    parser.add_argument("--rounds", type=int, default=15, help="Interleaved rounds.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _bench(options: Namespace) -> None:
    from hylorada.benches.adapters import measure_on_cpu
    from hylorada.benches.tables import adapter_tables

    _require_place(options.json)
    result = measure_on_cpu(rounds=options.rounds)
    if options.json != "-":
        for table in adapter_tables(result):
            Console().print(table)
    _write_json(result, options.json)


# demo


def _demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", help="Folder for the runs and the report.")


def _demo(options: Namespace) -> None:
    from hylorada.experiments.demo import demo

    demo(Path(options.out), Console())


def _require_place(target: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured for it."""
    if target in (None, "-"):
        return
    path = Path(str(target))
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(f"--json must name a file in a folder that exists; got {target}")


def _write_json(result: dict[str, Any], target: str | None) -> None:
    text = json.dumps(result, indent=1)
    if target == "-":
        print(text)
    elif target is not None:
        from hylorada.training.checkpoints import write_atomically

        write_atomically(Path(target), text + "\n")


COMMANDS = {
    "demo": Command(
        "Compare adapters on the embedded model and text, and report.",
        "hylorada demo --out demo",
        _demo_options,
        _demo,
    ),
    "prepare": Command(
        "Turn text into token files that training maps into memory.",
        "hylorada prepare --data my_texts --tokenizer tiny --out tokens",
        _prepare_options,
        _prepare,
    ),
    "evaluate": Command(
        "Measure a model, an adapter or a run on held-out text.",
        "hylorada evaluate runs/my_run --data sotu --metrics ppl lim_ppl",
        _evaluate_options,
        _evaluate,
    ),
    "bench": Command(
        "Measure what adapters cost beside PEFT's LoRA, interleaved.",
        "hylorada bench adapters --json adapters.json",
        _bench_options,
        _bench,
    ),
}
