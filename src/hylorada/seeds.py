"""Randomness as an argument: one seed per run, one named stream per use."""

import hashlib

import torch


def derived_seed(seed: int, *stream: str | int) -> int:
    """Return a 63-bit seed for the named stream, so that a new draw elsewhere moves no other."""
    name = "/".join(map(str, (seed, *stream))).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


def generator(seed: int, *stream: str | int) -> torch.Generator:
    """Return a CPU generator for the named stream."""
    return torch.Generator().manual_seed(derived_seed(seed, *stream))
