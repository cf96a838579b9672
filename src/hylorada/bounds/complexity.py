"""What a model costs: the bits of its message, and of every choice made by looking at the data."""

import math
from dataclasses import dataclass

from hylorada.bounds.rules import require_count
from hylorada.errors import SpecError
from hylorada.units import Bits, Nats, nats_from_bits


def prefix_free(length: int) -> Bits:
    """Return the bits of a string of `length` bits whose length is not known beforehand.

    The prior `2^-C / (C (C + 1))` for each string of C >= 1 bits sums to one. It exceeds the usual
    `C + 2 log2 C`, which sums to 1.64, by `log2(1 + 1/C)`. No message at all costs nothing: that is
    the frozen model, which has no choice in it.
    """
    if length < 0:
        raise SpecError(f"the length of a message must not be negative; got {length} bits")
    if length == 0:
        return Bits(0.0)
    return Bits(length + math.log2(length) + math.log2(length + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Something picked by looking at the data, out of `options` that were fixed before."""

    name: str
    options: int

    def __post_init__(self) -> None:
        require_count(f"the options of {self.name!r}", self.options)

    @property
    def bits(self) -> Bits:
        """Return what naming the option costs."""
        return Bits(math.log2(self.options))

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a certificate."""
        return {"name": self.name, "options": self.options, "bits": self.bits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All that a certificate pays for before the first document is read.

    Whatever the counted part of a message holds (levels, codebook, gates, coordinates) is paid by
    its bits, and how its numbers were found (learning rate, epochs, restarts) costs nothing: the
    bound holds for every message at once. `choices` are those that the decoder needs beside it and
    that were made by looking: dimension, targets, rank, allocation, projection seed.

    Attributes:
        message_bits: Length of the message; 0 for a frozen model.
        choices: What else was picked by looking.
    """

    message_bits: int
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        prefix_free(self.message_bits)
        names = [choice.name for choice in self.choices]
        if len(set(names)) < len(names):
            raise SpecError(f"each choice is paid once; got {', '.join(sorted(names))}")

    @property
    def bits(self) -> Bits:
        """Return the whole price."""
        choices = math.fsum(choice.bits for choice in self.choices)
        return Bits(prefix_free(self.message_bits) + choices)

    @property
    def complexity(self) -> Nats:
        """Return -ln of the prior probability."""
        return nats_from_bits(self.bits)

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a certificate."""
        return {
            "message_bits": self.message_bits,
            "prefix_free_bits": prefix_free(self.message_bits),
            "choices": [choice.as_dict() for choice in self.choices],
            "bits": self.bits,
            "nats": self.complexity,
        }
