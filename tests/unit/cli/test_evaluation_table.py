"""What the terminal shows of an evaluation: the numbers quoted, with intervals where known."""

import io
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict
from rich.console import Console

from hylorada.cli.tables import evaluation_table
from hylorada.records.evaluations import (
    ContextGain,
    ContextPoint,
    Cost,
    Estimate,
    Evaluation,
    EvidencePosition,
    Matches,
    Measurement,
    Perplexity,
    PositionCurve,
    PositionPoint,
    Quantity,
    Retrieval,
    Skipped,
    Subject,
)

SUBJECT = Subject(model="tiny", adapter=None, data="sotu", split="test")
ESTIMATE = Estimate(value=12.345678, standard_error=0.5, interval=(11.3, 13.4), clusters=9)
ALONE = Estimate(value=3.0, clusters=1)
MIDDLE = Quantity(**asdict(ESTIMATE), unit="perplexity")
BITS = Quantity(**asdict(ALONE), unit="bits")


def shown(metrics: dict[str, Measurement], **subject: Any) -> str:
    text = io.StringIO()
    about = msgspec.structs.replace(SUBJECT, **subject)
    found = Evaluation(subject=about, metrics=metrics, settings={}, data={}, seconds={})
    Console(file=text, width=160).print(evaluation_table(found))
    return text.getvalue()


def rows(name: str, measured: Measurement) -> list[list[str]]:
    lines = [line for line in shown({name: measured}).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def evidence(utilisation: Estimate | None) -> EvidencePosition:
    return EvidencePosition(
        **asdict(ESTIMATE),
        unit="perplexity of the answer",
        scoring="",
        lim_gap=BITS,
        utilisation=utilisation,
        worst_utilisation=None,
        closed=BITS,
        oracle=BITS,
        curve=[],
        items=1,
        tokens=1,
        length=64,
    )


def retrieval(*results: Matches | Skipped) -> Retrieval:
    return Retrieval(unit="share of answers", scoring="", cluster="item", results=[*results])


def test_the_title_names_model_data_and_split() -> None:
    assert shown({}).splitlines()[0].strip() == "tiny, sotu (test)"


def test_the_title_names_the_adapter_before_its_model() -> None:
    title = shown({"mid_ppl": MIDDLE}, adapter="runs/one").splitlines()[0].strip()
    assert title == "runs/one on tiny, sotu (test)"


def test_brackets_in_a_path_are_shown() -> None:
    assert "texts[new]" in shown({"mid_ppl": MIDDLE}, data="texts[new]")


def test_a_value_has_four_digits_an_interval_and_a_unit() -> None:
    assert rows("mid_ppl", MIDDLE) == [["mid_ppl", "12.35", "[11.3, 13.4]", "perplexity"]]


def test_a_value_from_one_cluster_has_no_interval() -> None:
    assert rows("mid_ppl", BITS) == [["mid_ppl", "3", "", "bits"]]


def test_perplexity_is_also_quoted_in_bits() -> None:
    measured = Perplexity(
        **asdict(ESTIMATE),
        unit="perplexity",
        length=64,
        stride=64,
        loss=BITS,
        bits_per_token=BITS,
        bits_per_byte=BITS,
        tokens=12345,
        bytes=50000.0,
    )
    found = rows("ppl", measured)
    assert [row[0] for row in found] == ["ppl", "bits per token", "bits per byte"]
    assert found[1][3] == "12,345 tokens"


def test_evidence_has_a_gap_and_a_utilisation() -> None:
    found = rows("lim_ppl", evidence(ALONE))
    assert [row[0] for row in found] == ["lim_ppl", "gap, middle to edge", "utilisation"]


def test_evidence_that_is_worth_nothing_has_no_utilisation() -> None:
    found = rows("lim_ppl", evidence(None))
    assert [row[0] for row in found] == ["lim_ppl", "gap, middle to edge"]


def test_a_position_curve_is_quoted_by_its_ends() -> None:
    curve = [PositionPoint(**asdict(ALONE), start=at, end=at + 8) for at in (0, 8, 16)]
    measured = PositionCurve(unit="nats/token", cluster="block", length=24, tokens=99, curve=curve)
    found = rows("position_curve", measured)
    assert [row[0] for row in found] == ["loss at positions 0–7", "loss at positions 16–23"]
    assert {row[3] for row in found} == {"nats/token"}


def test_the_full_context_adds_no_loss_and_has_no_row() -> None:
    curve = [ContextPoint(**asdict(ESTIMATE), context=context) for context in (8, 16, 480)]
    measured = ContextGain(
        unit="nats/token",
        cluster="window",
        length=480,
        targets=32,
        windows_from="documents",
        full_context=curve[-1],
        curve=curve,
    )
    assert [row[0] for row in rows("context_gain", measured)] == [
        "loss added by seeing only 8 tokens",
        "loss added by seeing only 16 tokens",
    ]


def test_a_retrieval_task_that_was_skipped_says_why() -> None:
    measured = Matches(
        **asdict(ESTIMATE),
        task="passkey",
        length=64,
        worst_depth=0.5,
        matching_tokens=ALONE,
        items=1,
        prompts=11,
        curve=[],
    )
    skipped = Skipped(task="key_value", length=64, skipped="too short")
    found = rows("retrieval", retrieval(measured, skipped))
    assert [row[0] for row in found] == ["passkey at 64 tokens", "key_value at 64 tokens"]
    assert found[1][1:] == ["–", "", "too short"]


def test_costs_are_the_numbers_among_what_was_measured() -> None:
    cost = Cost(
        forward_seconds=0.25,
        tokens_per_second=64.0,
        batch=(4, 8),
        repeats=3,
        device="cpu",
        peak_memory_bytes=10,
        peak_memory_of="process",
        parameters=1200,
        trainable_parameters=0,
    )
    found = {row[0]: row[1] for row in rows("cost", cost)}
    assert (found["forward seconds"], found["parameters"]) == ("0.25", "1200")
    assert "device" not in found
    assert "batch" not in found
    assert "adapter bytes" not in found


@pytest.mark.parametrize("metrics", [{}, {"retrieval": retrieval()}])
def test_nothing_measured_is_an_empty_table(metrics: dict[str, Measurement]) -> None:
    assert "│" not in shown(metrics)
