"""Symbols to bytes and back: a range coder, ended so that its messages form a prefix code.

Every message is an interval of the unit interval, and the bytes name a sub-interval of it: whatever
follows them, the same symbols are decoded. No message is therefore the beginning of another one,
and 8 times the number of bytes is a code length that needs no length field.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from constriction import stream
from jaxtyping import Float, Int, Int32, Integer
from scipy.special import gammaln

from hylorada.errors import CodecError, SpecError
from hylorada.units import Bits

PRECISION = 24
TOTAL = 1 << PRECISION
LARGEST_ALPHABET = 1 << 12
# A weight times TOTAL must fit into 63 bits.
MAX_WEIGHT_SUM = 1 << (62 - PRECISION)
WORD_BYTES = 4
STATE_BITS = 64
MAX_COUNT = 1 << 24
FLOAT16_BITS = 16

Distribution = Any  # constriction ships no types
Frequencies = Int[np.ndarray, " levels"]
Symbols = Int32[np.ndarray, " count"]
Weights = Integer[np.ndarray, " levels"] | Float[np.ndarray, " levels"]


# Probabilities


@dataclass(frozen=True, slots=True)
class StaticModel:
    """The same weights for every symbol; they must be known to the decoder."""

    table: Frequencies

    def __post_init__(self) -> None:
        _require_alphabet(len(self.table))
        if self.table.min() < 0 or not 0 < self.table.sum() <= MAX_WEIGHT_SUM:
            raise SpecError(
                "weights must not be negative and must sum to between 1 and "
                f"{MAX_WEIGHT_SUM:,}; got a sum of {self.table.sum():,}"
            )

    @property
    def levels(self) -> int:
        """Return the size of the alphabet."""
        return len(self.table)

    def block(self, coded: int) -> int:
        """Return a number beyond every message: nothing is learned on the way."""
        return MAX_COUNT

    def weights(self, counts: Frequencies) -> Frequencies:
        """Return the table."""
        return self.table


@dataclass(frozen=True, slots=True)
class AdaptiveModel:
    """Krichevsky–Trofimov estimates from the symbols before, so that nothing is sent ahead.

    Counts are brought up to date after every block of an eighth of what was coded. That costs
    about a tenth of the learning cost of updating after each symbol, and a million symbols need
    110 tables instead of a million.

    Attributes:
        levels: Size of the alphabet.
        symmetric: Levels at equal distance from the middle are equally likely: half as many
            numbers to learn. Takes an odd number of levels.
    """

    levels: int
    symmetric: bool = False

    def __post_init__(self) -> None:
        _require_alphabet(self.levels)
        if self.symmetric and self.levels % 2 == 0:
            raise SpecError(f"a symmetric model takes an odd number of levels; got {self.levels}")

    def block(self, coded: int) -> int:
        """Return the number of symbols until the counts are next brought up to date."""
        return 1 + coded // 8

    def weights(self, counts: Frequencies) -> Frequencies:
        """Return four times the count and a half of each level, or of each level's magnitude."""
        if not self.symmetric:
            return 4 * counts + 2
        weights = 2 * (counts + counts[::-1]) + 1  # a magnitude's share for each of two signs
        middle = self.levels // 2
        weights[middle] = 4 * counts[middle] + 2
        return weights


Model = StaticModel | AdaptiveModel


def model_of(model: Model | Weights) -> Model:
    """Return a model as it is, or one of counts or of probabilities in steps of 2^-32."""
    if not isinstance(model, np.ndarray):
        return model
    _require_alphabet(len(model))
    if np.issubdtype(model.dtype, np.integer):
        return StaticModel(model.astype(np.int64))
    values = model.astype(np.float64)
    total = float(values.sum())
    if not np.isfinite(values).all() or values.min() < 0 or total <= 0:
        raise SpecError("probabilities must be finite, none negative, and some positive")
    return StaticModel(np.floor(values / total * 2.0**32).astype(np.int64))


def frequencies(weights: Frequencies) -> Frequencies:
    """Return positive integers in the proportions of the weights that sum to 2^24."""
    free = TOTAL - len(weights)
    scaled: Frequencies = weights * free // weights.sum()
    scaled[int(weights.argmax())] += free - scaled.sum()
    return scaled + 1


def _require_alphabet(levels: int) -> None:
    if not 1 <= levels <= LARGEST_ALPHABET:
        raise SpecError(f"levels must lie between 1 and {LARGEST_ALPHABET:,}; got {levels:,}")


def _in_blocks(symbols: Symbols, model: Model) -> Iterator[tuple[Symbols, Frequencies]]:
    """Yield each block, a view to read or to fill, and the frequencies learned before it."""
    counts = np.zeros(model.levels, dtype=np.int64)
    start = 0 if model.levels > 1 else len(symbols)
    while start < len(symbols):
        block = symbols[start : start + model.block(start)]
        yield block, frequencies(model.weights(counts))
        counts += np.bincount(block, minlength=model.levels)
        start += len(block)


# Bytes


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
        sent = np.ascontiguousarray(symbols, dtype=np.int32)
        for block, shares in _in_blocks(sent, model):
            self._encoder.encode(block, _categorical(shares))

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
        # The fewest leading bytes of a number in the interval that keep it there.
        for spare in range(width.bit_length() // 8, -1, -1):
            lead = -(-start >> 8 * spare)
            if (lead + 1) << 8 * spare <= start + width:
                return lead.to_bytes(size - spare, "big")
        raise AssertionError("an interval holds each of its own points")


class Reader:
    """A message being decoded; reading past its end yields zeros, never an error."""

    def __init__(self, message: bytes) -> None:
        padded = message + bytes(-len(message) % WORD_BYTES)
        words = np.frombuffer(padded, dtype=">u4").astype(np.uint32)
        self._decoder = stream.queue.RangeDecoder(words)

    def integer(self, below: int) -> int:
        """Return the next integer, which was written with the same `below`."""
        return 0 if below == 1 else int(self._decode(stream.model.Uniform(below), 1)[0])

    def symbols(self, count: int, model: Model) -> Symbols:
        """Return the next symbols, which were written with the same model."""
        _require_count(count)
        symbols = np.zeros(count, dtype=np.int32)
        for block, shares in _in_blocks(symbols, model):
            block[:] = self._decode(_categorical(shares), len(block))
        return symbols

    def _decode(self, distribution: Distribution, count: int) -> Symbols:
        try:
            return np.asarray(self._decoder.decode(distribution, count))
        except AssertionError as error:
            raise CodecError("the payload is damaged: no message begins with its bytes") from error


def encode(symbols: Int[np.ndarray, " count"], model: Model | Weights) -> bytes:
    """Return symbols from 0 to levels - 1 as bytes; 8 times their number is the code length.

    The model says how likely each is: a model, or the counts or probabilities of the levels.
    """
    writer = Writer()
    writer.symbols(symbols, model_of(model))
    return writer.message()


def decode(message: bytes, model: Model | Weights, count: int) -> Symbols:
    """Return the symbols that were encoded with this model.

    Raises:
        CodecError: The bytes are not what `encode` makes of any symbols.
    """
    symbols = Reader(message).symbols(count, model_of(model))
    if encode(symbols, model) != message:
        raise CodecError("the payload is damaged: it is not the shortest form of its symbols")
    return symbols


def _categorical(shares: Frequencies) -> Distribution:
    # The coder adds 1 to each level and scales the rest to what is left of 2^24; the rest sums to
    # that already, so the scale is exactly 1 and the probabilities are exactly our integers.
    return stream.model.Categorical((shares - 1).astype(np.float64), perfect=False)


def _require_count(count: int) -> None:
    if not 0 <= count <= MAX_COUNT:
        raise CodecError(f"a message holds at most {MAX_COUNT:,} symbols; got {count:,}")


# Lengths by formula


def ideal_bits(symbols: Int[np.ndarray, " count"], model: Model | Weights) -> float:
    """Return the bits that the model's probabilities give the symbols: an estimate, not a file."""
    blocks = _in_blocks(symbols.astype(np.int32), model_of(model))
    return math.fsum(float(-np.log2(shares[block] / TOTAL).sum()) for block, shares in blocks)


def entropy_bits(counts: Sequence[int]) -> Bits:
    """Return the bits of symbols under their own frequencies, which no decoder knows."""
    occurring = np.array([count for count in counts if count > 0], dtype=np.float64)
    return Bits(float(-(occurring * np.log2(occurring / occurring.sum())).sum()))


def published_bits(counts: Sequence[int]) -> int:
    """Return the bits of symbols, codebook and counts as SubLoRA's authors reckon them.

    `prefix_free_bits` of it is the published length.
    """
    levels, total = len(counts), sum(counts)
    per_count = math.ceil(math.log2(total)) if total > 1 else 0
    symbols = math.ceil(entropy_bits(counts)) + 1
    return symbols + levels * FLOAT16_BITS + levels * per_count


def prefix_free_bits(length: float) -> Bits:
    """Return a length with 2 log2 of it added, so that a message says where it ends."""
    return Bits(length + 2 * math.log2(length)) if length > 1 else Bits(length)


def adaptive_bits(counts: Sequence[int], *, symmetric: bool = False) -> Bits:
    """Return the bits of an `AdaptiveModel` that learns after each symbol, whatever their order."""
    seen, signs = np.array(counts, dtype=np.float64), 0.0
    if symmetric:
        middle = len(seen) // 2
        sizes = seen[middle:].copy()
        sizes[1:] += seen[:middle][::-1]
        seen, signs = sizes, float(sizes[1:].sum())
    half, levels = 0.5, len(seen)
    nats = gammaln(seen.sum() + half * levels) - gammaln(half * levels)
    nats -= (gammaln(seen + half) - gammaln(half)).sum()
    return Bits(float(nats) / math.log(2) + signs)
