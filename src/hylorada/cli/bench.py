"""hylorada bench: one table of what can be measured."""

from importlib import import_module
from typing import NamedTuple

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, write_json
from hylorada.names import known


class Bench(NamedTuple):
    """What a bench measures, and its usual rounds."""

    measures: str
    rounds: int


# By the name of the module, whose `measure` and `tables` are imported when they are used.
BENCHES = {
    "adapters": Bench(
        "time and memory of a training step, time of reading and decoding, beside PEFT's LoRA", 15
    ),
    "projections": Bench("each random projection alone, and a SubLoRA step beside PEFT's LoRA", 15),
    "bounds": Bench(
        "reading documents for a certificate beside a bare forward pass, and the bounds alone", 15
    ),
    "coder": Bench("symbols a second, and bits beside the ideal and the published code", 5),
    "long_context": Bench(
        "memory and time of a training step as texts grow, with and without the chunked loss", 9
    ),
}


def _bench_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("what", help=f"One of {', '.join(BENCHES)}.")
    usual = ", ".join(f"{name} {bench.rounds}" for name, bench in BENCHES.items())
    add("--rounds", type=int | None, default=None, help=f"Rounds of each contestant; {usual}.")
    add("--json", default=None, help="File for all numbers; - is standard output.")


def _bench(options: Namespace) -> None:
    name = known(options.what, BENCHES, "bench")
    require_place("--json", options.json)
    bench = import_module(f"hylorada.benches.{name}")
    rounds = BENCHES[name].rounds if options.rounds is None else options.rounds
    result = bench.measure(rounds=rounds)
    write_json(result, options.json)
    if options.json != "-":
        for table in bench.tables(result):
            Console().print(table)


COMMANDS = {
    "bench": Command(
        "Measure what things cost, interleaved with what they are compared with.",
        "hylorada bench adapters --json adapters.json",
        _bench_options,
        _bench,
        "\n".join(["The benches:", *(f"  {name:13s}{b.measures}" for name, b in BENCHES.items())]),
    ),
}
