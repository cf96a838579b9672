"""Bits and nats are different types; the only conversions live here."""

import math
from typing import NewType

Bits = NewType("Bits", float)
Nats = NewType("Nats", float)


def bits_from_nats(nats: Nats) -> Bits:
    """Return the same quantity of information in bits."""
    return Bits(nats / math.log(2))


def nats_from_bits(bits: Bits) -> Nats:
    """Return the same quantity of information in nats."""
    return Nats(bits * math.log(2))
