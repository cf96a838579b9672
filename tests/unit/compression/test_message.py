"""Messages: what is counted, what comes back, and what is refused."""

import contextlib
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hylorada.compression import message as messages
from hylorada.compression.coder import adaptive_bits, prefix_free_bits, published_bits
from hylorada.compression.message import Message, parse, quantise_gates
from hylorada.compression.quantise import Quantised, fitted, kmeans, symmetric, uniform
from hylorada.errors import CodecError

CONFIGURATION = {"adapter": {"r": 4, "targets": ["q", "v"]}, "name": "größer"}
START = 13  # magic, version and checksum


def normal(count: int) -> np.ndarray:
    """Return standard normal numbers in float32."""
    return np.random.default_rng(1).normal(size=count).astype(np.float32)


def message(quantised: Quantised, gates: int = 0, **configuration: Any) -> Message:
    """Return a message with so many gates."""
    return Message(
        configuration=CONFIGURATION | configuration,
        quantised=quantised,
        gates=quantise_gates(np.linspace(-3, 3, gates)) if gates else None,
    )


def resealed(data: bytes) -> bytes:
    """Return a file whose checksum fits its contents."""
    return data[: START - 4] + zlib.crc32(data[START:]).to_bytes(4, "big") + data[START:]


EXAMPLES = {
    "one step": message(fitted(normal(300), 7)),
    "gates": message(fitted(normal(60), 3), gates=13),
    "a list": message(kmeans(normal(100), 11)),
    "uniform bins": message(uniform(normal(100), 8), gates=1),
    "nothing but zeros": message(symmetric(np.zeros(1000), 1.0, 0)),
    "zeros among levels": message(symmetric(np.zeros(1000), 1.0, 3)),
    "one coordinate": message(symmetric(np.ones(1), 1.0, 1)),
    "empty": message(fitted(np.zeros(0), 3)),
}
FILES = {name: example.to_bytes() for name, example in EXAMPLES.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_comes_back_as_it_was(name: str) -> None:
    sent, found = EXAMPLES[name], parse(FILES[name])
    assert found.configuration == sent.configuration
    assert found.quantised.values.tobytes() == sent.quantised.values.tobytes()
    assert found.quantised.codebook.step == sent.quantised.codebook.step
    assert found.quantised.symbols.tolist() == sent.quantised.symbols.tolist()
    if sent.gates is None:
        assert found.gates is None
    else:
        assert found.gates is not None
        assert found.gates.values.tobytes() == sent.gates.values.tobytes()
    assert found.to_bytes() == FILES[name]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(1, 7), st.integers(0, 5), st.booleans(), st.integers(0, 99))
def test_any_adapter_comes_back(
    count: int, half: int, gates: int, is_listed: bool, seed: int
) -> None:
    vector = np.random.default_rng(seed).normal(size=count).astype(np.float32)
    quantised = kmeans(vector, 2 * half) if is_listed else symmetric(vector, 0.4, half)
    sent = message(quantised, gates)
    found = parse(sent.to_bytes())
    assert found.quantised.values.tobytes() == quantised.values.tobytes()
    assert found.counted == sent.counted


# What is counted


def test_the_counted_bytes_end_the_file() -> None:
    for name, example in EXAMPLES.items():
        assert FILES[name].endswith(example.counted)
        assert example.counted_bits == 8 * len(example.counted)


def test_the_configuration_is_not_counted_but_identified() -> None:
    short, long = message(fitted(normal(9), 3)), message(fitted(normal(9), 3), more="x" * 1000)
    assert short.counted_bits == long.counted_bits
    assert short.configuration_id != long.configuration_id
    assert bytes.fromhex(long.configuration_id) in long.to_bytes()


def test_the_order_of_a_configuration_does_not_matter() -> None:
    quantised = fitted(normal(9), 3)
    files = {
        Message(configuration=dict(pairs), quantised=quantised).to_bytes()
        for pairs in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    }
    assert len(files) == 1


@pytest.mark.parametrize(("count", "levels"), [(200, 3), (1000, 7), (5000, 11)])
def test_a_message_costs_a_few_bytes_more_than_its_symbols(count: int, levels: int) -> None:
    quantised = fitted(normal(count), levels)
    symbols = adaptive_bits(quantised.counts, symmetric=True)
    # kind 1, levels up to 5, step 10, end and bytes up to 9, and the blocks of the model
    assert 0 < message(quantised).counted_bits - symbols < 30


@pytest.mark.parametrize("count", [200, 1000, 10_000])
def test_the_published_procedure_costs_more_for_the_same_symbols(count: int) -> None:
    quantised = uniform(normal(count), 11)
    published = prefix_free_bits(published_bits(quantised.counts))
    assert message(quantised).counted_bits < published - 60
    scaled = fitted(normal(count), 11)
    published = prefix_free_bits(published_bits(scaled.counts))
    assert message(scaled).counted_bits < published - 200


def test_a_gate_costs_its_bits() -> None:
    quantised = fitted(normal(50), 3)
    more = message(quantised, gates=100).counted_bits - message(quantised, gates=4).counted_bits
    assert abs(more - 96 * 6) < 8


# Refusals


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    for head in (b"", messages.MAGIC, messages.MAGIC + bytes([messages.VERSION])):
        with pytest.raises(CodecError):
            parse(head + data)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_refused(name: str) -> None:
    data = FILES[name]
    for length in range(len(data)):
        with pytest.raises(CodecError, match=r"truncated|begins otherwise"):
            parse(data[:length])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_every_flipped_bit_is_noticed(name: str, draw: st.DataObject) -> None:
    data = bytearray(FILES[name])
    place = draw.draw(st.integers(0, 8 * len(data) - 1))
    data[place // 8] ^= 1 << place % 8
    with pytest.raises(CodecError):
        parse(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_forged_file_is_refused_or_is_the_only_form_of_what_it_says(
    name: str, draw: st.DataObject
) -> None:
    data = bytearray(FILES[name])
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(START, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(START + messages.ID_BYTES, len(data)))
    forged = resealed(bytes(data[:cut]) + draw.draw(st.binary(max_size=4)))
    with contextlib.suppress(CodecError):
        assert parse(forged).to_bytes() == forged


@pytest.mark.parametrize(
    ("forge", "complaint"),
    [
        (lambda data: b"PK\3\4" + data, "begins otherwise"),
        (lambda data: b"", "begins otherwise"),
        (lambda data: data[:8] + b"\2" + data[9:], "has version 2, this release reads version 1"),
        (lambda data: data + b"\0", "checksum does not match"),
        (lambda data: resealed(data + b"\0"), "not the shortest for its weights"),
        (lambda data: resealed(data[:-3]), "not the shortest for its weights"),
        (lambda data: resealed(data[:START] + bytes(16) + data[29:]), "does not match its id"),
        (lambda data: resealed(data[:29] + b"\xff" * 9), "an integer in its header does not end"),
        (lambda data: resealed(data[:29] + b"\x85\0\0\0"), "header does not end as it must"),
        (lambda data: resealed(data[:29]), "an integer in its header does not end"),
    ],
)
def test_a_refusal_says_what_is_wrong(forge: Any, complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint) as refusal:
        parse(forge(FILES["one step"]))
    assert "\n" not in str(refusal.value)


def with_header(sizes: bytes, configuration: bytes = b"{}", stream: bytes = b"") -> bytes:
    """Return a sealed file with these sizes in its header."""
    body = messages._digest(configuration) + sizes + configuration + stream
    return resealed(messages.MAGIC + bytes([messages.VERSION]) + bytes(4) + body)


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        (b"\xff\xff\xff\xff\x7f\0\2", "d must be at most 16,777,216"),
        (b"\5\xff\xff\xff\x7f\2", "number of gates must be at most 65,536"),
        (b"\5\0\xff\xff\x7f", "configuration's length must be at most 2 in a message"),
    ],
)
def test_sizes_are_checked_before_anything_is_allocated(sizes: bytes, complaint: str) -> None:
    with pytest.raises(CodecError, match=complaint):
        parse(with_header(sizes))


@pytest.mark.parametrize(
    ("configuration", "complaint"),
    [
        (b"[" * 50_000, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"1" * 5000, "is not JSON"),
        (b"[]", "not in canonical form"),
        (b'{"a": 1}', "not in canonical form"),
        (b'{"a":NaN}', "must be JSON"),
    ],
)
def test_a_configuration_is_canonical_json(configuration: bytes, complaint: str) -> None:
    sizes = b"\0\0" + messages._varint(len(configuration))
    stream = message(fitted(np.zeros(0), 3)).counted
    with pytest.raises(CodecError, match=complaint):
        parse(with_header(sizes, configuration, stream))


def test_a_codebook_of_infinities_is_refused() -> None:
    from hylorada.compression.coder import Writer

    writer = Writer()
    for value, below in ((1, 2), (0, 255), (0x7C00, 1 << 16)):
        writer.integer(value, below)
    with pytest.raises(CodecError, match="infinities or NaN"):
        parse(with_header(b"\0\0\2", stream=writer.message()))


def test_a_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(CodecError, match="at most 67,108,864 bytes"):
        parse(bytes(messages.MAX_FILE_BYTES + 1))


def test_a_configuration_that_is_too_long_is_not_written() -> None:
    with pytest.raises(CodecError, match="configuration's length must be at most 1,048,576"):
        message(fitted(np.zeros(0), 3), more="x" * (1 << 20)).to_bytes()


def test_nothing_but_json_is_a_configuration() -> None:
    for value in (float("nan"), {1, 2}):
        with pytest.raises(CodecError, match="configuration must be JSON"):
            message(fitted(np.zeros(0), 3), value=value).to_bytes()
