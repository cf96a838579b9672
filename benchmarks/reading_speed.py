"""How fast documents are read for a certificate, beside a bare forward pass of the same model."""

import time
from typing import Any

import numpy as np
import torch
from certificates import DEVICE
from peft import PeftModel

from hylorada.evaluation.risk import RiskSpec, countable_documents, stretches, token_risks
from hylorada.models.pretrained import LoadedModel
from hylorada.text.tokens import TokenStore


def time_reading(count: int, length: int, loaded: LoadedModel) -> dict[str, Any]:
    """Time two readings of long documents beside a bare forward pass, and compare every loss."""
    vocabulary = len(loaded.tokenizer)
    tokens = np.random.default_rng(0).integers(0, vocabulary, count * length).astype(np.uint16)
    store = TokenStore(
        tokens=tokens,
        offsets=np.arange(count + 1) * length,
        byte_counts=np.full(count, 4 * length),
        fingerprint="speed",
    )
    documents = countable_documents(store)
    spec = RiskSpec(max_length=min(1024, loaded.model.config.max_position_embeddings))
    rows = stretches(store, documents, spec)
    batches = [batch.padded(store)[0] for batch in rows.part(0, 640).batches(2**16)]
    token_risks(loaded.model, store, documents[:200], spec)  # warm
    seconds, risks = [], []
    for _ in range(2):
        start = time.perf_counter()
        risks.append(token_risks(loaded.model, store, documents, spec))
        seconds.append(time.perf_counter() - start)
    read = int(rows.lengths.sum()) / min(seconds)
    bare = bare_forward(loaded.model, batches)
    return {
        "documents": count,
        "tokens_each": length,
        "seconds": seconds,
        "identical": all(
            np.array_equal(getattr(risks[0], name), getattr(risks[1], name))
            for name in ("adapted", "ranks")
        ),
        "tokens_read_per_second": read,
        "bare_forward_tokens_per_second": bare,
        "share_of_bare_forward": read / bare,
    }


@torch.no_grad()
def bare_forward(model: PeftModel | torch.nn.Module, batches: list[torch.Tensor]) -> float:
    """Return the tokens per second of the model's own forward, in rows that fit its logits."""
    pieces = [piece.to(DEVICE) for batch in batches for piece in batch.split(16)]
    rates = []
    for _ in range(3):
        synchronise()
        start = time.perf_counter()
        for piece in pieces:
            model(input_ids=piece, use_cache=False)
        synchronise()
        elapsed = time.perf_counter() - start
        rates.append(sum(piece.numel() for piece in pieces) / elapsed)
    return max(rates)


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
