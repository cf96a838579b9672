"""What the terminal shows of a certificate: a row a statement, and what must hold for them."""

import io

from rich.console import Console

from hylorada.cli.tables import certificate_table
from hylorada.records.certificates import (
    Certificate,
    CertifiedText,
    Code,
    MeanLosses,
    Measured,
    MeasuredModel,
    MessageFile,
    Payment,
    Prior,
    Statement,
)


def certificate(*, vacuous: bool) -> Certificate:
    losses = MeanLosses(
        bits_per_token_over_documents=5.0,
        standard_deviation_over_documents=1.0,
        bits_per_token_over_tokens=5.0,
        bits_per_byte=1.5,
    )
    return Certificate(
        sentence="",
        level="document",
        delta=0.05,
        statements=[
            Statement(name="gain", bound=0.5, measured=0.75, unit="bits/token", vacuous=vacuous),
            Statement(
                name="top_100_error",
                bound=0.25,
                measured=0.125,
                unit="share of tokens",
                vacuous=False,
            ),
        ],
        assumptions=["smollm2 was trained without these documents."],
        prior=Prior(kind="pretrained", name="smollm2"),
        ledger=Payment(
            message_bits=200,
            prefix_free_bits=215.2,
            choices=[],
            bits=215.2,
            nats=149.2,
            paid_inside_each_bound=[],
        ),
        message=MessageFile(file="a.hyl", bytes=30, sha256="", configuration_id=""),
        model=MeasuredModel(
            base="smollm2",
            base_sha256="",
            vocabulary=100,
            max_length=64,
            stride=32,
            dtype="float32",
            device="cpu",
        ),
        data=CertifiedText(
            source="sotu",
            split="train",
            lines="auto",
            fingerprint="",
            documents=3000,
            tokens=9000,
            documents_read=3000,
            tokens_read=9000,
            samples=None,
            seed=0,
        ),
        measured=Measured(adapted=losses, frozen=None, losses_sha256=""),
        code=Code(packages={}, sha256=""),
    )


def shown(*, vacuous: bool = False) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(certificate_table(certificate(vacuous=vacuous)))
    return text.getvalue()


def test_every_statement_has_a_row_with_bound_and_measurement() -> None:
    text = shown()
    assert "document level, 3,000 documents, 215 bits paid" in text
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    assert ["gain over the frozen model, at least", "0.5000", "0.7500", "bits/token"] in rows
    assert ["top-100 error, at most", "25.00%", "12.50%", "share of tokens"] in rows
    assert "vacuous" not in text


def test_the_caveats_are_shown_below() -> None:
    words = " ".join(shown().split())
    assert "All of them hold at once. smollm2 was trained without these documents" in words


def test_a_bound_that_says_nothing_is_marked() -> None:
    assert "0.5000 (vacuous)" in shown(vacuous=True)
