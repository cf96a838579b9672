"""The counted part of a message: codebook, gates and symbols in one range-coded stream."""

import numpy as np

from hylorada.compression.codebooks import (
    MAX_LEVELS,
    SHORT_STEPS,
    Codebook,
    Quantised,
    listed_codebook,
    scaled_codebook,
    step_from_index,
    step_index,
)
from hylorada.compression.coder import Reader, Writer
from hylorada.compression.gates import MAX_BITS, QuantisedGates
from hylorada.compression.probabilities import AdaptiveModel, StaticModel
from hylorada.errors import CodecError

SCALED, LISTED = 0, 1
KINDS = 2
FLOAT16_PATTERNS = 1 << 16
# A largest multiple k ≥ 1 has probability 1/(k(k+1)): 1 bit for three levels, 5 bits for eleven.
LARGEST = StaticModel(
    np.array([1, *((1 << 20) // (k * (k + 1)) for k in range(1, MAX_LEVELS // 2 + 1))])
)


def written_stream(quantised: Quantised, gates: QuantisedGates | None) -> bytes:
    """Return the bytes of codebook, gates and symbols."""
    writer = Writer()
    _write_codebook(writer, quantised.codebook)
    if gates is not None:
        writer.integer(gates.bits - 1, MAX_BITS)
        writer.symbols(gates.symbols, _gate_model(gates.bits))
    writer.symbols(quantised.symbols, _symbol_model(quantised.codebook))
    return writer.message()


def read_stream(stream: bytes, count: int, groups: int) -> tuple[Quantised, QuantisedGates | None]:
    """Return `count` coordinates and `groups` gates from the bytes that were written for them.

    Raises:
        CodecError: No adapter is written like that.
    """
    reader = Reader(stream)
    codebook = _read_codebook(reader)
    gates = None
    if groups:
        bits = reader.integer(MAX_BITS) + 1
        gates = QuantisedGates(reader.symbols(groups, _gate_model(bits)), bits)
    quantised = Quantised(reader.symbols(count, _symbol_model(codebook)), codebook)
    # One adapter, one message: also the only thing that notices bytes cut off or appended.
    if written_stream(quantised, gates) != stream:
        raise CodecError("the message is damaged: its payload is not the shortest for its weights")
    return quantised, gates


def _write_codebook(writer: Writer, codebook: Codebook) -> None:
    if codebook.step is not None:
        writer.integer(SCALED, KINDS)
        writer.symbols(np.array([codebook.levels // 2]), LARGEST)
        writer.integer(step_index(codebook.step) - 1, SHORT_STEPS - 1)
        return
    writer.integer(LISTED, KINDS)
    writer.integer(codebook.levels - 1, MAX_LEVELS)
    for pattern in codebook.values.astype(np.float16).view(np.uint16):
        writer.integer(int(pattern), FLOAT16_PATTERNS)


def _read_codebook(reader: Reader) -> Codebook:
    if reader.integer(KINDS) == SCALED:
        largest = int(reader.symbols(1, LARGEST)[0])
        return scaled_codebook(step_from_index(reader.integer(SHORT_STEPS - 1) + 1), largest)
    levels = reader.integer(MAX_LEVELS) + 1
    patterns = [reader.integer(FLOAT16_PATTERNS) for _ in range(levels)]
    values = np.array(patterns, dtype=np.uint16).view(np.float16)
    if not np.isfinite(values).all():
        raise CodecError("the message is damaged: its codebook holds infinities or NaN")
    return listed_codebook(values)


def _symbol_model(codebook: Codebook) -> AdaptiveModel:
    return AdaptiveModel(codebook.levels, symmetric=codebook.step is not None)


def _gate_model(bits: int) -> StaticModel:
    return StaticModel(np.ones(2**bits, dtype=np.int64))
