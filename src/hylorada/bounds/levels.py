"""The two levels of a certificate: unseen documents, or fresh tokens at the corpus' contexts.

Both turn evidence into entries (documents or tokens) and bound means over them by the same bet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Float64

from hylorada.bounds.betting import betting, betting_subsampled
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.relative import Gain, relative_gain, relative_gain_of_tokens
from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.units import Nats

Losses = Float[np.ndarray, " tokens"]
Entries = Float[np.ndarray, " entries"]


@dataclass(frozen=True, slots=True)
class DocumentLevel:
    """Expected bits per token of an unseen document, every document counting once."""

    place: ClassVar[str] = "On unseen documents of this kind"
    assumption: ClassVar[str] = "The documents are independent draws from one distribution."
    evidence: Evidence

    def bits(self, losses: Losses) -> Float64[np.ndarray, " entries"]:
        """Return the bits of every document in total."""
        return self.evidence.of_documents(losses)

    def uniform_bits(self) -> Float64[np.ndarray, " entries"]:
        """Return the bits of every document under the uniform distribution."""
        return self.evidence.lengths_of_documents() * np.log2(self.evidence.vocabulary)

    def mean(self, bits: Entries) -> float:
        """Return the mean over documents of bits per token."""
        return float((bits / self.evidence.lengths_of_documents()).mean())

    def gain(
        self,
        model: Entries,
        reference: Entries,
        complexity: Nats,
        weights: Sequence[float],
        delta: float,
    ) -> Gain:
        """Return the certified gain on unseen documents, in bits per token."""
        return relative_gain(
            model,
            reference,
            self.evidence.lengths_of_documents(),
            complexity,
            corpus_lengths=self.evidence.drawn_from,
            weights=weights,
            delta=delta,
        )

    def error(self, misses: Losses, complexity: Nats, delta: float) -> tuple[float, float]:
        """Return the mean over documents of the share of misses, and its bound."""
        shares = self.evidence.of_documents(misses) / self.evidence.lengths_of_documents()
        if self.evidence.draws is None:
            bound = betting(shares, complexity, upper=1.0, delta=delta)
        else:
            population = self.evidence.population
            bound = betting_subsampled(shares, complexity, population, upper=1.0, delta=delta)
        return float(shares.mean()), bound


@dataclass(frozen=True, slots=True)
class TokenLevel:
    """Expected bits of a fresh token after each past that the corpus holds."""

    place: ClassVar[str] = "On fresh tokens after the contexts of this corpus"
    assumption: ClassVar[str] = (
        "Nothing is assumed about how tokens depend on each other; the order of the documents was "
        "fixed before they were seen, and nothing is said about other contexts."
    )
    evidence: Evidence

    def __post_init__(self) -> None:
        if self.evidence.draws is not None:
            raise SpecError(
                "the token level needs documents in the order of the corpus, not draws from it; "
                "read the whole corpus or its beginning"
            )

    def bits(self, losses: Losses) -> Losses:
        """Return the losses as they are."""
        return losses

    def uniform_bits(self) -> Losses:
        """Return the bits of every token under the uniform distribution."""
        return np.full_like(self.evidence.adapted, np.log2(self.evidence.vocabulary))

    def mean(self, bits: Entries) -> float:
        """Return the mean over tokens."""
        return float(bits.mean(dtype=np.float64))

    def gain(
        self,
        model: Entries,
        reference: Entries,
        complexity: Nats,
        weights: Sequence[float],
        delta: float,
    ) -> Gain:
        """Return the certified gain at the corpus' contexts, in bits per token."""
        return relative_gain_of_tokens(model, reference, complexity, weights=weights, delta=delta)

    def error(self, misses: Losses, complexity: Nats, delta: float) -> tuple[float, float]:
        """Return the mean over tokens of misses, and its bound."""
        return self.mean(misses), betting(misses, complexity, upper=1.0, delta=delta)


Level = DocumentLevel | TokenLevel
LEVELS: dict[str, type[Level]] = {"document": DocumentLevel, "token": TokenLevel}


def level_of(name: str, evidence: Evidence) -> Level:
    """Return the level of this name, measured by this evidence."""
    require_level(name)
    return LEVELS[name](evidence)


def require_level(name: str) -> None:
    """Raise `SpecError` unless there is a level of this name."""
    require_one_of("level", name, LEVELS)
