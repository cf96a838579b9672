import io

from rich.console import Console

from hylorada.bounds import Ledger, Prior, issue
from hylorada.experiments.certificate_table import certificate_table
from tests.unit.bounds.losses import evidence


def shown(message_bits: int) -> str:
    certificate = issue(
        evidence(),
        Ledger(message_bits=message_bits),
        Prior(kind="pretrained", name="smollm2"),
        level="document",
        message={},
        model={},
        data={"documents_read": 3000},
        code={},
    )
    console = Console(file=io.StringIO(), width=100)
    console.print(certificate_table(certificate))
    return console.file.getvalue()


def test_every_statement_has_a_row_with_bound_and_measurement() -> None:
    text = shown(200)
    assert "document level, 3,000 documents, 215 bits paid" in text
    assert "gain over the frozen model, at least" in text
    assert "top-100 error, at most" in text
    assert "%" in text
    assert "vacuous" not in text


def test_the_caveats_are_shown_below() -> None:
    words = " ".join(shown(200).split())
    assert "All of them hold at once. smollm2 was trained without these documents" in words


def test_a_bound_that_says_nothing_is_marked() -> None:
    assert "(vacuous)" in shown(10**7)
