"""What a terminal shows of a certificate: bounds beside what was measured."""

from rich.table import Table

from hylorada.bounds.certificate import Certificate
from hylorada.bounds.statements import BITS, FROZEN_LOSS, GAIN, LOSS, Statement

LABELS = {
    GAIN: "gain over the frozen model, at least",
    FROZEN_LOSS: "loss of the frozen model, at most",
    LOSS: "loss of the adapted model, at most",
}


def certificate_table(certificate: Certificate) -> Table:
    """Return one row per statement, and what was paid for them."""
    bits = f"{certificate.ledger.bits:,.0f} bits paid"
    read = f"{certificate.data['documents_read']:,} documents"
    title = f"{certificate.level} level, {read}, {bits}"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = "All of them hold at once. " + " ".join(certificate.assumptions)
    table.add_column("statement")
    table.add_column("certified", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("unit")
    for statement in certificate.statements:
        table.add_row(_label(statement), _certified(statement), _number(statement), statement.unit)
    return table


def _label(statement: Statement) -> str:
    words = statement.name.replace("_", " ").replace("top ", "top-")
    return LABELS.get(statement.name, f"{words}, at most")


def _certified(statement: Statement) -> str:
    mark = " (vacuous)" if statement.vacuous else ""
    return f"{statement.bound:.4f}{mark}" if statement.unit == BITS else f"{statement.bound:.2%}"


def _number(statement: Statement) -> str:
    pattern = "{:.4f}" if statement.unit == BITS else "{:.2%}"
    return pattern.format(statement.measured)
