"""Where in the context the loss falls, and how much a longer context is worth."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood
from hylorada.evaluation.rows import Row, score_rows
from hylorada.evaluation.statistics import mean_estimate
from hylorada.evaluation.windows import CorpusLosses
from hylorada.seeds import generator
from hylorada.text.store import TokenStore


def position_curve(corpus: CorpusLosses, *, buckets: int = 16) -> dict[str, object]:
    """Return the mean loss in nats by bucket of absolute position in the window.

    A position mixes how hard the text is with how much context there is: compare curves of two
    models on the same windows, and do not read one curve as use of context.
    """
    if not 1 <= buckets < corpus.length:
        raise SpecError(f"buckets must lie in 1..{corpus.length - 1}; got {buckets}")
    edges = np.linspace(1, corpus.length, buckets + 1).round().astype(int)
    curve = []
    for start, end in pairwise(edges.tolist()):
        inside = (corpus.positions >= start) & (corpus.positions < end)
        # A strided pass never scores the first positions again: such a bucket may be empty.
        if inside.any():
            estimate = corpus.mean_loss(inside).as_dict()
            place = {"start": start, "end": end, "tokens": int(inside.sum())}
            curve.append({**place, **estimate})
    return {
        "unit": "nats/token",
        "cluster": corpus.cluster_unit,
        "length": corpus.length,
        "tokens": corpus.losses.size,
        "curve": curve,
    }


def context_gain(
    likelihood: Likelihood,
    corpus: TokenStore,
    *,
    length: int,
    windows: int = 48,
    targets: int = 32,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, object]:
    """Return `G(c) = E[loss given c tokens - loss given the full context]`, in nats.

    The last `targets` tokens of a window are predicted again and again while the context before
    the first of them doubles up to `length - targets`; the j-th target sees j tokens more. The
    targets never change, so their difficulty cancels. Falling to zero means far context is used.
    `windows` windows are drawn without replacement.
    """
    longest = length - targets
    if targets < 1 or longest < 1 or windows < 1:
        raise SpecError(
            "context_gain needs at least one window, one target and one token of context; got "
            f"length {length}, targets {targets}, windows {windows}"
        )
    starts, source = _window_starts(corpus, length, windows, seed)
    sizes = [*_doubling(longest), longest]
    rows = [
        Row(corpus.tokens[end - targets - size : end].astype(np.int64), size)
        for size in sizes
        for end in starts + length
    ]
    scores = score_rows(likelihood, rows, description="context", progress=progress)
    means = np.array([score.losses.mean(dtype=np.float64) for score in scores])
    table = means.reshape(len(sizes), len(starts))
    return {
        "unit": "nats/token",
        "cluster": "window",
        "length": length,
        "targets": targets * len(starts),
        "windows_from": source,
        "full_context": {"context": longest, **mean_estimate(table[-1]).as_dict()},
        "curve": [
            {"context": size, **mean_estimate(row - table[-1]).as_dict()}
            for size, row in zip(sizes, table, strict=True)
        ],
    }


def _doubling(longest: int) -> list[int]:
    return [2**power for power in range(3, 31) if 2**power < longest]


def _window_starts(
    corpus: TokenStore, length: int, count: int, seed: int
) -> tuple[NDArray[np.int64], str]:
    """Return where windows start: inside one document each where any document is long enough."""
    ranges = [
        np.arange(start, end - length + 1, length)
        for start, end in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True)
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
