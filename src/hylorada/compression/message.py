"""One small file for one adapter: what the prior fixes, and the bytes that are paid for.

    "hylorada" | version | checksum | configuration id | d | gates | length | configuration | stream

The configuration (base model, targets, rank, projection and its seed …) is fixed before the data
are seen. It lies in the file so that decoding needs nothing else, and is not counted. Nor are
magic, version, checksum and id, which say nothing new, nor d and the number of gates, which the
configuration implies. Where one of several configurations was chosen by looking at the data, the
choice is charged in the selection ledger of the certificate.

The stream is counted. It holds kind, size and values of the codebook, the gates and the symbols.
Whatever it can say it has paid for: to choose levels, step, dead zone or method by looking at the
data costs nothing beyond it. Given the configuration it is a prefix code, so `counted_bits` is a
code length as it stands.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int32

from hylorada.compression.coder import MAX_COUNT, AdaptiveModel, Reader, StaticModel, Writer
from hylorada.compression.quantise import (
    SHORT_STEPS,
    Codebook,
    Quantised,
    finite,
    listed_codebook,
    scaled_codebook,
    step_from_index,
    step_index,
)
from hylorada.errors import CodecError, SpecError
from hylorada.specs.evaluation import MAX_GATE_BITS, MAX_LEVELS

# Gates are logits: beyond ±4 a group has given all but 2 % to one factor.
WIDTH = 8.0


@dataclass(frozen=True, slots=True)
class QuantisedGates:
    """Points of a grid of 2^bits gates in [-4, 4); a symbol is the index of one."""

    symbols: Int32[np.ndarray, " groups"]
    bits: int

    @property
    def values(self) -> Float[np.ndarray, " groups"]:
        """Return the float32 gates that a decoder returns."""
        step = np.float32(WIDTH / 2**self.bits)
        return (self.symbols - 2 ** (self.bits - 1)).astype(np.float32) * step


def quantise_gates(gates: Float[np.ndarray, " groups"], bits: int = 6) -> QuantisedGates:
    """Return the nearest points of the grid; an untrained gate, 0, is one of them."""
    if not 1 <= bits <= MAX_GATE_BITS:
        raise SpecError(f"gate bits must lie between 1 and {MAX_GATE_BITS}; got {bits}")
    points = np.rint(finite(gates) / (WIDTH / 2**bits)) + 2 ** (bits - 1)
    return QuantisedGates(np.clip(points, 0, 2**bits - 1).astype(np.int32), bits)


SCALED, LISTED = 0, 1
KINDS = 2
FLOAT16_PATTERNS = 1 << 16
# A largest multiple k ≥ 1 has probability 1/(k(k+1)): 1 bit for three levels, 5 bits for eleven.
LARGEST = StaticModel(
    np.array([1, *((1 << 20) // (k * (k + 1)) for k in range(1, MAX_LEVELS // 2 + 1))])
)


def written_stream(quantised: Quantised, gates: QuantisedGates | None) -> bytes:
    """Return the bytes of codebook, gates and symbols."""
    writer, codebook = Writer(), quantised.codebook
    if codebook.step is not None:
        writer.integer(SCALED, KINDS)
        writer.symbols(np.array([codebook.levels // 2]), LARGEST)
        writer.integer(step_index(codebook.step) - 1, SHORT_STEPS - 1)
    else:
        writer.integer(LISTED, KINDS)
        writer.integer(codebook.levels - 1, MAX_LEVELS)
        for pattern in codebook.values.astype(np.float16).view(np.uint16):
            writer.integer(int(pattern), FLOAT16_PATTERNS)
    if gates is not None:
        writer.integer(gates.bits - 1, MAX_GATE_BITS)
        writer.symbols(gates.symbols, _gate_model(gates.bits))
    writer.symbols(quantised.symbols, _symbol_model(codebook))
    return writer.message()


def read_stream(stream: bytes, count: int, groups: int) -> tuple[Quantised, QuantisedGates | None]:
    """Return `count` coordinates and `groups` gates from the bytes that were written for them."""
    reader, gates = Reader(stream), None
    if reader.integer(KINDS) == SCALED:
        largest = int(reader.symbols(1, LARGEST)[0])
        codebook = scaled_codebook(step_from_index(reader.integer(SHORT_STEPS - 1) + 1), largest)
    else:
        levels = reader.integer(MAX_LEVELS) + 1
        patterns = [reader.integer(FLOAT16_PATTERNS) for _ in range(levels)]
        values = np.array(patterns, dtype=np.uint16).view(np.float16)
        if not np.isfinite(values).all():
            raise CodecError("the message is damaged: its codebook holds infinities or NaN")
        codebook = listed_codebook(values)
    if groups:
        bits = reader.integer(MAX_GATE_BITS) + 1
        gates = QuantisedGates(reader.symbols(groups, _gate_model(bits)), bits)
    quantised = Quantised(reader.symbols(count, _symbol_model(codebook)), codebook)
    # One adapter, one message: also the only thing that notices bytes cut off or appended.
    if written_stream(quantised, gates) != stream:
        raise CodecError("the message is damaged: its payload is not the shortest for its weights")
    return quantised, gates


def _symbol_model(codebook: Codebook) -> AdaptiveModel:
    return AdaptiveModel(codebook.levels, symmetric=codebook.step is not None)


def _gate_model(bits: int) -> StaticModel:
    return StaticModel(np.ones(2**bits, dtype=np.int64))


Json = dict[str, Any]
MAGIC = b"hylorada"
VERSION = 1
ID_BYTES = 16
CHECKSUM_BYTES = 4
MAX_GATES = 1 << 16
MAX_CONFIGURATION_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 26
MAX_VARINT_BYTES = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """An adapter as a message holds it.

    Attributes:
        configuration: What is fixed before the data are seen, in JSON's types.
    """

    configuration: Json
    quantised: Quantised
    gates: QuantisedGates | None = None

    @property
    def counted(self) -> bytes:
        """Return the bytes that the prior does not fix."""
        return written_stream(self.quantised, self.gates)

    @property
    def counted_bits(self) -> int:
        """Return the code length in bits: 8 times the number of counted bytes."""
        return 8 * len(self.counted)

    @property
    def configuration_id(self) -> str:
        """Return 32 hexadecimal digits that stand for the configuration."""
        return _digest(_canonical(self.configuration)).hex()

    def to_bytes(self) -> bytes:
        """Return the file's contents."""
        configuration = _canonical(self.configuration)
        groups = 0 if self.gates is None else len(self.gates.symbols)
        sizes = (len(self.quantised.symbols), groups, len(configuration))
        _require_sizes(sizes, MAX_CONFIGURATION_BYTES)
        header = _digest(configuration) + b"".join(map(_varint, sizes))
        body = header + configuration + self.counted
        checksum = zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big")
        return MAGIC + bytes([VERSION]) + checksum + body


def parse(data: bytes) -> Message:
    """Return the message in a file's contents.

    Raises:
        CodecError: The file is foreign, of another version, truncated or damaged.
    """
    body = _checked_body(data)
    count, at = _read_varint(body, ID_BYTES)
    groups, at = _read_varint(body, at)
    length, at = _read_varint(body, at)
    _require_sizes((count, groups, length), min(MAX_CONFIGURATION_BYTES, len(body) - at))
    configuration, counted = body[at : at + length], body[at + length :]
    if _digest(configuration) != body[:ID_BYTES]:
        raise CodecError("the message is damaged: its configuration does not match its id")
    quantised, gates = read_stream(counted, count, groups)
    try:
        found = json.loads(configuration)
    except (ValueError, RecursionError) as error:
        raise CodecError("the message's configuration is not JSON") from error
    if not isinstance(found, dict) or _canonical(found) != configuration:
        raise CodecError("the message's configuration is not in canonical form")
    return Message(configuration=found, quantised=quantised, gates=gates)


def _checked_body(data: bytes) -> bytes:
    start = len(MAGIC) + 1 + CHECKSUM_BYTES
    if len(data) > MAX_FILE_BYTES:
        raise CodecError(f"a message has at most {MAX_FILE_BYTES:,} bytes; got {len(data):,}")
    if data[: len(MAGIC)] != MAGIC:
        raise CodecError("the file is not a message of hylorada compress: it begins otherwise")
    if len(data) < start + ID_BYTES:
        raise CodecError(f"the message is truncated: only {len(data)} bytes are left")
    if data[len(MAGIC)] != VERSION:
        raise CodecError(
            f"the message has version {data[len(MAGIC)]}, this release reads version {VERSION}; "
            "decode it with the release that wrote it"
        )
    body = data[start:]
    if zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") != data[start - CHECKSUM_BYTES : start]:
        raise CodecError("the message is damaged or truncated: its checksum does not match")
    return body


def _canonical(configuration: Json) -> bytes:
    """Return JSON that is the same for equal configurations."""
    try:
        text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"a message's configuration must be JSON; {error}") from error
    return text.encode("ascii")


def _digest(configuration: bytes) -> bytes:
    return hashlib.sha256(configuration).digest()[:ID_BYTES]


def _varint(value: int) -> bytes:
    """Return an integer as bytes of 7 bits each, the lowest first; all but the last have bit 8."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[start : start + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80 and (byte > 0 or place == 0):
            return value, start + place + 1
        if byte < 0x80:
            break
    raise CodecError("the message is damaged: an integer in its header does not end as it must")


def _require_sizes(sizes: tuple[int, int, int], longest: int) -> None:
    names = ("d", "the number of gates", "the configuration's length")
    for what, value, most in zip(names, sizes, (MAX_COUNT, MAX_GATES, longest), strict=True):
        if value > most:
            raise CodecError(f"{what} must be at most {most:,} in a message; got {value:,}")
