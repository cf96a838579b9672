"""One pass over documents for certificates: bits and rank of every token, twice the same.

Every document is predicted from its own first token on; that token itself is not scored, and a
document without a second one is not counted. Documents of similar length share a batch, padded on
the right: a causal model does not see what comes after, so no mask is needed and attention keeps
its fast path. Documents beyond the context are read in overlapping windows.
"""

import hashlib
import io
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import require_context
from hylorada.evaluation.progress import track
from hylorada.evaluation.stretches import Stretches, stretches
from hylorada.evaluation.targets import TargetReader
from hylorada.files import write_atomically
from hylorada.seeds import generator
from hylorada.text.store import TokenStore

BATCH_TOKENS = {"cpu": 4096, "cuda": 2**16}


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskSpec:
    """How documents are read.

    Attributes:
        max_length: Tokens of context; longer documents are read in windows.
        stride: Tokens scored by each window but the first; None for half of `max_length`.
        batch_tokens: Tokens in a batch, padding included; None chooses by the device.
        shard_tokens: Tokens after which results are kept, so that a second call goes on there.
        progress: Whether to show progress, on standard error.
    """

    max_length: int = 1024
    stride: int | None = None
    batch_tokens: int | None = None
    shard_tokens: int = 2**20
    progress: bool = False

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise SpecError(f"max_length must be at least 2; got {self.max_length}")
        for name in ("batch_tokens", "shard_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if not 1 <= self.window_stride <= self.max_length:
            raise SpecError(f"stride must lie in 1..{self.max_length}; got {self.stride}")

    @property
    def window_stride(self) -> int:
        """Return the tokens scored by each window but the first."""
        return self.max_length // 2 if self.stride is None else self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRisks:
    """Every scored token of the documents read, in their order.

    Attributes:
        documents: Which documents of the store these are.
        lengths: Scored tokens of each.
        adapted: Bits of each token under the model.
        frozen: Bits of each token under the model it is compared with, if any.
        ranks: Tokens that the model puts before the right one or at its side.
        vocabulary: Entries of the distributions predicted.
    """

    documents: Int64[np.ndarray, " documents"]
    lengths: Int64[np.ndarray, " documents"]
    adapted: Float32[np.ndarray, " tokens"]
    frozen: Float32[np.ndarray, " tokens"] | None
    ranks: Int32[np.ndarray, " tokens"]
    vocabulary: int


def scored_lengths(store: TokenStore) -> Int64[np.ndarray, " documents"]:
    """Return how many tokens of each document are scored: all but its first."""
    return np.maximum(np.diff(np.asarray(store.offsets)) - 1, 0)


def countable_documents(store: TokenStore) -> Int64[np.ndarray, " documents"]:
    """Return the documents that have something to score, in the order of the corpus."""
    found = np.flatnonzero(scored_lengths(store))
    if not found.size:
        raise SpecError("a certificate needs a document of at least 2 tokens; got none")
    return found.astype(np.int64)


def drawn_documents(
    store: TokenStore, samples: int, seed: int
) -> tuple[Int64[np.ndarray, " documents"], Int64[np.ndarray, " documents"]]:
    """Return which documents `samples` draws with replacement hit, and how often each."""
    if samples < 2:
        raise SpecError(f"samples must be at least 2; got {samples}")
    among = countable_documents(store)
    stream = generator(seed, "documents of a certificate")
    draws = among[torch.randint(among.size, (samples,), generator=stream).numpy()]
    documents, counts = np.unique(draws, return_counts=True)
    return documents, counts.astype(np.int64)


def token_risks(
    model: nn.Module,
    store: TokenStore,
    documents: Int64[np.ndarray, " documents"],
    spec: RiskSpec | None = None,
    *,
    frozen: nn.Module | None = None,
    shards: Path | None = None,
    key: str = "",
) -> TokenRisks:
    """Return bits and rank of every scored token, the same to the last bit on the same machine.

    Args:
        model: A causal language model, with or without an adapter.
        store: The tokenised corpus.
        documents: Which of its documents to read, each with at least two tokens.
        spec: How to read them.
        frozen: The model to compare with, read in the same pass; the same PEFT model stands for
            itself with its adapter switched off.
        shards: Folder for results on the way; a second call with the same key goes on from there.
        key: What the models are, so that shards of others are never taken for theirs.
    """
    spec = RiskSpec() if spec is None else spec
    require_context(model, spec.max_length)
    rows = stretches(store, documents, max_length=spec.max_length, stride=spec.window_stride)
    readers = [TargetReader(model)]
    if frozen is not None:
        readers.append(TargetReader(frozen, adapter_off=frozen is model))
    lengths = scored_lengths(store)[documents]
    losses = [np.empty(int(lengths.sum()), dtype=np.float32) for _ in readers]
    ranks = np.empty(int(lengths.sum()), dtype=np.int32)
    identity = _identity(store, rows, spec, f"{key}/{len(readers)}")
    parts = list(enumerate(rows.shards(spec.shard_tokens)))
    for number, shard in track(parts, "documents", enabled=spec.progress):
        path = None if shards is None else shards / f"{number:05d}.npz"
        found = _stored(path, identity)
        if found is None:
            found = _read(readers, store, shard, spec)
            _keep(path, identity, found)
        for column, values in zip((*losses, ranks), found, strict=True):
            column[shard.targets()] = values
    return TokenRisks(
        documents=documents,
        lengths=lengths,
        adapted=losses[0],
        frozen=None if frozen is None else losses[1],
        ranks=ranks,
        vocabulary=readers[0].vocabulary,
    )


def _read(
    readers: list[TargetReader], store: TokenStore, rows: Stretches, spec: RiskSpec
) -> list[np.ndarray]:
    """Return the bits under each model and the ranks under the first, row after row."""
    device = readers[0].device
    limit = spec.batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
    losses: list[list[Tensor]] = [[] for _ in readers]
    ranks: list[Tensor] = []
    for batch in rows.batches(limit):
        input_ids, places = (part.to(device) for part in batch.padded(store))
        for number, reader in enumerate(readers):
            bits, rank = reader.read(input_ids, places, ranked=number == 0)
            losses[number].append(bits)
            if rank is not None:
                ranks.append(rank)
    # One transfer for a shard: a copy after every batch would make an accelerator wait.
    return [torch.cat(column).cpu().numpy() for column in (*losses, ranks)]


def _identity(store: TokenStore, rows: Stretches, spec: RiskSpec, key: str) -> str:
    """Return a hash of everything that decides the numbers of a shard."""
    settings = asdict(spec)
    settings.pop("progress")
    digest = hashlib.sha256(f"{store.fingerprint}/{key}/{settings}".encode())
    digest.update(rows.starts.tobytes() + rows.lengths.tobytes())
    return digest.hexdigest()


def _stored(path: Path | None, identity: str) -> list[np.ndarray] | None:
    if path is None or not path.is_file():
        return None
    with np.load(path) as stored:
        if str(stored["identity"]) != identity:
            return None
        return [stored[f"column_{number}"] for number in range(len(stored.files) - 1)]


def _keep(path: Path | None, identity: str, columns: list[np.ndarray]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {f"column_{number}": column for number, column in enumerate(columns)}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, identity=np.array(identity), **named)
    write_atomically(path, file.getvalue())
