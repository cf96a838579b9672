"""hylorada bench."""

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, write_json


def _bench_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", choices=["adapters"], help="What to measure.")
    parser.add_argument("--rounds", type=int, default=15, help="Interleaved rounds.")
    parser.add_argument("--json", default=None, help="File for all numbers; - is standard output.")


def _bench(options: Namespace) -> None:
    from hylorada.benches.adapters import measure_on_cpu
    from hylorada.benches.tables import adapter_tables

    require_place(options.json)
    result = measure_on_cpu(rounds=options.rounds)
    if options.json != "-":
        for table in adapter_tables(result):
            Console().print(table)
    write_json(result, options.json)


COMMANDS = {
    "bench": Command(
        "Measure what adapters cost beside PEFT's LoRA, interleaved.",
        "hylorada bench adapters --json adapters.json",
        _bench_options,
        _bench,
    ),
}
