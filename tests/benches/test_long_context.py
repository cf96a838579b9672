"""What long sequences cost: live bytes counted by hand, and a small growth."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from hylorada.errors import SpecError
from hylorada_benches.long_context import (
    CHUNKED,
    WHOLE,
    Growth,
    LiveBytes,
    fitting_peak,
    line_of,
    measure,
    tables,
)
from hylorada_benches.shapes import SMALL_LLAMA

GROWTH = Growth(
    shape=replace(
        SMALL_LLAMA, name="Llama 2x16", layers=2, width=16, heads=2, vocabulary=1024, batch=1
    ),
    lengths=(16, 32, 64),
    chunk_tokens=2,
)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return measure(rounds=2, growth=GROWTH)


def bytes_of(result: dict[str, Any], loss: str) -> list[int]:
    return [row["bytes"] for row in result["steps"] if row["loss"] == loss]


# Live bytes


def test_a_dropped_tensor_leaves_the_count_but_not_the_peak() -> None:
    with LiveBytes() as live:
        first = torch.zeros(10)
        assert live.now == 40
        second = torch.zeros(5)
        assert live.now == live.peak == 60
        del first
        assert live.now == 20
        third = torch.zeros(2, dtype=torch.float64)
    assert (live.now, live.peak) == (36, 60)
    assert second.numel() + third.numel() == 7


def test_a_view_and_an_operation_in_place_are_no_new_memory() -> None:
    outside = torch.ones(6)
    with LiveBytes() as live:
        outside.view(2, 3).add_(1)
        inside = torch.ones(4)
        inside[:2].mul_(3)
    assert live.peak == 16
    assert inside.sum() == 8


def test_an_empty_tensor_has_no_bytes() -> None:
    with LiveBytes() as live:
        torch.empty(0)
    assert live.peak == 0


def test_the_peak_sees_the_backward_pass() -> None:
    rows = torch.ones(8, requires_grad=True)
    with LiveBytes() as live:
        loss = rows.exp().sum()
        forward = live.peak
        loss.backward()
    # exp and the sum: 32 + 4; then the gradients of the sum and of the rows.
    assert forward == 36
    assert live.peak > 64


# The growth


def test_memory_grows_along_a_line(result: dict[str, Any]) -> None:
    for loss in (CHUNKED, WHOLE):
        assert result["lines"][loss]["r_squared"] > 0.999


def test_the_whole_loss_needs_the_logits_of_every_token(result: dict[str, Any]) -> None:
    # At least the logits and their gradient, four bytes each.
    for length, peak in zip(GROWTH.lengths, bytes_of(result, WHOLE), strict=True):
        assert peak >= 2 * 4 * 1024 * length


def test_chunks_need_less_and_grow_more_slowly(result: dict[str, Any]) -> None:
    pairs = zip(bytes_of(result, CHUNKED), bytes_of(result, WHOLE), strict=True)
    assert all(2 * chunked < whole for chunked, whole in pairs)
    slopes = {loss: line["bytes_per_token"] for loss, line in result["lines"].items()}
    assert 0 < 2 * slopes[CHUNKED] < slopes[WHOLE]


def test_every_step_is_timed_beside_the_whole_loss(result: dict[str, Any]) -> None:
    found = [(row["length"], row["loss"]) for row in result["steps"]]
    assert found == [(length, loss) for length in GROWTH.lengths for loss in (CHUNKED, WHOLE)]
    for row in result["steps"]:
        assert len(row["seconds"]) == len(row["processor_seconds"]) == 2
        assert row["median_seconds"] == pytest.approx(sum(row["seconds"]) / 2)
        assert row["time"]["value"] == 1.0 if row["loss"] == WHOLE else row["time"]["value"] > 0


def test_the_bench_becomes_two_tables(result: dict[str, Any]) -> None:
    console = Console(width=100, record=True)
    for table in tables(result):
        console.print(table)
    text = console.export_text()
    assert "A training step: Llama 2x16, float32, CPU, chunks of 2 tokens" in text
    slope = 1024 * result["lines"][WHOLE]["bytes_per_token"] / 2**20
    assert f"{slope:.2f}" in text


# Too long


def too_much() -> None:
    raise torch.OutOfMemoryError("out of memory")


def test_a_step_beyond_the_memory_has_no_peak() -> None:
    assert fitting_peak(too_much, "cpu") is None


def test_another_fault_is_not_taken_for_a_lack_of_memory() -> None:
    def wrong() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="size"):
        fitting_peak(wrong, "cpu")


def test_a_length_beyond_the_memory_is_told_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hylorada_benches import long_context

    made = long_context._step

    def limited(model: Any, tokens: torch.Tensor) -> Any:
        chunked = "forward" in vars(model.get_base_model())
        return made(model, tokens) if chunked or tokens.numel() < 3 else too_much

    monkeypatch.setattr(long_context, "_step", limited)
    result = measure(rounds=1, growth=replace(GROWTH, lengths=(2, 3)))
    assert bytes_of(result, WHOLE)[1] is None
    assert result["lines"][WHOLE] is None
    assert result["lines"][CHUNKED] is not None
    assert [row.get("time") is None for row in result["steps"]] == [False, False, True, True]
    console = Console(width=100, record=True)
    for table in tables(result):
        console.print(table)
    assert console.export_text().count("too many") == 1


# Lines


def test_a_line_is_fitted_by_least_squares() -> None:
    held: dict[tuple[str, int], int | None] = {
        ("a", 1): 10,
        ("a", 2): 12,
        ("a", 3): 17,
        ("b", 1): 99,
    }
    line = line_of(held, "a")
    # Slope 7/2, mean 13 at 2; residuals 1/2, -1, 1/2 beside a spread of 26.
    assert line is not None
    assert line["bytes_per_token"] == pytest.approx(3.5)
    assert line["bytes_at_zero"] == pytest.approx(6.0)
    assert line["r_squared"] == pytest.approx(1 - 1.5 / 26)
    assert line_of(held, "b") is None


def test_bytes_that_never_change_lie_on_a_line() -> None:
    line = line_of({("a", 1): 5, ("a", 2): 5}, "a")
    assert line is not None
    assert line["r_squared"] == 1.0
    assert line["bytes_per_token"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("lengths", [(8,), (8, 8), (16, 8)])
def test_lengths_must_grow(lengths: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="lengths must be at least 2 and grow"):
        replace(GROWTH, lengths=lengths)


def test_a_chunk_holds_a_token() -> None:
    with pytest.raises(SpecError, match="chunk_tokens must be at least 1; got 0"):
        replace(GROWTH, chunk_tokens=0)


def test_a_bench_needs_rounds() -> None:
    with pytest.raises(SpecError, match="rounds must be at least 1; got 0"):
        measure(rounds=0)
