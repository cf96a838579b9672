"""What a terminal shows: of a certificate, of an evaluation, and of a study with its answer."""

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hylorada.bounds.statements import BITS, FROZEN_LOSS, GAIN, LOSS
from hylorada.records.certificates import Certificate
from hylorada.records.evaluations import Estimate, Evaluation
from hylorada.records.studies import Arm, SeedMean, Study

LABELS = {
    GAIN: "gain over the frozen model, at least",
    FROZEN_LOSS: "loss of the frozen model, at most",
    LOSS: "loss of the adapted model, at most",
}


def certificate_table(certificate: Certificate) -> Table:
    """Return one row per statement, and what was paid for them."""
    bits = f"{certificate.ledger.bits:,.0f} bits paid"
    read = f"{certificate.data.documents_read:,} documents"
    title = f"{certificate.level} level, {read}, {bits}"
    table = _table(title, "statement", ("certified", "measured"), "unit")
    table.caption = "All of them hold at once. " + " ".join(certificate.assumptions)
    table.caption_justify = "left"
    for statement in certificate.statements:
        words = statement.name.replace("_", " ").replace("top ", "top-")
        label = LABELS.get(statement.name, f"{words}, at most")
        form = ".4f" if statement.unit == BITS else ".2%"
        mark = " (vacuous)" if statement.vacuous and statement.unit == BITS else ""
        certified, measured = f"{statement.bound:{form}}{mark}", f"{statement.measured:{form}}"
        table.add_row(label, certified, measured, statement.unit)
    return table


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return one row per number that a metric is usually quoted by."""
    title = None
    if (subject := evaluation.subject) is not None:
        what = " on ".join(filter(None, (subject.adapter, subject.model)))
        title = escape(f"{what}, {subject.data} ({subject.split})")
    table = _table(title, "metric", ("value", "95 % interval"), "unit")
    for name, measured in evaluation.metrics.items():
        for label, estimate, unit in measured.quoted(name):
            value, interval = "–" if estimate is None else f"{estimate.value:.4g}", ""
            if estimate is not None and estimate.interval is not None:  # one cluster has no spread
                interval = "[{:.4g}, {:.4g}]".format(*estimate.interval)
            table.add_row(label, value, interval, unit)
    return table


def _table(title: str | None, first: str, numbers: tuple[str, str], last: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in numbers:
        table.add_column(heading, justify="right")
    table.add_column(last)
    return table


def show(study: Study, console: Console) -> None:
    """Print the table, the boundaries, the checks that failed, and the answer."""
    console.print(study_table(study))
    if any(arm.allocation for arm in study.arms):
        console.print(allocation_table(study))
    for arm in study.arms:
        if arm.boundaries is None:
            continue
        for run, places in zip(arm.runs, arm.boundaries.learned, strict=True):
            tokens = " ".join(f"{place:.0f}" for place in places)
            line = f"{arm.name}, boundaries of seed {run.seed}: {tokens}"
            console.print(line, markup=False, highlight=False)
    for check in study.checks:
        if not check.passed:
            console.print(f"CHECK FAILED: {check.name}: {check.detail}", markup=False)
    together = "\n".join if study.statements else " ".join
    console.print(together(study.sentences), markup=False, highlight=False)


def study_table(study: Study) -> Table:
    """Return the table for a terminal: perplexity, change, parameters, time, price, verdict."""
    seeds = ", ".join(map(str, study.plan.seeds))
    table = _plain_table(escape(f"{study.title} (seeds {seeds})"))
    table.add_column("arm")
    for heading in ("PPL", "change [95 %]", "trained", "time", "per 1 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", min_width=len("inconclusive"))
    if study.frozen is not None:
        table.add_row("frozen", _shown(study.frozen.perplexity, ".3f"), "", "0", "", "", "")
    for arm in study.arms:
        table.add_row(escape(arm.name), *_cells(arm))
    return table


def _cells(arm: Arm) -> tuple[str, ...]:
    parameters = _shown(arm.trainable_parameters, ",")
    seconds = None if arm.cost is None else arm.cost.train_seconds
    label = arm.label or ""
    if label in tuple("ABCDE"):
        label += f" {arm.meaning}"
    if arm.explained_by:
        label += f" (explained by {', '.join(arm.explained_by)})"
    return (
        _shown(arm.perplexity, ".3f"),
        "" if arm.gain is None else change(arm.gain).replace(" [", "\n["),
        parameters if arm.added_parameters is None else f"{arm.added_parameters:+,}",
        "" if seconds is None else f"{seconds:.0f} s",
        _shown(arm.params_per_percent, ",.0f"),
        escape(label),
    )


def _shown(number: float | SeedMean | None, form: str) -> str:
    value = number.value if isinstance(number, SeedMean) else number
    return "" if value is None else format(value, form)


def change(gain: Estimate) -> str:
    """Return a gain as the change of perplexity in per cent: an improvement is negative."""
    shown = f"{-gain.value:+.2f} %"
    if gain.interval is None:
        return shown
    low, high = gain.interval
    return f"{shown} [{-high:+.2f}, {-low:+.2f}]"


def allocation_table(study: Study) -> Table:
    """Return bits, risk before and after quantisation, and bound of each division of coordinates.

    Means over seeds; risks and bounds in bits per token.
    """
    table = _plain_table(
        "Files and certificates, means over seeds; risk and bound in bits per token"
    )
    table.add_column("arm", no_wrap=True)
    for heading in ("B's share", "bits", "file", "risk", "quantised", "bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in study.arms:
        if (found := arm.allocation) is not None:
            table.add_row(
                escape(arm.name),
                _shown(found.share_of_b, ".2f"),
                _shown(found.bits, ",.0f"),
                f"{found.file_bytes:,.0f} B",
                _shown(found.risk_unquantised, ".3f"),
                _shown(found.risk, ".3f"),
                _shown(found.bound, ".3f") + (" (vacuous)" if found.vacuous else ""),
            )
    return table


def _plain_table(title: str) -> Table:
    return Table(
        box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left"
    )
