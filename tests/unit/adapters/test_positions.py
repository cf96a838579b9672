"""Positions from whatever a decoder is given: position_ids, else the mask, else the cache."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hylorada import UnsupportedModelError
from hylorada.adapters.positions import PositionContext, resolve_positions
from tests.families import adapt, logits, tokens


def cache_of(length: int) -> DynamicCache:
    cache = DynamicCache()
    states = torch.zeros(2, 1, length, 4)
    cache.update(states, states, 0)
    return cache


TOKENS = torch.zeros(2, 3, dtype=torch.long)
PADDED = torch.tensor([[1, 1, 1], [0, 1, 1]])
CASES: dict[str, tuple[dict[str, Any], list[list[int]] | None]] = {
    "tokens": ({"input_ids": TOKENS}, [[0, 1, 2]]),
    "embeddings": ({"inputs_embeds": torch.zeros(2, 3, 4)}, [[0, 1, 2]]),
    "nothing": ({}, None),
    "given": ({"input_ids": TOKENS, "position_ids": torch.tensor([[4, 5, 0]])}, [[4, 5, 0]]),
    "given in one dimension": (
        {"input_ids": TOKENS, "position_ids": torch.tensor([4, 5, 0])},
        [[4, 5, 0]],
    ),
    "given for several axes": (
        {
            "input_ids": TOKENS,
            "position_ids": torch.tensor([[[4, 5, 0]], [[9, 9, 9]]]),
        },
        [[4, 5, 0]],
    ),
    "given beside a mask": (
        {"input_ids": TOKENS, "position_ids": torch.tensor([[7, 8, 9]]), "attention_mask": PADDED},
        [[7, 8, 9]],
    ),
    "left padding": (
        {"input_ids": TOKENS, "attention_mask": PADDED},
        [[0, 1, 2], [0, 0, 1]],
    ),
    "a mask of truths": (
        {"input_ids": TOKENS, "attention_mask": PADDED.bool()},
        [[0, 1, 2], [0, 0, 1]],
    ),
    "a mask that is already four-dimensional": (
        {"input_ids": TOKENS, "attention_mask": torch.zeros(2, 1, 3, 3)},
        [[0, 1, 2]],
    ),
    "a cache": ({"input_ids": TOKENS, "past_key_values": cache_of(4)}, [[4, 5, 6]]),
    "an empty cache": ({"input_ids": TOKENS, "past_key_values": DynamicCache()}, [[0, 1, 2]]),
    "a cache behind left padding": (
        {
            "input_ids": TOKENS[:, :1],
            "past_key_values": cache_of(2),
            "attention_mask": PADDED,
        },
        [[2], [1]],
    ),
    "a mask longer than what is filled": (
        {
            "input_ids": TOKENS[:, :1],
            "past_key_values": cache_of(2),
            "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 0, 0]]),
        },
        [[2], [1]],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_positions_are_found_from(case: str) -> None:
    inputs, expected = CASES[case]
    found = resolve_positions(inputs)
    assert (None if found is None else found.tolist()) == expected


def test_positions_of_another_length_are_refused_with_a_repair() -> None:
    context = PositionContext()
    context.current = torch.zeros(1, 3, dtype=torch.long)
    assert context.require(torch.zeros(2, 3, 7)) is context.current
    assert context.require(torch.zeros(6, 7)) is context.current  # two sequences in one matrix
    for given in (torch.zeros(2, 5, 7), torch.zeros(5, 7)):
        with pytest.raises(UnsupportedModelError, match=r"got 3 positions for 5 tokens; pass pos"):
            context.require(given)


@pytest.mark.parametrize(
    ("batch", "rows"), [(None, None), (["one", "two", "one"], [0, 2]), (["two"], [])]
)
def test_an_adapter_serves_its_rows_of_a_mixed_batch(
    batch: list[str] | None, rows: list[int] | None
) -> None:
    context = PositionContext()
    context.mixed_batch = batch
    assert context.rows("one") == rows


def test_nothing_is_remembered_after_a_pass() -> None:
    model = adapt("llama", landmark_design="original")
    logits(model, tokens())
    context: PositionContext = model.base_model.positions
    remembered = [value for value in vars(context).values() if isinstance(value, Tensor)]
    assert remembered == []
    assert context.cache is None


def test_nothing_is_remembered_after_a_pass_that_failed() -> None:
    model = adapt("llama")
    with pytest.raises(IndexError):
        logits(model, tokens() + 1000)
    assert model.base_model.positions.current is None
