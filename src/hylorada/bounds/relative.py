"""Relative bounds: by how many bits a model beats a reference, certified directly.

A model is never trusted alone: the predictor is a mixture of it and the reference, which can lose
only so much against the reference. Two references matter: the frozen model (the gain of
fine-tuning) and the uniform distribution (an absolute bound, `log2 V` minus the gain).

Document level: `g(D) = (1 - w) h(D) + w f(D)` mixes the probabilities of whole documents, so it
predicts each token by both models, weighted by how well they did on the document so far. It loses
at most `log2(1/w)` bits *per document*. Token level: the same mixture at every token, which loses
at most `log2(1/w)` bits per token.

What the mixture saves against that worst case, `log2(1 + (1-w)/w · h/f)`, is never negative: a bet
on it needs nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64

from hylorada.bounds.betting import Bet, bet, bet_on_draws, betting, budget_of
from hylorada.bounds.rules import require_count, require_values
from hylorada.errors import SpecError
from hylorada.units import Nats

WEIGHTS = tuple(2.0**-power for power in range(1, 9))
# The lengths of documents do not depend on any model, so they get by with a small share of delta.
LENGTH_SHARE = 0.05
SCOUTED = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Bits per token by which a mixture beats the reference.

    Attributes:
        certified: At least this much on unseen text, with the probability asked for.
        measured: The mean on the text at hand.
        weight: Share of the reference in the mixture.
        stake: Stake of the bet.
    """

    certified: float
    measured: float
    weight: float
    stake: float


def mixture_bits(
    model: Float[np.ndarray, " count"], reference: Float[np.ndarray, " count"], weight: float
) -> Float64[np.ndarray, " count"]:
    """Return the loss in bits of `(1 - weight) model + weight reference`, one for each entry.

    An entry is a document (its bits in total) or a token.
    """
    _require_weight(weight)
    ours = math.log2(1 - weight) - model.astype(np.float64)
    theirs = math.log2(weight) - reference.astype(np.float64)
    mixed: Float64[np.ndarray, " count"] = -np.logaddexp2(ours, theirs)
    return mixed


def saved_bits(
    model: Float[np.ndarray, " count"], reference: Float[np.ndarray, " count"], weight: float
) -> Float64[np.ndarray, " count"]:
    """Return by how many bits the mixture stays below its worst case; never negative."""
    _require_weight(weight)
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
    """
    _require_pairs(model, reference, lengths)
    known = lengths if corpus_lengths is None else corpus_lengths
    inverse_length = betting(1.0 / known, Nats(0.0), upper=1.0, delta=LENGTH_SHARE * delta)
    rest = (1 - LENGTH_SHARE) * delta

    def bounded(weight: float) -> tuple[float, Bet]:
        saved = saved_bits(model, reference, weight) / lengths
        if corpus_lengths is None:
            paid = Nats(budget_of(complexity, rest) + math.log(len(weights)))
            won = bet(saved, paid)
        else:
            paid = Nats(complexity + math.log(len(weights)))
            won = bet_on_draws(saved, paid, corpus_lengths.size, delta=rest, compared=len(weights))
        return won.mean_at_least - math.log2(1 / weight) * inverse_length, won

    found = {weight: bounded(weight) for weight in weights}
    weight = max(found, key=lambda one: found[one][0])
    certified, won = found[weight]
    gains = (reference - mixture_bits(model, reference, weight)) / lengths
    return Gain(certified=certified, measured=float(gains.mean()), weight=weight, stake=won.stake)


def relative_gain_of_tokens(
    model: Float[np.ndarray, " tokens"],
    reference: Float[np.ndarray, " tokens"],
    complexity: Nats,
    *,
    weights: Sequence[float] = WEIGHTS,
    delta: float = 0.05,
) -> Gain:
    """Return the certified gain at the contexts of a text, in bits per token.

    The quantity bounded is the mean over the text's positions of the expected gain on a *fresh*
    next token after the same past. No independence is assumed, and nothing is said about new
    documents. Holds with probability at least `1 - delta` for all models at once.

    Args:
        model: Bits of each token under the model, in the order of the text.
        reference: Bits of each token under the reference, which must not depend on them.
        complexity: -ln of the model's prior probability.
        weights: Shares of the reference to choose from, fixed before the data were seen.
        delta: Probability with which the statement may fail.
    """
    _require_pairs(model, reference, None)
    paid = Nats(budget_of(complexity, delta) + math.log(len(weights)))
    step = max(1, model.size // SCOUTED)
    scouts = model[::step], reference[::step]

    def scouted(weight: float) -> float:
        fair = Nats(paid * scouts[0].size / model.size)  # what the whole text would cost a value
        return bet(saved_bits(*scouts, weight), fair).mean_at_least - math.log2(1 / weight)

    weight = max(weights, key=scouted)
    saved = saved_bits(model, reference, weight)
    won = bet(saved, paid)
    worst = math.log2(1 / weight)
    return Gain(
        certified=won.mean_at_least - worst,
        measured=float(saved.mean()) - worst,
        weight=weight,
        stake=won.stake,
    )


def _require_weight(weight: float) -> None:
    if not 0 < weight < 1:
        raise SpecError(f"the reference's weight must lie strictly between 0 and 1; got {weight}")


def _require_pairs(
    model: Float[np.ndarray, " count"],
    reference: Float[np.ndarray, " count"],
    lengths: Int64[np.ndarray, " documents"] | None,
) -> None:
    require_values(model)
    require_values(reference)
    if reference.size != model.size or (lengths is not None and lengths.size != model.size):
        raise SpecError(
            "model, reference and lengths need an entry each for the same documents or tokens; "
            f"got {model.size}, {reference.size}"
            + ("" if lengths is None else f" and {lengths.size}")
        )
    if lengths is not None:
        require_count("the scored tokens of every document", int(lengths.min()))
