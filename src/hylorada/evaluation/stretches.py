"""Stretches of a corpus for one forward pass each: whole documents, or windows of long ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.evaluation.windows import cut_windows
from hylorada.text.store import TokenStore


@dataclass(frozen=True, slots=True)
class Stretches:
    """Rows of tokens, sorted by length.

    Attributes:
        starts: Where each row begins in the corpus.
        lengths: Tokens of each row.
        first_scored: The first target of each row, counted from its beginning.
        outputs: Where that target lies among all targets of all documents.
    """

    starts: Int64[np.ndarray, " rows"]
    lengths: Int64[np.ndarray, " rows"]
    first_scored: Int64[np.ndarray, " rows"]
    outputs: Int64[np.ndarray, " rows"]

    def part(self, start: int, end: int) -> "Stretches":
        """Return the rows from `start` up to `end`."""
        chosen = slice(start, end)
        return Stretches(
            self.starts[chosen],
            self.lengths[chosen],
            self.first_scored[chosen],
            self.outputs[chosen],
        )

    def shards(self, tokens: int) -> Iterator["Stretches"]:
        """Yield runs of rows of about so many tokens; the corpus alone decides where they end."""
        number = (np.cumsum(self.lengths) - 1) // tokens
        edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), number.size]
        for start, end in pairwise(edges):
            yield self.part(start, end)

    def batches(self, tokens: int) -> Iterator["Stretches"]:
        """Yield runs of rows whose padded size stays within so many tokens."""
        start, count = 0, self.lengths.size
        while start < count:
            # Rows are sorted, so the last one of a batch decides its width.
            sizes = self.lengths[start:] * np.arange(1, count - start + 1)
            end = start + max(1, int(np.searchsorted(sizes, tokens, side="right")))
            yield self.part(start, end)
            start = end

    def targets(self) -> Int64[np.ndarray, " targets"]:
        """Return where the targets of these rows lie among all targets, row after row."""
        counts = self.lengths - self.first_scored
        shifts = self.outputs - (np.cumsum(counts) - counts)
        return np.arange(int(counts.sum())) + np.repeat(shifts, counts)

    def padded(
        self, store: TokenStore
    ) -> tuple[Int[Tensor, "batch time"], Int[Tensor, " targets"]]:
        """Return the tokens, padded on the right by each row's first, and the targets' places."""
        columns = np.arange(int(self.lengths.max()))
        inside = columns < self.lengths[:, None]
        places = self.starts[:, None] + np.where(inside, columns, 0)
        scored = inside & (columns >= self.first_scored[:, None])
        tokens = np.asarray(store.tokens[places]).astype(np.int64)
        return torch.from_numpy(tokens), torch.from_numpy(np.flatnonzero(scored))


def stretches(
    store: TokenStore,
    documents: Int64[np.ndarray, " documents"],
    *,
    max_length: int,
    stride: int,
) -> Stretches:
    """Return the rows that score every token of the documents but their first, each once."""
    offsets = np.asarray(store.offsets)
    starts, lengths = offsets[documents], offsets[documents + 1] - offsets[documents]
    if not documents.size or int(lengths.min()) < 2:
        raise SpecError("only documents of at least 2 tokens can be scored; leave out the others")
    outputs = np.cumsum(lengths - 1) - (lengths - 1)
    short = lengths <= max_length
    whole = np.stack([starts, lengths, np.ones_like(starts), outputs], axis=1)[short]
    windows = [
        (
            starts[index] + window.start,
            window.end - window.start,
            window.first_scored - window.start,
            outputs[index] + window.first_scored - 1,
        )
        for index in np.flatnonzero(~short)
        for window in cut_windows(int(lengths[index]), max_length, stride)
    ]
    table = np.concatenate([whole, np.array(windows, dtype=np.int64).reshape(-1, 4)])
    table = table[np.argsort(table[:, 1], kind="stable")]
    return Stretches(*(np.ascontiguousarray(table[:, column]) for column in range(4)))
