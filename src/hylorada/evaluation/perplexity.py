"""How well a model predicts a corpus: over all of it, by position, and by length of context."""

from itertools import pairwise

import numpy as np
import torch
from msgspec.structs import asdict
from numpy.typing import NDArray

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Row, score_rows
from hylorada.evaluation.metrics import METRICS, Case, Metric
from hylorada.evaluation.statistics import Floats, bootstrap_estimate, mean_estimate
from hylorada.records.evaluations import (
    ContextGain,
    ContextPoint,
    MiddlePerplexity,
    Perplexity,
    PositionCurve,
    PositionPoint,
    Quantity,
    SlicePerplexity,
)
from hylorada.seeds import generator
from hylorada.text.tokens import TokenStore
from hylorada.units import Nats, bits_from_nats

SLICES = 10
SHORTEST_TEXT = 100


def perplexity(case: Case) -> Perplexity:
    """Return `exp(Σ loss / Σ 1)` over all scored tokens, with bits per token and per byte."""
    corpus = case.corpus
    loss = corpus.mean_loss()
    tokens = corpus.losses.size
    in_bits = float(bits_from_nats(Nats(1.0)))
    per_byte = loss.scaled(in_bits * tokens / corpus.byte_count)
    return Perplexity(
        **asdict(loss.exponential()),
        unit="perplexity",
        cluster=corpus.cluster_unit,
        length=corpus.length,
        stride=corpus.stride,
        loss=Quantity(**asdict(loss), unit="nats/token"),
        bits_per_token=Quantity(**asdict(loss.scaled(in_bits)), unit="bits/token"),
        bits_per_byte=Quantity(**asdict(per_byte), unit="bits/byte"),
        tokens=tokens,
        bytes=corpus.byte_count,
    )


def position_curve(case: Case) -> PositionCurve:
    """Return the mean loss in nats by bucket of absolute position in the window.

    A position mixes how hard the text is with how much context there is: compare curves of two
    models on the same windows, and do not read one curve as use of context.
    """
    corpus, buckets = case.corpus, case.spec.position_buckets
    if buckets >= corpus.length:
        raise SpecError(f"buckets must lie in 1..{corpus.length - 1}; got {buckets}")
    edges = np.linspace(1, corpus.length, buckets + 1).round().astype(int)
    curve = []
    for start, end in pairwise(edges.tolist()):
        inside = (corpus.positions >= start) & (corpus.positions < end)
        # A strided pass never scores the first positions again: such a bucket may be empty.
        if inside.any():
            loss, tokens = corpus.mean_loss(inside), int(inside.sum())
            curve.append(PositionPoint(start=start, end=end, tokens=tokens, **asdict(loss)))
    return PositionCurve(
        unit="nats/token",
        cluster=corpus.cluster_unit,
        length=corpus.length,
        tokens=corpus.losses.size,
        curve=curve,
    )


def mid_ppl(case: Case) -> MiddlePerplexity:
    """Return the perplexity of targets at positions `[T/3, 2T/3)` of their window (descriptive)."""
    corpus, length = case.corpus, case.corpus.length
    middle = (3 * corpus.positions >= length) & (3 * corpus.positions < 2 * length)
    return MiddlePerplexity(
        **asdict(corpus.mean_loss(middle).exponential()),
        unit="perplexity",
        cluster=corpus.cluster_unit,
        length=length,
        stride=corpus.stride,
        tokens=int(middle.sum()),
    )


def lim_ppl_seed(case: Case) -> SlicePerplexity:
    """Return the mean over ten slices of `exp(mean loss in the slice)` (descriptive).

    Every document is cut at `max_length` tokens; its losses are cut into ten slices of equal size,
    the remainder going to the last, and a slice's loss is the mean over documents of their own
    means. Documents below 100 tokens are left out. All slices count, so this is nearly perplexity
    again.
    """
    spec = case.spec
    if spec.max_length < SHORTEST_TEXT:
        raise SpecError(
            f"lim_ppl_seed needs a length of at least {SHORTEST_TEXT} tokens; got {spec.max_length}"
        )
    texts, taken = [], 0
    for start, end in pairwise(case.store.offsets):
        if end - start >= SHORTEST_TEXT and (spec.max_tokens is None or taken < spec.max_tokens):
            tokens = np.asarray(case.store.tokens[start : min(end, start + spec.max_length)])
            texts.append(Row(tokens.astype(np.int64), 1))
            taken += tokens.size
    if not texts:
        raise SpecError(f"lim_ppl_seed needs a document of at least {SHORTEST_TEXT} tokens")
    scores = score_rows(case.likelihood, texts, description="slices", progress=spec.progress)

    def slice_means(losses: Floats) -> list[float]:
        edges = [*range(0, losses.size // SLICES * SLICES, losses.size // SLICES), losses.size]
        return [losses[start:end].mean() for start, end in pairwise(edges)]

    def statistic(sample: Floats) -> float:
        return float(np.exp(sample.mean(axis=0)).mean())

    table = np.array([slice_means(score.losses.astype(np.float64)) for score in scores])
    return SlicePerplexity(
        **asdict(bootstrap_estimate(table, statistic, seed=spec.seed)),
        unit="perplexity",
        cluster="document",
        slices=np.exp(table.mean(axis=0)).tolist(),
        documents=len(texts),
        tokens=sum(text.targets for text in texts),
    )


def context_gain(case: Case, *, targets: int = 32) -> ContextGain:
    """Return `G(c) = E[loss given c tokens - loss given the full context]`, in nats.

    The last `targets` tokens of a window are predicted again and again while the context before
    the first of them doubles up to `max_length - targets`; the j-th target sees j tokens more. The
    targets never change, so their difficulty cancels. Falling to zero means far context is used.
    Windows are drawn without replacement.
    """
    store, spec, length = case.store, case.spec, case.spec.max_length
    longest = length - targets
    if targets < 1 or longest < 1:
        raise SpecError(
            "context_gain needs at least one target and one token of context; got "
            f"length {length}, targets {targets}"
        )
    starts, source = _window_starts(store, length, spec.context_windows, spec.seed)
    sizes = [*(2**power for power in range(3, 31) if 2**power < longest), longest]
    rows = [
        Row(store.tokens[end - targets - size : end].astype(np.int64), size)
        for size in sizes
        for end in starts + length
    ]
    scores = score_rows(case.likelihood, rows, description="context", progress=spec.progress)
    means = np.array([score.losses.mean(dtype=np.float64) for score in scores])
    table = means.reshape(len(sizes), len(starts))
    return ContextGain(
        unit="nats/token",
        cluster="window",
        length=length,
        targets=targets * len(starts),
        windows_from=source,
        full_context=ContextPoint(context=longest, **asdict(mean_estimate(table[-1]))),
        curve=[
            ContextPoint(context=size, **asdict(mean_estimate(row - table[-1])))
            for size, row in zip(sizes, table, strict=True)
        ],
    )


def _window_starts(
    corpus: TokenStore, length: int, count: int, seed: int
) -> tuple[NDArray[np.int64], str]:
    """Return where windows start: inside one document each where any document is long enough."""
    ranges = [
        np.arange(start, end - length + 1, length)
        for start, end in pairwise(corpus.offsets)
        if end - start >= length
    ]
    source = "documents" if ranges else "stream"
    if not ranges:
        ranges = [np.arange(0, len(corpus.tokens) - length + 1, length)]
    starts = np.concatenate(ranges).astype(np.int64)
    if starts.size == 0:
        raise SpecError(
            f"a window of {length} tokens does not fit in a corpus of {len(corpus.tokens)}; "
            "lower max_length or give more text"
        )
    order = torch.randperm(starts.size, generator=generator(seed, "context gain")).numpy()
    return np.sort(starts[order[:count]]), source


METRICS.add(Metric("ppl", "Perplexity, bits per token and per byte.", perplexity))
METRICS.add(Metric("position_curve", "Mean loss by position in the window.", position_curve))
METRICS.add(Metric("mid_ppl", "Perplexity in the middle of each window (descriptive).", mid_ppl))
METRICS.add(
    Metric("lim_ppl_seed", "Mean perplexity of ten slices of a text (descriptive).", lim_ppl_seed)
)
METRICS.add(Metric("context_gain", "Loss added by seeing less context.", context_gain))
