"""Messages decode to what was encoded, are as short as their probabilities say, and say no more."""

import contextlib
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hylorada.compression.coder import (
    MAX_COUNT,
    AdaptiveModel,
    Reader,
    StaticModel,
    Writer,
    decode,
    encode,
    ideal_bits,
    model_of,
)
from hylorada.errors import CodecError, SpecError


def drawn(seed: int, count: int, levels: int) -> np.ndarray:
    """Return symbols that crowd around the middle."""
    draws = np.random.default_rng(seed).normal(levels / 2, levels / 6, size=count)
    return np.clip(draws, 0, levels - 1).astype(np.int32)


def models(symbols: np.ndarray, levels: int) -> list[AdaptiveModel | StaticModel]:
    """Return a model of each kind."""
    counts = np.bincount(symbols, minlength=levels)
    found = [AdaptiveModel(levels), model_of(counts + 1)]
    return [*found, AdaptiveModel(levels, symmetric=True)] if levels % 2 else found


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.binary(max_size=1200))
def test_decode_inverts_encode(levels: int, drawn_bytes: bytes) -> None:
    numbers = np.frombuffer(drawn_bytes, dtype=np.uint8).astype(np.int32) % levels
    for part in np.array_split(numbers, 100):  # 10,000 messages
        for_this = models(part, levels)
        model = for_this[len(part) % len(for_this)]
        assert np.array_equal(decode(encode(part, model), model, len(part)), part)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=100), st.binary(max_size=9))
def test_no_message_is_the_beginning_of_another(numbers: list[int], more: bytes) -> None:
    symbols = np.array(numbers, dtype=np.int32)
    model = AdaptiveModel(5)
    longer = encode(symbols, model) + more
    assert np.array_equal(Reader(longer).symbols(len(symbols), model), symbols)


def test_probabilities_may_be_given_as_an_array() -> None:
    symbols = drawn(0, 200, 5)
    probabilities = (np.bincount(symbols, minlength=5) + 1.0) / (len(symbols) + 5)
    assert np.array_equal(decode(encode(symbols, probabilities), probabilities, 200), symbols)


@pytest.mark.parametrize("levels", [2, 3, 11, 255])
@pytest.mark.parametrize("count", [1, 7, 200, 1000, 30_000])
def test_a_message_is_as_short_as_its_probabilities_say(count: int, levels: int) -> None:
    symbols = drawn(count, count, levels)
    for model in models(symbols, levels):
        bits, ideal = 8 * len(encode(symbols, model)), ideal_bits(symbols, model)
        assert ideal - 1e-6 <= bits <= 1.0005 * ideal + 10


def test_ideal_bits_of_an_adaptive_model_follow_the_counts() -> None:
    # one half, then (1½)/2 of what was seen once, then ½/3 of what was never seen
    expected = -np.log2([1 / 2, 3 / 4, 1 / 6]).sum()
    found = ideal_bits(np.array([0, 0, 1], dtype=np.int32), AdaptiveModel(2))
    assert found == pytest.approx(expected, abs=1e-6)


def test_fair_bits_take_their_number_of_bits() -> None:
    symbols = np.array([0, 1] * 40, dtype=np.int32)
    assert len(encode(symbols, np.array([1, 1]))) == 11  # 80 bits, and the end


def test_levels_that_never_occur_can_still_be_coded() -> None:
    symbols = np.array([1], dtype=np.int32)
    never = np.array([1, 0])
    assert np.array_equal(decode(encode(symbols, never), never, 1), symbols)
    assert ideal_bits(symbols, never) == pytest.approx(24)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_an_alphabet_of_one_needs_no_bytes(count: int) -> None:
    symbols = np.zeros(count, dtype=np.int32)
    assert encode(symbols, AdaptiveModel(1)) == b""
    assert np.array_equal(decode(b"", AdaptiveModel(1), count), symbols)


def test_no_symbols_need_no_bytes() -> None:
    assert encode(np.zeros(0, dtype=np.int32), AdaptiveModel(3)) == b""


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_million_symbols_take_less_than_a_second(adaptive: bool) -> None:
    symbols = drawn(3, 1_000_000, 11)
    model = AdaptiveModel(11) if adaptive else model_of(np.bincount(symbols, minlength=11))
    start = time.process_time()
    message = encode(symbols, model)
    found = decode(message, model, len(symbols))
    assert time.process_time() - start < 1.0
    assert np.array_equal(found, symbols)
    assert 8 * len(message) <= 1.01 * ideal_bits(symbols, model) + 64


def test_fields_and_symbols_share_one_stream() -> None:
    writer = Writer()
    writer.integer(991, 992)
    writer.symbols(np.array([2, 0, 1]), AdaptiveModel(3))
    writer.integer(0, 1)
    writer.integer(65535, 1 << 16)
    reader = Reader(writer.message())
    assert reader.integer(992) == 991
    assert reader.symbols(3, AdaptiveModel(3)).tolist() == [2, 0, 1]
    assert reader.integer(1) == 0
    assert reader.integer(1 << 16) == 65535


def test_an_integer_takes_the_bits_of_its_range() -> None:
    writer = Writer()
    for value in range(8):
        writer.integer(value, 8)
    assert len(writer.message()) == 4  # 24 bits, and the end


# Refusals


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_foreign_bytes_decode_to_their_only_symbols_or_are_refused(data: bytes, count: int) -> None:
    model = AdaptiveModel(5)
    with contextlib.suppress(CodecError):
        assert encode(decode(data, model, count), model) == data


def test_bytes_that_no_message_begins_with_are_refused() -> None:
    with pytest.raises(CodecError, match="damaged"):
        decode(b"\xff" * 40, np.array([1 << 20, 1, 1]), 1000)


def test_appended_bytes_are_refused() -> None:
    symbols = drawn(1, 100, 3)
    message = encode(symbols, AdaptiveModel(3))
    with pytest.raises(CodecError, match="not the shortest form"):
        decode(message + b"\0", AdaptiveModel(3), 100)


@pytest.mark.parametrize("symbols", [[3], [-1], [0, 5, 1]])
def test_symbols_outside_the_alphabet_are_refused(symbols: list[int]) -> None:
    with pytest.raises(SpecError, match="symbols must lie between 0 and 2"):
        encode(np.array(symbols), AdaptiveModel(3))


@pytest.mark.parametrize("value", [-1, 4])
def test_an_integer_outside_its_range_is_refused(value: int) -> None:
    with pytest.raises(SpecError, match="at least 0 and below 4"):
        Writer().integer(value, 4)


def test_a_count_is_checked_before_anything_is_allocated() -> None:
    with pytest.raises(CodecError, match="at most 16,777,216 symbols"):
        decode(b"", AdaptiveModel(3), MAX_COUNT + 1)
    with pytest.raises(CodecError, match="at most 16,777,216 symbols"):
        decode(b"", AdaptiveModel(3), -1)
