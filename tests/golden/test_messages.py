"""Pinned messages: today's encoder writes these bytes, and today's decoder reads them."""

import hashlib

import numpy as np
import pytest

from hylorada.compression.message import parse
from tests.golden.make_messages import FOLDER, RAMP, pinned

NAMES = ["list", "one_step", "uniform_bins", "with_gates"]
COUNTED_BITS = {"list": 1088, "one_step": 1424, "uniform_bins": 1936, "with_gates": 816}
VALUES = {
    "list": "ffb32136123df97b",
    "one_step": "7b52f7e023188533",
    "uniform_bins": "e032e64e53458075",
    "with_gates": "dc8c81ac49e5c6c0",
}


def contents(name: str) -> bytes:
    """Return a pinned file."""
    return (FOLDER / f"{name}.hyl").read_bytes()


def test_every_message_is_pinned() -> None:
    assert sorted(pinned()) == NAMES
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_writes_the_pinned_bytes(name: str) -> None:
    assert pinned()[name].to_bytes() == contents(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_decoder_reads_the_pinned_weights(name: str) -> None:
    found = parse(contents(name))
    assert found.counted_bits == COUNTED_BITS[name]
    assert hashlib.sha256(found.quantised.values.tobytes()).hexdigest()[:16] == VALUES[name]
    assert np.abs(found.quantised.values - RAMP).max() < 0.5


def test_the_pinned_gates_are_read() -> None:
    gates = parse(contents("with_gates")).gates
    assert gates is not None
    assert gates.values.tolist() == [-1.0, 0.0, 0.5, 3.0]
