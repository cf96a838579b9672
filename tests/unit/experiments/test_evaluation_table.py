"""What the terminal shows of an evaluation: the numbers quoted, with intervals where known."""

import io
from typing import Any

import pytest
from rich.console import Console

from hylorada.experiments.evaluation_table import evaluation_table

SUBJECT = {"model": "tiny", "adapter": None, "data": "sotu", "split": "test"}
ESTIMATE = {"value": 12.345678, "standard_error": 0.5, "interval": [11.3, 13.4], "clusters": 9}
ALONE = {"value": 3.0, "standard_error": None, "interval": None, "clusters": 1}


def shown(metrics: dict[str, Any], **subject: Any) -> str:
    text = io.StringIO()
    result = {"subject": SUBJECT | subject, "metrics": metrics}
    Console(file=text, width=160).print(evaluation_table(result))
    return text.getvalue()


def rows(metrics: dict[str, Any]) -> list[list[str]]:
    lines = [line for line in shown(metrics).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_the_title_names_model_data_and_split() -> None:
    assert shown({}).splitlines()[0].strip() == "tiny, sotu (test)"


def test_the_title_names_the_adapter_before_its_model() -> None:
    title = shown({"mid_ppl": ESTIMATE}, adapter="runs/one").splitlines()[0].strip()
    assert title == "runs/one on tiny, sotu (test)"


def test_brackets_in_a_path_are_shown() -> None:
    assert "texts[new]" in shown({"mid_ppl": ESTIMATE}, data="texts[new]")


def test_a_value_has_four_digits_an_interval_and_a_unit() -> None:
    measured = {"mid_ppl": {**ESTIMATE, "unit": "perplexity"}}
    assert rows(measured) == [["mid_ppl", "12.35", "[11.3, 13.4]", "perplexity"]]


def test_a_value_from_one_cluster_has_no_interval() -> None:
    assert rows({"mid_ppl": {**ALONE, "unit": "perplexity"}}) == [
        ["mid_ppl", "3", "", "perplexity"]
    ]


def test_perplexity_is_also_quoted_in_bits() -> None:
    measured = {"bits_per_token": ALONE, "bits_per_byte": ALONE, "tokens": 12345}
    found = rows({"ppl": {**ESTIMATE, "unit": "perplexity", **measured}})
    assert [row[0] for row in found] == ["ppl", "bits per token", "bits per byte"]
    assert found[1][3] == "12,345 tokens"


EVIDENCE = {**ESTIMATE, "unit": "perplexity of the answer", "lim_gap": ESTIMATE}


def test_evidence_has_a_gap_and_a_utilisation() -> None:
    found = rows({"lim_ppl": {**EVIDENCE, "utilisation": ALONE}})
    assert [row[0] for row in found] == ["lim_ppl", "gap, middle to edge", "utilisation"]


def test_evidence_that_is_worth_nothing_has_no_utilisation() -> None:
    found = rows({"lim_ppl": {**EVIDENCE, "utilisation": None}})
    assert [row[0] for row in found] == ["lim_ppl", "gap, middle to edge"]


def test_a_position_curve_is_quoted_by_its_ends() -> None:
    curve = [{**ALONE, "start": start, "end": start + 8} for start in (0, 8, 16)]
    found = rows({"position_curve": {"unit": "nats/token", "curve": curve}})
    assert [row[0] for row in found] == ["loss at positions 0–7", "loss at positions 16–23"]
    assert {row[3] for row in found} == {"nats/token"}


def test_the_full_context_adds_no_loss_and_has_no_row() -> None:
    curve = [{**ESTIMATE, "context": context} for context in (8, 16, 480)]
    found = rows({"context_gain": {"unit": "nats/token", "curve": curve}})
    assert [row[0] for row in found] == [
        "loss added by seeing only 8 tokens",
        "loss added by seeing only 16 tokens",
    ]


def test_a_retrieval_task_that_was_skipped_says_why() -> None:
    results = [
        {**ESTIMATE, "task": "passkey", "length": 64},
        {"task": "key_value", "length": 64, "skipped": "too short"},
    ]
    found = rows({"retrieval": {"unit": "share of answers", "results": results}})
    assert [row[0] for row in found] == ["passkey at 64 tokens", "key_value at 64 tokens"]
    assert found[1][1:] == ["nan", "", "too short"]


def test_costs_are_the_numbers_among_what_was_measured() -> None:
    cost = {"forward_seconds": 0.25, "batch": [4, 8], "device": "cpu", "parameters": 1200}
    assert rows({"cost": cost}) == [
        ["forward seconds", "0.25", "", ""],
        ["parameters", "1200", "", ""],
    ]


@pytest.mark.parametrize("metrics", [{}, {"retrieval": {"results": []}}])
def test_nothing_measured_is_an_empty_table(metrics: dict[str, Any]) -> None:
    assert rows(metrics) == []
