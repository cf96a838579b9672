"""What was measured for a certificate: the loss of every token, and which documents were read."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from hylorada.bounds.rules import require_count, require_values
from hylorada.errors import SpecError

TOP = (1, 5, 10, 50, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Losses of every scored token of the documents read, in the order of the corpus.

    Attributes:
        adapted: Bits of each token under the model that the message decodes to.
        frozen: The same under the frozen model; None where there is none to compare with.
        ranks: Tokens that the decoded model puts before the right one, or at its side.
        lengths: Scored tokens of each document.
        corpus_lengths: Scored tokens of every document of the corpus.
        draws: How often each document was drawn from the corpus; None if all were read.
        vocabulary: Entries of the distributions predicted.
        byte_count: UTF-8 bytes of the scored tokens.
    """

    adapted: Float[np.ndarray, " tokens"]
    frozen: Float[np.ndarray, " tokens"] | None
    ranks: Int[np.ndarray, " tokens"]
    lengths: Int64[np.ndarray, " documents"]
    corpus_lengths: Int64[np.ndarray, " population"]
    draws: Int64[np.ndarray, " documents"] | None
    vocabulary: int
    byte_count: float

    def __post_init__(self) -> None:
        require_values(self.adapted)
        if self.frozen is not None:
            require_values(self.frozen)
        require_count("vocabulary", self.vocabulary, 2)
        require_count("the scored tokens of every document", int(self.lengths.min(initial=1)))
        if int(self.lengths.sum()) != self.adapted.size:
            raise SpecError(
                f"documents of {int(self.lengths.sum())} scored tokens need as many losses; "
                f"got {self.adapted.size}"
            )

    @property
    def population(self) -> int:
        """Return the number of documents in the corpus."""
        return self.corpus_lengths.size

    @property
    def drawn_from(self) -> Int64[np.ndarray, " population"] | None:
        """Return the corpus' lengths if the documents are draws from it."""
        return None if self.draws is None else self.corpus_lengths

    def of_documents(self, values: Float[np.ndarray, " tokens"]) -> Float64[np.ndarray, " draws"]:
        """Return the sum over each document, as often as it was drawn."""
        starts = np.cumsum(self.lengths) - self.lengths
        sums = np.add.reduceat(values, starts, dtype=np.float64)
        return self._repeated(sums)

    def lengths_of_documents(self) -> Int64[np.ndarray, " draws"]:
        """Return the scored tokens of each document, as often as it was drawn."""
        return self._repeated(self.lengths)

    def misses(self, top: int) -> Float[np.ndarray, " tokens"]:
        """Return 1 for each token that is not among the model's `top` first choices, else 0."""
        return (self.ranks >= top).astype(np.float32)

    def _repeated(self, values: np.ndarray) -> np.ndarray:
        return values if self.draws is None else np.repeat(values, self.draws)
