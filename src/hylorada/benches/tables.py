"""Tables of what adapters cost."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table


def adapter_tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table for each measurement: ratios to PEFT's LoRA with 95 % intervals."""
    for run in result["runs"]:
        details = [run["shape"]["name"], run["dtype"], f"{run['targets']} targets"]
        if run.get("dropout"):
            details.append(f"dropout {run['dropout']}")
        table = Table(title=f"{run['what']}: {', '.join(details)}", title_justify="left")
        table.add_column("over PEFT LoRA")
        for heading in ("time", "95 %", "processor time", "95 %", "least of it", "memory"):
            table.add_column(heading, justify="right")
        for name, row in run["methods"].items():
            memory = f"{row['memory']:.3f}" if "memory" in row else ""
            times = (*_ratio(row["time"]), *_ratio(row["processor_time"]))
            table.add_row(name, *times, f"{row['least_processor_time']:.3f}", memory)
        yield table


def _ratio(ratio: dict[str, float]) -> tuple[str, str]:
    return f"{ratio['value']:.3f}", f"{ratio['low']:.2f}–{ratio['high']:.2f}"
