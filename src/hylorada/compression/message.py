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

from hylorada.compression.codebooks import Quantised
from hylorada.compression.coder import MAX_COUNT
from hylorada.compression.gates import QuantisedGates
from hylorada.compression.stream import read_stream, written_stream
from hylorada.errors import CodecError

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
        quantised: The coordinates.
        gates: The gates, where the adapter has any.
    """

    configuration: dict[str, Any]
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
        _require("d", len(self.quantised.symbols), MAX_COUNT)
        _require("the number of gates", groups, MAX_GATES)
        _require("the configuration's length", len(configuration), MAX_CONFIGURATION_BYTES)
        sizes = b"".join(map(_varint, (len(self.quantised.symbols), groups, len(configuration))))
        body = _digest(configuration) + sizes + configuration + self.counted
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
    _require("d", count, MAX_COUNT)
    _require("the number of gates", groups, MAX_GATES)
    _require("the configuration's length", length, min(MAX_CONFIGURATION_BYTES, len(body) - at))
    configuration, counted = body[at : at + length], body[at + length :]
    if _digest(configuration) != body[:ID_BYTES]:
        raise CodecError("the message is damaged: its configuration does not match its id")
    quantised, gates = read_stream(counted, count, groups)
    return Message(configuration=_parsed(configuration), quantised=quantised, gates=gates)


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


def _canonical(configuration: dict[str, Any]) -> bytes:
    """Return JSON that is the same for equal configurations."""
    try:
        text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"a message's configuration must be JSON; {error}") from error
    return text.encode("ascii")


def _parsed(configuration: bytes) -> dict[str, Any]:
    try:
        found = json.loads(configuration)
    except (ValueError, RecursionError) as error:
        raise CodecError("the message's configuration is not JSON") from error
    if not isinstance(found, dict) or _canonical(found) != configuration:
        raise CodecError("the message's configuration is not in canonical form")
    return found


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


def _require(what: str, value: int, most: int) -> None:
    if value > most:
        raise CodecError(f"{what} must be at most {most:,} in a message; got {value:,}")
