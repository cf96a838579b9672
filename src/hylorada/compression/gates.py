"""Gates on a grid: a few bits each, coded beside the coordinates."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32

from hylorada.compression.quantise import finite
from hylorada.errors import SpecError

# Gates are logits: beyond ±4 a group has given all but 2 % to one factor.
WIDTH = 8.0
MAX_BITS = 8


@dataclass(frozen=True, slots=True)
class QuantisedGates:
    """Points of a grid of 2^bits gates in [-4, 4).

    Attributes:
        symbols: An index a gate.
        bits: Bits a gate.
    """

    symbols: Int32[np.ndarray, " groups"]
    bits: int

    @property
    def values(self) -> Float[np.ndarray, " groups"]:
        """Return the float32 gates that a decoder returns."""
        step = np.float32(WIDTH / 2**self.bits)
        return (self.symbols - 2 ** (self.bits - 1)).astype(np.float32) * step


def quantise_gates(gates: Float[np.ndarray, " groups"], bits: int = 6) -> QuantisedGates:
    """Return the nearest points of the grid; an untrained gate, 0, is one of them."""
    if not 1 <= bits <= MAX_BITS:
        raise SpecError(f"gate bits must lie between 1 and {MAX_BITS}; got {bits}")
    points = np.rint(finite(gates) / (WIDTH / 2**bits)) + 2 ** (bits - 1)
    return QuantisedGates(np.clip(points, 0, 2**bits - 1).astype(np.int32), bits)
