"""hylorada list and bench: everything that has a name, and what things cost."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib import import_module

from hylorada.cli.command import Command, Reader, add_json, deliver, require_place
from hylorada.names import known
from hylorada.registry import Named, Registry

# The module and the name of each registry, imported when it is asked for.
LISTS = {
    "designs": ("hylorada.adapters.designs", "DESIGNS"),
    "projections": ("hylorada.subspace.projections", "PROJECTIONS"),
    "metrics": ("hylorada.evaluation.metrics", "METRICS"),
    "inequalities": ("hylorada.bounds.inequalities", "INEQUALITIES"),
    "formats": ("hylorada.text.formats", "FORMATS"),
    "sources": ("hylorada.models.pretrained", "SOURCES"),
    "studies": ("hylorada.studies", "STUDIES"),
    "figures": ("hylorada.report.figures", "FIGURES"),
    "methods": ("hylorada.specs.adapters", "METHODS"),
    "benches": ("hylorada_benches", "BENCHES"),
}


def _list_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", help=f"One of {', '.join(LISTS)}.")


def _list(options: Namespace) -> None:
    module, name = LISTS[known(options.what, LISTS, "list")]
    entries: Mapping[str, Named] = getattr(import_module(module), name)
    width = max(map(len, entries), default=0)
    for each, entry in entries.items():
        origin = entries.origin(each) if isinstance(entries, Registry) else None
        print(f"{each:{width}s}  {entry.words}{f' (from {origin})' if origin else ''}")


def _bench_options(parser: ArgumentParser) -> None:
    from hylorada_benches import BENCHES

    add = parser.add_argument
    add("what", help="Its name; hylorada list benches shows them.")
    usual = ", ".join(f"{name} {bench.rounds}" for name, bench in BENCHES.items())
    whole = Reader(int)
    add("--rounds", type=whole, default=None, help=f"Rounds of each contestant (default: {usual})")
    add_json(parser)


def _bench(options: Namespace) -> None:
    from hylorada_benches import BENCHES

    bench = BENCHES[known(options.what, BENCHES, "bench")]
    require_place("--json", options.json)
    result = bench.measure(bench.rounds if options.rounds is None else options.rounds)
    deliver(result, options.json, *bench.tables(result))


COMMANDS = {
    "list": Command(
        "Name everything of a kind: designs, metrics, studies and more, plugins included.",
        "hylorada list designs",
        _list_options,
        _list,
    ),
    "bench": Command(
        "Measure what things cost, interleaved with what they are compared with.",
        "hylorada bench adapters --json adapters.json",
        _bench_options,
        _bench,
    ),
}
