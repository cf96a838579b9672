"""What a terminal shows of an evaluation: values with their intervals, counts and units."""

import math
from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table


def evaluation_table(result: dict[str, Any]) -> Table:
    """Return one row per number that a metric is usually quoted by."""
    subject = result["subject"]
    what = " on ".join(filter(None, (subject["adapter"], subject["model"])))
    title = escape(f"{what}, {subject['data']} ({subject['split']})")
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("unit")
    for name, measured in result["metrics"].items():
        for label, estimate, unit in _quoted(name, measured):
            table.add_row(label, f"{estimate['value']:.4g}", _interval(estimate), unit)
    return table


def _quoted(name: str, measured: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    unit = measured.get("unit", "")
    if "value" in measured:
        yield name, measured, unit
    if name == "ppl":
        yield "  bits per token", measured["bits_per_token"], f"{measured['tokens']:,} tokens"
        yield "  bits per byte", measured["bits_per_byte"], "bits/byte"
    elif name == "lim_ppl":
        yield "  gap, middle to edge", measured["lim_gap"], "nats/token"
        if measured["utilisation"] is not None:  # evidence worth nothing has no share to use
            yield "  utilisation", measured["utilisation"], "share of the evidence's worth"
    elif name == "position_curve":
        first, last = measured["curve"][0], measured["curve"][-1]
        yield f"loss at positions {first['start']}–{first['end'] - 1}", first, unit
        yield f"loss at positions {last['start']}–{last['end'] - 1}", last, unit
    elif name == "context_gain":
        for point in measured["curve"][:-1]:
            yield f"loss added by seeing only {point['context']} tokens", point, unit
    elif name == "retrieval":
        for row in measured["results"]:
            place = f"{row['task']} at {row['length']} tokens"
            skipped = {"value": math.nan}
            yield (place, row, unit) if "value" in row else (place, skipped, row["skipped"])
    elif name == "cost":
        for label, value in measured.items():
            if isinstance(value, int | float):
                yield label.replace("_", " "), {"value": value}, ""


def _interval(estimate: dict[str, Any]) -> str:
    if estimate.get("interval") is None:  # one cluster has no spread
        return ""
    low, high = estimate["interval"]
    return f"[{low:.4g}, {high:.4g}]"
