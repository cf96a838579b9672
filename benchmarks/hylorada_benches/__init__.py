"""The recipes of `hylorada bench`: each module measures something beside what it is compared with.

They are installed beside `hylorada`, use it as anybody would, and are no part of it.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

from rich.table import Table


class Bench(NamedTuple):
    """A bench by the name of its module, which is imported when it is used."""

    name: str
    words: str
    rounds: int

    def measure(self, rounds: int) -> dict[str, Any]:
        """Return what so many rounds of each contestant come to, in plain types."""
        result: dict[str, Any] = import_module(f"{__name__}.{self.name}").measure(rounds=rounds)
        return result

    def tables(self, result: dict[str, Any]) -> Iterable[Table]:
        """Return the tables of a result."""
        found: Iterable[Table] = import_module(f"{__name__}.{self.name}").tables(result)
        return found


BENCHES = {
    bench.name: bench
    for bench in (
        Bench(
            "adapters",
            "time and memory of a training step, time of reading and decoding, beside PEFT's LoRA",
            15,
        ),
        Bench("projections", "each random projection alone, and a SubLoRA step beside LoRA", 15),
        Bench(
            "bounds",
            "reading documents for a certificate beside a bare forward pass, and the bounds alone",
            15,
        ),
        Bench("coder", "symbols a second, and bits beside the ideal and the published code", 5),
        Bench(
            "long_context",
            "memory and time of a training step as texts grow, with and without the chunked loss",
            9,
        ),
    )
}
