"""One pass of a model over a tokenised corpus in fixed windows; several metrics read its losses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood, Row, score_rows
from hylorada.evaluation.statistics import Floats, ratio_estimate
from hylorada.records.evaluations import Estimate
from hylorada.specs.evaluation import EvaluationSpec
from hylorada.text.tokens import TokenStore

# With fewer documents than this an interval over documents says little; blocks are used instead.
DOCUMENTS_FOR_CLUSTERS = 10


class Window(NamedTuple):
    """Tokens `start..end` of the stream, of which those from `first_scored` on are scored."""

    start: int
    end: int
    first_scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLosses:
    """Every scored token of one pass, in the order of the corpus; losses in nats."""

    losses: NDArray[np.float32]
    positions: NDArray[np.int64]
    windows: NDArray[np.int64]
    documents: NDArray[np.int64]
    byte_count: float
    length: int
    stride: int

    @property
    def cluster_unit(self) -> str:
        """Return what is treated as independent: `document`, or `block` with few documents."""
        enough = np.unique(self.documents).size >= DOCUMENTS_FOR_CLUSTERS
        return "document" if enough else "block"

    def cluster_sums(self, chosen: NDArray[np.bool_] | None = None) -> tuple[Floats, Floats]:
        """Return the summed loss in nats and the number of tokens of each cluster."""
        labels = self.documents if self.cluster_unit == "document" else self.windows
        losses = self.losses
        if chosen is not None:
            labels, losses = labels[chosen], losses[chosen]
        if losses.size == 0:
            raise SpecError("a mean loss needs at least one scored token; got none")
        _, cluster = np.unique(labels, return_inverse=True)
        sums = np.bincount(cluster, weights=losses.astype(np.float64))
        return sums.astype(np.float64), np.bincount(cluster).astype(np.float64)

    def mean_loss(self, chosen: NDArray[np.bool_] | None = None) -> Estimate:
        """Return the token-weighted mean loss in nats, its interval clustered by document."""
        return ratio_estimate(*self.cluster_sums(chosen))


def cut_windows(tokens: int, length: int, stride: int | None = None) -> Iterator[Window]:
    """Yield windows over `tokens` tokens so that every target is scored at most once.

    Without a stride windows do not overlap, and the first token of each has no context and is not
    scored. With a stride every window after the first scores only its last `stride` tokens, so
    each of those sees at least `length - stride` tokens before it. The last window may be short.
    """
    stride = length if stride is None else stride
    if length < 2 or not 1 <= stride <= length:
        raise SpecError(
            "windows need a length of at least 2 and a stride in 1..length; "
            f"got length {length}, stride {stride}"
        )
    for start in range(0, tokens, stride):
        end = min(start + length, tokens)
        first = start + 1 if start == 0 else max(start + length - stride, start + 1)
        if first < end:
            yield Window(start, end, first)
        if end == tokens:
            return


def corpus_losses(likelihood: Likelihood, corpus: TokenStore, spec: EvaluationSpec) -> CorpusLosses:
    """Return the loss of every token of the corpus, or of its first `max_tokens` tokens."""
    total = min(spec.max_tokens or len(corpus.tokens), len(corpus.tokens))
    windows = list(cut_windows(total, spec.max_length, spec.stride))
    if not windows:
        raise SpecError(f"a corpus needs at least 2 tokens to be scored; got {total}")
    rows = [
        Row(corpus.tokens[w.start : w.end].astype(np.int64), w.first_scored - w.start)
        for w in windows
    ]
    scores = score_rows(likelihood, rows, description="corpus", progress=spec.progress)
    places = np.concatenate([np.arange(w.first_scored, w.end) for w in windows])
    index = np.repeat(np.arange(len(windows)), [row.targets for row in rows])
    documents = np.searchsorted(corpus.offsets, places, side="right") - 1
    names, scored = np.unique(documents, return_counts=True)
    lengths = np.diff(corpus.offsets)[names]
    return CorpusLosses(
        losses=np.concatenate([score.losses for score in scores]),
        positions=places - np.array([w.start for w in windows])[index],
        windows=index,
        documents=documents,
        # Each document's UTF-8 bytes are spread evenly over its tokens.
        byte_count=float((corpus.byte_counts[names] * scored / lengths).sum()),
        length=spec.max_length,
        stride=spec.stride or spec.max_length,
    )
