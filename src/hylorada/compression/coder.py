"""Symbols to bytes and back: a range coder, ended so that its messages form a prefix code.

Every message is an interval of the unit interval, and the bytes name a sub-interval of it: whatever
follows them, the same symbols are decoded. No message is therefore the beginning of another one,
and 8 times the number of bytes is a code length that needs no length field.
"""

from typing import Any

import numpy as np
from constriction import stream
from jaxtyping import Float, Int, Int32, Integer

from hylorada.compression.probabilities import (
    TOTAL,
    Frequencies,
    Model,
    frequencies,
    static_model,
)
from hylorada.errors import CodecError, SpecError

WORD_BYTES = 4
STATE_BITS = 64
MAX_COUNT = 1 << 24

Distribution = Any  # constriction ships no types
Symbols = Int32[np.ndarray, " count"]
Weights = Integer[np.ndarray, " levels"] | Float[np.ndarray, " levels"]


class Writer:
    """A message in the making: integers and symbols, coded one after the other."""

    def __init__(self) -> None:
        self._encoder = stream.queue.RangeEncoder()

    def integer(self, value: int, below: int) -> None:
        """Append an integer in log2(below) bits; `below` is at most 2^16."""
        if not 0 <= value < below <= 1 << 16:
            raise SpecError(f"an integer must be at least 0 and below {below}; got {value}")
        if below > 1:
            self._encoder.encode(value, stream.model.Uniform(below))

    def symbols(self, symbols: Int[np.ndarray, " count"], model: Model) -> None:
        """Append symbols from 0 to the model's levels - 1."""
        if symbols.size and not 0 <= symbols.min() <= symbols.max() < model.levels:
            raise SpecError(
                f"symbols must lie between 0 and {model.levels - 1}; "
                f"got {symbols.min()} to {symbols.max()}"
            )
        _require_count(len(symbols))
        if model.levels == 1:
            return
        sent = np.ascontiguousarray(symbols, dtype=np.int32)
        counts = np.zeros(model.levels, dtype=np.int64)
        start = 0
        while start < len(sent):
            part = sent[start : start + model.block(start)]
            self._encoder.encode(part, _categorical(model, counts))
            counts += np.bincount(part, minlength=model.levels)
            start += len(part)

    def message(self) -> bytes:
        """Return the shortest bytes that decode to what was written, whatever follows them."""
        if self._encoder.is_empty():
            return b""
        words, (lower, width) = self._encoder.pos()
        size = WORD_BYTES * words + STATE_BITS // 8
        sealed = self._encoder.get_compressed().astype(">u4").tobytes().ljust(size, b"\0")[:size]
        point = int.from_bytes(sealed, "big")
        # The coder tells the start of its interval only modulo its state; the point lies within.
        start = point - (point - lower) % (1 << STATE_BITS)
        return _shortest(start, start + width, size)


class Reader:
    """A message being decoded; reading past its end yields zeros, never an error."""

    def __init__(self, message: bytes) -> None:
        padded = message + bytes(-len(message) % WORD_BYTES)
        self._decoder = stream.queue.RangeDecoder(
            np.frombuffer(padded, dtype=">u4").astype(np.uint32)
        )

    def integer(self, below: int) -> int:
        """Return the next integer, which was written with the same `below`."""
        return 0 if below == 1 else int(self._decode(stream.model.Uniform(below), 1)[0])

    def symbols(self, count: int, model: Model) -> Symbols:
        """Return the next symbols, which were written with the same model."""
        _require_count(count)
        symbols = np.zeros(count, dtype=np.int32)
        counts = np.zeros(model.levels, dtype=np.int64)
        start = count if model.levels == 1 else 0
        while start < count:
            size = min(model.block(start), count - start)
            part = self._decode(_categorical(model, counts), size)
            counts += np.bincount(part, minlength=model.levels)
            symbols[start : start + size] = part
            start += size
        return symbols

    def _decode(self, distribution: Distribution, count: int) -> Symbols:
        try:
            decoded: Symbols = self._decoder.decode(distribution, count)
        except AssertionError as error:
            raise CodecError("the payload is damaged: no message begins with its bytes") from error
        return decoded


def encode(symbols: Int[np.ndarray, " count"], model: Model | Weights) -> bytes:
    """Return symbols as bytes; 8 times their number is the code length in bits.

    Args:
        symbols: Integers from 0 to levels - 1.
        model: How likely each is: a model, or the counts or probabilities of the levels.
    """
    writer = Writer()
    writer.symbols(symbols, _model(model))
    return writer.message()


def decode(message: bytes, model: Model | Weights, count: int) -> Symbols:
    """Return the symbols that were encoded with this model.

    Raises:
        CodecError: The bytes are not what `encode` makes of any symbols.
    """
    reading = _model(model)
    symbols = Reader(message).symbols(count, reading)
    if encode(symbols, reading) != message:
        raise CodecError("the payload is damaged: it is not the shortest form of its symbols")
    return symbols


def ideal_bits(symbols: Int[np.ndarray, " count"], model: Model | Weights) -> float:
    """Return the bits that the model's probabilities give the symbols: an estimate, not a file."""
    reading = _model(model)
    counts = np.zeros(reading.levels, dtype=np.int64)
    bits, start = 0.0, 0
    while start < len(symbols) and reading.levels > 1:
        part = np.bincount(
            symbols[start : start + reading.block(start)], minlength=reading.levels
        ).astype(np.int64)
        shares = frequencies(reading.weights(counts)) / TOTAL
        bits -= float(part @ np.log2(shares))
        counts += part
        start += int(part.sum())
    return bits


def _model(model: Model | Weights) -> Model:
    return static_model(model) if isinstance(model, np.ndarray) else model


def _categorical(model: Model, counts: Frequencies) -> Distribution:
    # The coder adds 1 to each level and scales the rest to what is left of 2^24; the rest sums to
    # that already, so the scale is exactly 1 and the probabilities are exactly our integers.
    return stream.model.Categorical(
        (frequencies(model.weights(counts)) - 1).astype(np.float64), perfect=False
    )


def _shortest(start: int, end: int, size: int) -> bytes:
    """Return the fewest leading bytes of a number in [start, end) that keep it there."""
    for spare in range((end - start).bit_length() // 8, -1, -1):
        lead = -(-start >> 8 * spare)
        if (lead + 1) << 8 * spare <= end:
            return lead.to_bytes(size - spare, "big")
    raise AssertionError("an interval holds each of its own points")


def _require_count(count: int) -> None:
    if not 0 <= count <= MAX_COUNT:
        raise CodecError(f"a message holds at most {MAX_COUNT:,} symbols; got {count:,}")
