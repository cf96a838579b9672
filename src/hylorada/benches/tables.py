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
        table.add_column("method")
        table.add_column("time / PEFT LoRA", justify="right")
        table.add_column("95 % interval", justify="right")
        table.add_column("memory / PEFT LoRA", justify="right")
        for name, row in run["methods"].items():
            time = row["time"]
            memory = f"{row['memory']:.3f}" if "memory" in row else ""
            interval = f"[{time['low']:.3f}, {time['high']:.3f}]"
            table.add_row(name, f"{time['value']:.3f}", interval, memory)
        yield table
