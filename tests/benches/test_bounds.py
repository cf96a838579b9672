"""What a certificate costs, measured small."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from hylorada.errors import SpecError
from hylorada.evaluation.risk import TargetReader
from hylorada_benches import bounds
from hylorada_benches.bounds import (
    AGAIN,
    BARE,
    RISK,
    Reading,
    measure,
    measure_levels,
    measure_reading,
    tables,
)
from hylorada_benches.shapes import SMALL_GPT2, build
from hylorada_benches.surroundings import surroundings

TINY = replace(
    SMALL_GPT2, name="GPT-2 1x16", layers=1, width=16, heads=2, vocabulary=50, batch=1, length=8
)
READING = Reading(shape=TINY, documents=3, tokens_each=11, corpus=40)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return measure(rounds=2, reading=READING, document_counts=(7,), token_counts=(1, 90))


def test_long_documents_are_read_in_two_windows_of_the_context(result: dict[str, Any]) -> None:
    # Eleven tokens at a context of eight: 0..8 and 4..11, for each of three documents.
    assert result["reading"]["tokens_read"] == 3 * (8 + 7)


def test_a_speed_is_tokens_over_the_median_seconds(result: dict[str, Any]) -> None:
    passes = result["reading"]["passes"]
    assert list(passes) == [BARE, AGAIN, RISK]
    for row in passes.values():
        assert len(row["seconds"]) == len(row["processor_seconds"]) == 2
        assert row["tokens_per_second"] == pytest.approx(45 / np.median(row["seconds"]))


def test_speeds_are_told_beside_the_bare_forward(result: dict[str, Any]) -> None:
    passes = result["reading"]["passes"]
    assert passes[BARE]["speed"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    quotients = np.array(passes[RISK]["seconds"]) / np.array(passes[BARE]["seconds"])
    speed = passes[RISK]["speed"]
    assert speed["value"] == pytest.approx(1 / np.median(quotients))
    assert speed["low"] <= speed["value"] <= speed["high"]


def test_a_corpus_that_fits_the_time_is_read_whole(result: dict[str, Any]) -> None:
    whole = result["reading"]["whole_corpus"]
    assert whole["measured_documents"] == whole["documents"] == 40
    assert whole["seconds"] == whole["measured_seconds"] > 0


def test_a_corpus_beyond_the_time_is_extrapolated() -> None:
    model = build(TINY, torch.float32, "cpu").eval()
    spec = bounds.RiskSpec(max_length=8)
    # Eight seconds each leave time for two documents out of forty.
    whole = bounds._whole_corpus(model, READING, spec, 8.0)
    assert whole is not None
    assert whole["measured_documents"] == 2
    assert whole["seconds"] == pytest.approx(20 * whole["measured_seconds"])


def test_without_a_corpus_nothing_is_extrapolated() -> None:
    model = build(TINY, torch.float32, "cpu").eval()
    reading = replace(READING, corpus=0)
    assert bounds._whole_corpus(model, reading, bounds.RiskSpec(max_length=8), 1.0) is None


def test_the_bare_pass_gets_the_batches_of_the_risk_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[torch.Tensor]] = {BARE: [], RISK: []}
    read = TargetReader.read

    def bare(model: object, batches: list[torch.Tensor]) -> None:
        given[BARE] = batches

    def watched(
        reader: TargetReader, input_ids: torch.Tensor, places: torch.Tensor, *, ranked: bool
    ) -> object:
        given[RISK].append(input_ids)
        return read(reader, input_ids, places, ranked=ranked)

    monkeypatch.setattr(bounds, "_forward", bare)
    monkeypatch.setattr(TargetReader, "read", watched)
    # Rows of 512 tokens: eight make a batch, so nine documents make two.
    shape = replace(TINY, length=512)
    reading = Reading(shape=shape, documents=9, tokens_each=512)
    measure_reading(reading, device="cpu", rounds=1)
    assert [tuple(batch.shape) for batch in given[BARE]] == [(8, 512), (1, 512)]
    # A warm-up and a round.
    assert len(given[RISK]) == 4
    for first, second in zip(2 * given[BARE], given[RISK], strict=True):
        assert torch.equal(first, second)


def test_both_levels_are_timed_at_every_count() -> None:
    rows = measure_levels((2, 30), (1,), rounds=3)
    assert [(row["level"], row["values"]) for row in rows] == [
        ("document", 2),
        ("document", 30),
        ("token", 1),
    ]
    for row in rows:
        assert len(row["seconds"]) == 3
        assert row["median_seconds"] == sorted(row["seconds"])[1] > 0


def test_the_result_names_machine_and_versions(result: dict[str, Any]) -> None:
    for key, value in surroundings().items():
        assert result[key] == value
    assert result["device"] == "CPU"
    assert result["versions"]["torch"] == torch.__version__


def test_the_bench_becomes_two_tables_and_a_sentence(result: dict[str, Any]) -> None:
    console = Console(width=120, record=True)
    for table in tables(result):
        console.print(table)
    text = console.export_text()
    assert "Reading 3 documents of 11 tokens: GPT-2 1x16, float32, CPU" in text
    assert "40 such documents: " in text
    assert all(word in text for word in (RISK, BARE, "document", "token", "values/s"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": 0}, "documents must be at least 1; got 0"),
        ({"tokens_each": 1}, "tokens_each must be at least 2; got 1"),
    ],
)
def test_a_reading_needs_something_to_read(changes: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(READING, **changes)


def test_a_bench_needs_rounds() -> None:
    with pytest.raises(SpecError, match="rounds must be at least 1; got 0"):
        measure(rounds=0)
