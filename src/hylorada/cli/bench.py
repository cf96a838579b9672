"""hylorada bench: one table of what can be measured."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from hylorada.cli.command import Command
from hylorada.cli.output import require_place, write_json
from hylorada.errors import SpecError

Measure = Callable[..., dict[str, Any]]
Tables = Callable[[dict[str, Any]], Iterable[Any]]


class Bench(NamedTuple):
    """What a bench measures, its usual rounds, and its two parts, imported when they are used."""

    measures: str
    rounds: int
    parts: Callable[[], tuple[Measure, Tables]]


def _adapters() -> tuple[Measure, Tables]:
    from hylorada.benches.adapters import measure_on_cpu
    from hylorada.benches.tables import adapter_tables

    return measure_on_cpu, adapter_tables


def _projections() -> tuple[Measure, Tables]:
    from hylorada.benches.projections import measure_on_cpu, tables

    return measure_on_cpu, tables


def _bounds() -> tuple[Measure, Tables]:
    from hylorada.benches.bounds import bounds_tables, measure_bounds

    return measure_bounds, bounds_tables


def _coder() -> tuple[Measure, Tables]:
    from hylorada.benches.coder import coder_tables, measure_coder

    return measure_coder, coder_tables


def _long_context() -> tuple[Measure, Tables]:
    from hylorada.benches.long_context import long_context_tables, measure_long_context

    return measure_long_context, long_context_tables


BENCHES = {
    "adapters": Bench(
        "time and memory of a training step, and of decoding, beside PEFT's LoRA", 15, _adapters
    ),
    "projections": Bench(
        "each random projection alone, and a SubLoRA step beside PEFT's LoRA", 15, _projections
    ),
    "bounds": Bench(
        "reading documents for a certificate beside a bare forward pass, and the bounds alone",
        15,
        _bounds,
    ),
    "coder": Bench("symbols a second, and bits beside the ideal and the published code", 5, _coder),
    "long_context": Bench(
        "memory and time of a training step as texts grow, with and without the chunked loss",
        9,
        _long_context,
    ),
}


def _bench_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("what", help=f"One of {', '.join(BENCHES)}.")
    usual = ", ".join(f"{name} {bench.rounds}" for name, bench in BENCHES.items())
    add("--rounds", type=int | None, default=None, help=f"Rounds of each contestant; {usual}.")
    add("--json", default=None, help="File for all numbers; - is standard output.")


def _bench(options: Namespace) -> None:
    bench = _known(options.what)
    require_place(options.json)
    measure, tables = bench.parts()
    result = measure(rounds=bench.rounds if options.rounds is None else options.rounds)
    if options.json != "-":
        for table in tables(result):
            Console().print(table)
    write_json(result, options.json)


def _known(name: str) -> Bench:
    if name not in BENCHES:
        near = get_close_matches(name, BENCHES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(BENCHES)}"
        raise SpecError(f"unknown bench {name!r}; {hint}")
    return BENCHES[name]


COMMANDS = {
    "bench": Command(
        "Measure what things cost, interleaved with what they are compared with.",
        "hylorada bench adapters --json adapters.json",
        _bench_options,
        _bench,
        "\n".join(["The benches:", *(f"  {name:13s}{b.measures}" for name, b in BENCHES.items())]),
    ),
}
