"""Losses like those of short documents under a frozen and an adapted model, certified."""

import numpy as np

from hylorada.bounds import Certificate, Losses, Payment, Prior, issue, payment
from hylorada.records.certificates import CertifiedText, Code, MeasuredModel, MessageFile

VOCABULARY = 1024
PRETRAINED = Prior(kind="pretrained", name="smollm2")


def losses(
    documents: int = 3000,
    *,
    gain: float = 0.4,
    frozen: bool = True,
    draws: np.ndarray | None = None,
    seed: int = 0,
) -> Losses:
    """Return the losses of a model that gains so many bits per token."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 40, documents)
    tokens = int(lengths.sum())
    before = random.gamma(4.0, size=tokens).astype(np.float32)
    after = (before - gain + 0.3 * random.standard_normal(tokens)).astype(np.float32)
    return Losses(
        adapted=after,
        frozen=before if frozen else None,
        ranks=random.geometric(0.1, tokens) - 1,
        lengths=lengths,
        corpus_lengths=lengths,
        draws=draws,
        vocabulary=VOCABULARY,
        byte_count=4.0 * tokens,
    )


def issued(
    found: Losses,
    paid: Payment | None = None,
    prior: Prior = PRETRAINED,
    *,
    level: str = "document",
    delta: float = 0.05,
    inequality: str = "betting",
) -> Certificate:
    """Return a certificate of these losses, about a file that nobody has."""
    return issue(
        found,
        paid or payment(200, {"dimension": 4}),
        prior,
        level=level,
        delta=delta,
        inequality=inequality,
        message=MessageFile(file="adapter.hyl", bytes=99, sha256="ab", configuration_id="cd"),
        model=MeasuredModel(
            base=prior.name,
            base_sha256="ef",
            vocabulary=VOCABULARY,
            max_length=64,
            stride=32,
            dtype="float32",
            device="CPU",
        ),
        data=CertifiedText(
            source="text",
            split="train",
            lines="auto",
            fingerprint="01",
            documents=int(found.corpus_lengths.size),
            tokens=int(found.corpus_lengths.sum()),
            documents_read=int(found.lengths.size),
            tokens_read=int(found.lengths.sum()),
            samples=None,
            seed=0,
        ),
        code=Code(packages={}, sha256="23"),
    )
