"""Randomness as an argument: one seed per run, one named stream per use.

`generator` gives PyTorch's draws. `BitStream` gives the same bits on every machine and version.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

# A sum of twelve 16-bit uniforms has variance 1 - 2**-32 after this shift and scale.
UNIFORMS = 12
BITS = 16
HALVES = np.uint64(0x0000FFFF0000FFFF)
LOW = np.uint64(0xFFFFFFFF)
CHUNK = 1 << 20


def derived_seed(seed: int, *stream: str | int) -> int:
    """Return a 63-bit seed for the named stream, so that a new draw elsewhere moves no other."""
    name = "/".join(map(str, (seed, *stream))).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """Return a CPU generator for the named stream."""
    return torch.Generator().manual_seed(derived_seed(seed, *stream))


class BitStream:
    """The bits of one named stream; every call continues where the last one stopped."""

    def __init__(self, seed: int, *names: str | int) -> None:
        text = "/".join(map(str, (seed, *names))).encode()
        key = hashlib.sha256(text).digest()[:16]
        self._source = np.random.Philox(key=int.from_bytes(key, "little"))

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Return the next 64-bit words."""
        return self._source.random_raw(count)

    def below(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return an integer from zero up to, not including, each bound (below 2**31)."""
        high = self.raw(bounds.size).reshape(bounds.shape) >> np.uint64(32)
        scaled = (high * bounds.astype(np.uint64)) >> np.uint64(32)
        return scaled.astype(np.int64)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return the numbers below `count` in random order."""
        return np.argsort(self.raw(count), kind="stable").astype(np.int64)

    def signs(self, *shape: int) -> NDArray[np.int8]:
        """Return ones and minus ones."""
        drawn = self.raw(int(np.prod(shape))).reshape(shape) >> np.uint64(63)
        return (1 - 2 * drawn.astype(np.int8)).astype(np.int8)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), multiples of 2**-53."""
        words = self.raw(int(np.prod(shape))).reshape(shape) >> np.uint64(11)
        return words.astype(np.float64) * 2.0**-53

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Return nearly Gaussian numbers of mean 0 and variance 1: sums of twelve uniforms.

        Logarithms and cosines differ in their last bit between libraries; sums do not.
        """
        count = int(np.prod(shape))
        drawn = np.empty(count)
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            words = self.raw(size * UNIFORMS // 4)
            pairs = (words & HALVES) + ((words >> np.uint64(16)) & HALVES)
            quads = ((pairs & LOW) + (pairs >> np.uint64(32))).astype(np.int64)
            sums = quads[0::3] + quads[1::3] + quads[2::3]
            # Centred exactly: the mean of a 16-bit uniform is (2**16 - 1) / 2.
            drawn[start : start + size] = (2 * sums - UNIFORMS * (2**BITS - 1)) * 2.0 ** -(BITS + 1)
        return drawn.reshape(shape)
