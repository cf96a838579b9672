"""Perplexity and the two descriptive position summaries, each with units, counts and intervals."""

import math
from itertools import pairwise

import numpy as np

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood
from hylorada.evaluation.rows import Row, score_rows
from hylorada.evaluation.statistics import Estimate, Floats, bootstrap_estimate
from hylorada.evaluation.windows import CorpusLosses
from hylorada.text.store import TokenStore
from hylorada.units import Nats, bits_from_nats

SLICES = 10
SHORTEST_TEXT = 100


def perplexity(corpus: CorpusLosses) -> dict[str, object]:
    """Return `exp(Σ loss / Σ 1)` over all scored tokens, with bits per token and per byte."""
    loss = corpus.mean_loss()
    tokens = corpus.losses.size
    in_bits = float(bits_from_nats(Nats(1.0)))
    return {
        **_summary(loss.exponential(), "perplexity", corpus),
        "loss": {**loss.as_dict(), "unit": "nats/token"},
        "bits_per_token": {**loss.scaled(in_bits).as_dict(), "unit": "bits/token"},
        "bits_per_byte": {
            **loss.scaled(in_bits * tokens / corpus.byte_count).as_dict(),
            "unit": "bits/byte",
        },
        "tokens": tokens,
        "bytes": corpus.byte_count,
    }


def mid_ppl(corpus: CorpusLosses) -> dict[str, object]:
    """Return the perplexity of targets at positions `[T/3, 2T/3)` of their window (descriptive)."""
    length = corpus.length
    middle = (3 * corpus.positions >= length) & (3 * corpus.positions < 2 * length)
    loss = corpus.mean_loss(middle)
    return {
        **_summary(loss.exponential(), "perplexity", corpus),
        "descriptive": True,
        "tokens": int(middle.sum()),
    }


def lim_ppl_seed(
    likelihood: Likelihood,
    corpus: TokenStore,
    *,
    length: int,
    max_tokens: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, object]:
    """Return the mean over ten slices of `exp(mean loss in the slice)` (descriptive).

    Every document is cut at `length` tokens; its losses are cut into ten slices of equal size, the
    remainder going to the last, and a slice's loss is the mean over documents of their own means.
    Documents below 100 tokens are left out. All slices count, so this is nearly perplexity again.
    """
    texts = _texts(corpus, length, max_tokens)
    scores = score_rows(likelihood, texts, description="slices", progress=progress)
    table = np.stack([_slice_means(score.losses.astype(np.float64)) for score in scores])

    def statistic(sample: Floats) -> float:
        return float(np.exp(sample.mean(axis=0)).mean())

    estimate = bootstrap_estimate(table, statistic, seed=seed)
    return {
        **estimate.as_dict(),
        "unit": "perplexity",
        "cluster": "document",
        "descriptive": True,
        "slices": np.exp(table.mean(axis=0)).tolist(),
        "documents": len(texts),
        "tokens": sum(text.targets for text in texts),
    }


def _summary(estimate: Estimate, unit: str, corpus: CorpusLosses) -> dict[str, object]:
    return {
        **estimate.as_dict(),
        "unit": unit,
        "cluster": corpus.cluster_unit,
        "length": corpus.length,
        "stride": corpus.stride,
    }


def _texts(corpus: TokenStore, length: int, max_tokens: int | None) -> list[Row]:
    """Return the beginnings of the documents, until `max_tokens` tokens are reached."""
    if length < SHORTEST_TEXT:
        raise SpecError(
            f"lim_ppl_seed needs a length of at least {SHORTEST_TEXT} tokens; got {length}"
        )
    texts, taken = [], 0
    budget = math.inf if max_tokens is None else max_tokens
    for start, end in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True):
        if end - start >= SHORTEST_TEXT and taken < budget:
            tokens = np.asarray(corpus.tokens[start : min(end, start + length)])
            texts.append(Row(tokens.astype(np.int64), 1))
            taken += tokens.size
    if not texts:
        raise SpecError(f"lim_ppl_seed needs a document of at least {SHORTEST_TEXT} tokens")
    return texts


def _slice_means(losses: Floats) -> Floats:
    size = losses.size // SLICES
    edges = [size * index for index in range(SLICES)] + [losses.size]
    return np.array([losses[a:b].mean() for a, b in pairwise(edges)])
