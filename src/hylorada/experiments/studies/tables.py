"""What a terminal shows of a study: tables, learned boundaries, failed checks and the answer."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show(study: dict[str, Any], console: Console) -> None:
    """Print the table, the boundaries, the checks that failed, and the answer."""
    console.print(study_table(study))
    if any(arm.get("allocation") for arm in study["arms"]):
        console.print(allocation_table(study))
    for line in boundary_lines(study):
        console.print(line, markup=False, highlight=False)
    for check in study["checks"]:
        if not check["passed"]:
            console.print(f"CHECK FAILED: {check['name']}: {check['detail']}", markup=False)
    together = "\n".join if study.get("statements") else " ".join
    console.print(together(study["sentences"]), markup=False, highlight=False)


def study_table(study: dict[str, Any]) -> Table:
    """Return the table for a terminal: perplexity, change, parameters, time, price, verdict."""
    seeds = ", ".join(map(str, study["plan"]["seeds"]))
    title = escape(f"{study['title']} (seeds {seeds})")
    table = _plain_table(title)
    table.add_column("arm")
    for heading in ("PPL", "change [95 %]", "trained", "time", "per 1 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", min_width=len("inconclusive"))
    frozen = study["frozen"]["perplexity"]
    table.add_row("frozen", f"{frozen:.3f}", "", "0", "", "", "")
    for arm in study["arms"]:
        table.add_row(escape(arm["name"]), *_cells(arm))
    return table


def _cells(arm: dict[str, Any]) -> tuple[str, ...]:
    added, seconds = arm["added_parameters"], arm["cost"]["train_seconds"]
    parameters = f"{arm['trainable_parameters']:,}" if added is None else f"{added:+,}"
    price = arm["params_per_percent"]
    label = arm["label"] or ""
    if label in tuple("ABCDE"):
        label += f" {arm['meaning']}"
    if arm["explained_by"]:
        label += f" (explained by {', '.join(arm['explained_by'])})"
    return (
        f"{arm['perplexity']['value']:.3f}",
        "" if arm["gain"] is None else change(arm["gain"]).replace(" [", "\n["),
        parameters,
        "" if seconds is None else f"{seconds:.0f} s",
        "" if price is None else f"{price:,.0f}",
        escape(label),
    )


def change(gain: dict[str, Any]) -> str:
    """Return a gain as the change of perplexity in per cent: an improvement is negative."""
    shown = f"{-gain['value']:+.2f} %"
    if gain["interval"] is None:
        return shown
    low, high = gain["interval"]
    return f"{shown} [{-high:+.2f}, {-low:+.2f}]"


def allocation_table(study: dict[str, Any]) -> Table:
    """Return bits, risk before and after quantisation, and bound of each division of coordinates.

    Means over seeds; risks and bounds in bits per token.
    """
    table = _plain_table(
        "Files and certificates, means over seeds; risk and bound in bits per token"
    )
    table.add_column("arm", no_wrap=True)
    for heading in ("B's share", "bits", "file", "risk", "quantised", "bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in study["arms"]:
        found = arm["allocation"]
        bound = f"{found['bound']['value']:.3f}" + (" (vacuous)" if found["vacuous"] else "")
        table.add_row(
            escape(arm["name"]),
            f"{found['share_of_b']['value']:.2f}",
            f"{found['bits']['value']:,.0f}",
            f"{found['file_bytes']:,.0f} B",
            f"{found['risk_unquantised']['value']:.3f}",
            f"{found['risk']['value']:.3f}",
            bound,
        )
    return table


def boundary_lines(study: dict[str, Any]) -> list[str]:
    """Return the learned boundaries of each arm that has some, in tokens."""
    return [
        f"{arm['name']}, boundaries of seed {run['seed']}: "
        + " ".join(f"{place:.0f}" for place in learned)
        for arm in study["arms"]
        if arm["boundaries"] is not None
        for run, learned in zip(arm["runs"], arm["boundaries"]["learned"], strict=True)
    ]


def _plain_table(title: str) -> Table:
    return Table(
        box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left"
    )
