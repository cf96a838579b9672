"""Statements of a certificate, computed from measured losses; all of them hold at once.

Each comes down to a gain over a reference: a mixture of model and reference saves bits against its
worst case, and these are never negative, so that an inequality bounds their mean from below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from hylorada.bounds.inequalities import (
    INEQUALITIES,
    LowerBound,
    Sample,
    require,
    require_count,
    require_values,
)
from hylorada.errors import SpecError
from hylorada.records.certificates import Payment, Statement
from hylorada.units import Nats

DEFAULT_INEQUALITY = "betting"
WEIGHTS = tuple(2.0**-power for power in range(1, 9))
# The lengths of documents do not depend on any model, so they get by with a small share of delta.
LENGTH_SHARE = 0.05
SCOUTED_TOKENS = 2**16
# The frozen model's share of the uniform distribution where an adapted loss is built on its own.
UNIFORM_WEIGHT = 2.0**-4
TOP = (1, 5, 10, 50, 100)
BITS, SHARE = "bits/token", "share of tokens"
GAIN, LOSS, FROZEN_LOSS = "gain", "loss", "frozen_loss"
Entries = Float[np.ndarray, " entries"]


# Gains over a reference


@dataclass(frozen=True, slots=True)
class Gain:
    """Bits per token by which a mixture beats the reference: on unseen text at least, and here.

    The settings are the reference's weight in the mixture, and what the inequality chose.
    """

    certified: float
    measured: float
    settings: dict[str, float]


def mixture_bits(
    model: Float[np.ndarray, " count"], reference: Float[np.ndarray, " count"], weight: float
) -> Float64[np.ndarray, " count"]:
    """Return the loss in bits of `(1 - weight) model + weight reference`, one for each entry.

    An entry is a document (its bits in total) or a token.
    """
    require(weight=weight)
    ours = math.log2(1 - weight) - model.astype(np.float64)
    theirs = math.log2(weight) - reference.astype(np.float64)
    mixed: Float64[np.ndarray, " count"] = -np.logaddexp2(ours, theirs)
    return mixed


def saved_bits(
    model: Float[np.ndarray, " count"], reference: Float[np.ndarray, " count"], weight: float
) -> Float64[np.ndarray, " count"]:
    """Return by how many bits the mixture stays below its worst case; never negative."""
    require(weight=weight)
    advantage = reference.astype(np.float64) - model.astype(np.float64)
    odds = math.log2((1 - weight) / weight)
    saved: Float64[np.ndarray, " count"] = np.logaddexp2(0.0, odds + advantage)
    return saved


def relative_gain(
    model: Float64[np.ndarray, " documents"],
    reference: Float64[np.ndarray, " documents"],
    lengths: Int64[np.ndarray, " documents"],
    complexity: Nats,
    *,
    corpus_lengths: Int64[np.ndarray, " population"] | None = None,
    weights: Sequence[float] = WEIGHTS,
    delta: float = 0.05,
    inequality: str = DEFAULT_INEQUALITY,
) -> Gain:
    """Return the certified gain over the reference on unseen documents, in bits per token.

    The risk is the expectation over documents of bits per token, each document counting once. It
    holds with probability at least `1 - delta` over documents drawn independently, for all models
    at once, the choice among `weights` included.

    Args:
        model: Bits of each document under the model, in total.
        reference: Bits of each document under the reference, which must not depend on them.
        lengths: Scored tokens of each document.
        complexity: -ln of the model's prior probability.
        corpus_lengths: Scored tokens of every document of the corpus, if the documents are draws
            with replacement from it; None if they are the whole corpus.
        weights: Shares of the reference to choose from, fixed before the data were seen.
        delta: Probability with which the statement may fail.
        inequality: Which of `INEQUALITIES` bounds the mean.
    """
    _require_pairs(model, reference, lengths)
    require_count("the scored tokens of every document", int(lengths.min()))
    bound = INEQUALITIES[inequality].at("document")
    known = lengths if corpus_lengths is None else corpus_lengths
    spared = Sample(values=1 - 1.0 / known, upper=1.0)
    inverse_length = 1 - bound(spared, Nats(0.0), LENGTH_SHARE * delta).mean_at_least
    paid, rest = Nats(complexity + math.log(len(weights))), (1 - LENGTH_SHARE) * delta

    def bounded(weight: float) -> LowerBound:
        saved = Sample(
            values=saved_bits(model, reference, weight) / lengths,
            population=None if corpus_lengths is None else corpus_lengths.size,
            compared=len(weights),
        )
        won = bound(saved, paid, rest)
        worst = math.log2(1 / weight) * inverse_length
        return LowerBound(won.mean_at_least - worst, {"weight": weight, **won.settings})

    best = max(map(bounded, weights), key=lambda one: one.mean_at_least)
    gains = (reference - mixture_bits(model, reference, best.settings["weight"])) / lengths
    return Gain(best.mean_at_least, float(gains.mean()), best.settings)


def relative_gain_of_tokens(
    model: Float[np.ndarray, " tokens"],
    reference: Float[np.ndarray, " tokens"],
    complexity: Nats,
    *,
    weights: Sequence[float] = WEIGHTS,
    delta: float = 0.05,
    inequality: str = DEFAULT_INEQUALITY,
) -> Gain:
    """Return the certified gain at the contexts of a text, in bits per token.

    The quantity bounded is the mean over the text's positions of the expected gain on a *fresh*
    next token after the same past. No independence is assumed, and nothing is said about new
    documents. Holds with probability at least `1 - delta` for all models at once. Arguments as for
    `relative_gain`, with an entry for each token, in the order of the text.
    """
    _require_pairs(model, reference)
    bound = INEQUALITIES[inequality].at("token")
    paid, step = complexity + math.log(len(weights)), max(1, model.size // SCOUTED_TOKENS)
    scouts = model[::step], reference[::step]
    share = scouts[0].size / model.size

    def scouted(weight: float) -> float:  # some of the tokens pay that part of the price
        saved = Sample(values=saved_bits(*scouts, weight))
        return bound(saved, Nats(share * paid), delta**share).mean_at_least - math.log2(1 / weight)

    weight = max(weights, key=scouted)
    saved, worst = saved_bits(model, reference, weight), math.log2(1 / weight)
    won = bound(Sample(values=saved), Nats(paid), delta)
    settings = {"weight": weight, **won.settings}
    return Gain(won.mean_at_least - worst, float(saved.mean()) - worst, settings)


def _require_pairs(model: np.ndarray, reference: np.ndarray, *lengths: np.ndarray) -> None:
    require_values(model)
    require_values(reference)
    counts = [column.size for column in (model, reference, *lengths)]
    if len(set(counts)) > 1:
        raise SpecError(
            "model, reference and lengths need an entry each for the same documents or tokens; "
            f"got {', '.join(map(str, counts))}"
        )


# What was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
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
        """Check that every document has its losses."""
        require_values(self.adapted)
        if self.frozen is not None:
            require_values(self.frozen)
        require(vocabulary=self.vocabulary)
        require_count("the scored tokens of every document", int(self.lengths.min(initial=1)))
        if int(self.lengths.sum()) != self.adapted.size:
            raise SpecError(
                f"documents of {int(self.lengths.sum())} scored tokens need as many losses; "
                f"got {self.adapted.size}"
            )

    def of_documents(self, values: Float[np.ndarray, " tokens"]) -> Float64[np.ndarray, " draws"]:
        """Return the sum over each document, as often as it was drawn."""
        starts = np.cumsum(self.lengths) - self.lengths
        return self._repeated(np.add.reduceat(values, starts, dtype=np.float64))

    def lengths_of_documents(self) -> Int64[np.ndarray, " draws"]:
        """Return the scored tokens of each document, as often as it was drawn."""
        return self._repeated(self.lengths)

    def misses(self, top: int) -> Float[np.ndarray, " tokens"]:
        """Return 1 for each token that is not among the model's `top` first choices, else 0."""
        return (self.ranks >= top).astype(np.float32)

    def _repeated(self, values: np.ndarray) -> np.ndarray:
        return values if self.draws is None else np.repeat(values, self.draws)


@dataclass(frozen=True, slots=True)
class Level:
    """What is bounded, in bits per token.

    At document level it is the expectation over an unseen document, every document counting once;
    an entry is a document. At token level it is the expectation of a fresh token after each past
    that the corpus holds; an entry is a token.
    """

    name: str
    losses: Losses
    inequality: str = DEFAULT_INEQUALITY

    def __post_init__(self) -> None:
        """Check that the level can be measured by these losses."""
        INEQUALITIES[self.inequality].at(self.name)
        if self.name == "token" and self.losses.draws is not None:
            raise SpecError(
                "the token level needs documents in the order of the corpus, not draws from it; "
                "read the whole corpus or its beginning"
            )

    def bits(self, tokens: Float[np.ndarray, " tokens"]) -> Entries:
        """Return the bits of every entry, from those of every token."""
        return tokens if self.name == "token" else self.losses.of_documents(tokens)

    def uniform_bits(self) -> Entries:
        """Return the bits of every entry under the uniform distribution."""
        if self.name == "token":
            return np.full_like(self.losses.adapted, np.log2(self.losses.vocabulary))
        return self.losses.lengths_of_documents() * np.log2(self.losses.vocabulary)

    def per_token(self, bits: Entries) -> Entries:
        """Return the bits per token of every entry."""
        return bits if self.name == "token" else bits / self.losses.lengths_of_documents()

    def gain(
        self,
        model: Entries,
        reference: Entries,
        complexity: Nats,
        weights: Sequence[float],
        delta: float,
    ) -> Gain:
        """Return the certified gain over a reference, both by their bits of every entry."""
        if self.name == "token":
            bounded = partial(relative_gain_of_tokens, model, reference, complexity)
        else:
            bounded = partial(
                relative_gain,
                model,
                reference,
                self.losses.lengths_of_documents(),
                complexity,
                corpus_lengths=None if self.losses.draws is None else self.losses.corpus_lengths,
            )
        return bounded(weights=weights, delta=delta, inequality=self.inequality)

    def error(self, top: int, complexity: Nats, delta: float) -> Statement:
        """Return the share of tokens that are not among the model's `top` first choices."""
        shares = self.per_token(self.bits(self.losses.misses(top))).astype(np.float64)
        population = None if self.losses.draws is None else self.losses.corpus_lengths.size
        hits = Sample(values=1 - shares, upper=1.0, population=population)
        bound = INEQUALITIES[self.inequality].at(self.name)
        most = 1 - bound(hits, complexity, delta).mean_at_least
        return Statement(
            name=f"top_{top}_error",
            bound=most,
            measured=float(shares.mean()),
            unit=SHARE,
            vacuous=most >= 1,
        )


def statements(
    losses: Losses,
    paid: Payment,
    *,
    level: str,
    delta: float = 0.05,
    inequality: str = DEFAULT_INEQUALITY,
) -> list[Statement]:
    """Return all that is certified; with probability `1 - delta` every one of them is true.

    With a frozen model: the gain over it, its own loss, and the loss of the adapted one, which is
    the frozen one's bound less a certified gain. Without: the loss alone. Always top-k errors.
    The level is "document" for unseen documents, "token" for fresh tokens at the corpus' contexts.
    """
    at, complexity = Level(level, losses, inequality), Nats(paid.nats)
    share = delta / statement_count(losses)
    adapted, uniform = at.bits(losses.adapted), at.uniform_bits()
    most = math.log2(losses.vocabulary)
    if losses.frozen is None:
        over_uniform = at.gain(adapted, uniform, complexity, WEIGHTS, share)
        found = [_in_bits(LOSS, over_uniform, less_than=most)]
    else:
        frozen = at.bits(losses.frozen)
        of_frozen = at.gain(frozen, uniform, Nats(0.0), (UNIFORM_WEIGHT,), share)
        smoothed = mixture_bits(frozen, uniform, UNIFORM_WEIGHT)
        over_smoothed = at.gain(adapted, smoothed, complexity, WEIGHTS, share)
        found = [
            _in_bits(GAIN, at.gain(adapted, frozen, complexity, WEIGHTS, share)),
            _in_bits(FROZEN_LOSS, of_frozen, less_than=most),
            _in_bits(LOSS, of_frozen, over_smoothed, less_than=most),
        ]
    return found + [at.error(top, complexity, share) for top in TOP]


def statement_count(losses: Losses) -> int:
    """Return among how many statements `delta` is shared."""
    return len(TOP) + (1 if losses.frozen is None else 3)


def _in_bits(name: str, *gains: Gain, less_than: float | None = None) -> Statement:
    """Return a sum of gains, one on top of the other, or what they leave of the largest loss."""
    certified, measured = sum(one.certified for one in gains), sum(one.measured for one in gains)
    return Statement(
        name=name,
        bound=certified if less_than is None else less_than - certified,
        measured=measured if less_than is None else less_than - measured,
        unit=BITS,
        vacuous=certified <= 0,
        settings=gains[-1].settings,
    )
