"""Losses like those of short documents under a frozen and an adapted model."""

import numpy as np

from hylorada.bounds import Evidence

VOCABULARY = 1024


def evidence(
    documents: int = 3000,
    *,
    gain: float = 0.4,
    frozen: bool = True,
    draws: np.ndarray | None = None,
    seed: int = 0,
) -> Evidence:
    """Return evidence about a model that gains so many bits per token."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 40, documents)
    tokens = int(lengths.sum())
    before = random.gamma(4.0, size=tokens).astype(np.float32)
    after = (before - gain + 0.3 * random.standard_normal(tokens)).astype(np.float32)
    return Evidence(
        adapted=after,
        frozen=before if frozen else None,
        ranks=random.geometric(0.1, tokens) - 1,
        lengths=lengths,
        corpus_lengths=lengths,
        draws=draws,
        vocabulary=VOCABULARY,
        byte_count=4.0 * tokens,
    )
