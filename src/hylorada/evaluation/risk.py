"""One pass over documents for certificates: bits and rank of every token, twice the same.

Every document is predicted from its own first token on; that token itself is not scored, and a
document without a second one is not counted. Documents of similar length share a batch, padded on
the right: a causal model does not see what comes after, so no mask is needed and attention keeps
its fast path. Documents beyond the context are read in overlapping windows.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int32, Int64
from peft import PeftModel
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import PiecewiseLogits, require_context, track
from hylorada.evaluation.windows import cut_windows
from hylorada.files import write_atomically
from hylorada.models.anatomy import evaluating
from hylorada.seeds import generator
from hylorada.specs import check, setting
from hylorada.text.tokens import TokenStore
from hylorada.units import Nats, bits_from_nats

BATCH_TOKENS = {"cpu": 4096, "cuda": 2**16}
# Logits alive at once: near the cache on a CPU, large products on a GPU.
LOGITS_PER_PIECE = {"cpu": 2**22, "cuda": 2**28}
BITS_PER_NAT = float(bits_from_nats(Nats(1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskSpec:
    """How documents are read."""

    max_length: int = setting(
        1024, "Tokens of context; longer documents are read in windows.", least=2
    )
    stride: int | None = setting(
        None, "Tokens scored by each window but the first; None for half of max_length."
    )
    batch_tokens: int | None = setting(
        None, "Tokens in a batch, padding included; None chooses by the device.", least=1
    )
    shard_tokens: int = setting(
        2**20, "Tokens after which results are kept, so that a second call goes on there.", least=1
    )
    progress: bool = setting(False, "Whether to show progress, on standard error.")

    def __post_init__(self) -> None:
        check(self)
        if not 1 <= self.window_stride <= self.max_length:
            raise SpecError(f"stride must lie in 1..{self.max_length}; got {self.stride}")

    @property
    def window_stride(self) -> int:
        """Return the tokens scored by each window but the first."""
        return self.max_length // 2 if self.stride is None else self.stride


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
        columns = (self.starts, self.lengths, self.first_scored, self.outputs)
        return Stretches(*(column[start:end] for column in columns))

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
    store: TokenStore, documents: Int64[np.ndarray, " documents"], spec: RiskSpec
) -> Stretches:
    """Return the rows that score every token of the documents but their first, each once."""
    offsets = np.asarray(store.offsets)
    starts, lengths = offsets[documents], offsets[documents + 1] - offsets[documents]
    if not documents.size or int(lengths.min()) < 2:
        raise SpecError("only documents of at least 2 tokens can be scored; leave out the others")
    outputs = np.cumsum(lengths - 1) - (lengths - 1)
    short = lengths <= spec.max_length
    whole = np.stack([starts, lengths, np.ones_like(starts), outputs], axis=1)[short]
    windows = [
        (
            starts[index] + window.start,
            window.end - window.start,
            window.first_scored - window.start,
            outputs[index] + window.first_scored - 1,
        )
        for index in np.flatnonzero(~short)
        for window in cut_windows(int(lengths[index]), spec.max_length, spec.window_stride)
    ]
    table = np.concatenate([whole, np.array(windows, dtype=np.int64).reshape(-1, 4)])
    table = table[np.argsort(table[:, 1], kind="stable")]
    return Stretches(*(np.ascontiguousarray(table[:, column]) for column in range(4)))


class TargetReader:
    """Scores targets with one causal language model, which may have its adapter switched off."""

    def __init__(self, model: nn.Module, *, adapter_off: bool = False) -> None:
        """Prepare the model; this costs two very short forwards."""
        self._switched: Callable[[], AbstractContextManager[None]] = nullcontext
        if adapter_off:
            if not isinstance(model, PeftModel):
                raise SpecError(
                    f"a model compared with itself needs an adapter to switch off; got a "
                    f"{type(model).__name__} without one"
                )
            self._switched = model.disable_adapter
        self.model = model
        self._logits = PiecewiseLogits(model, LOGITS_PER_PIECE)
        self.device, self.vocabulary = self._logits.device, self._logits.vocabulary

    @torch.no_grad()
    def read(
        self,
        input_ids: Int[Tensor, "batch time"],
        places: Int[Tensor, " targets"],
        *,
        ranked: bool,
    ) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"] | None]:
        """Return the bits of the tokens at flat `places`, and their ranks if wanted.

        The rank counts the logits that are at least the target's, without its own: a tie counts
        against the model.
        """
        targets = input_ids.flatten()[places]
        losses, ranks = [], []
        with evaluating(self.model), self._switched():
            for piece, logits in self._logits.before(places, input_ids):
                target = targets[piece, None]
                log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
                losses.append(log_probabilities.gather(-1, target)[:, 0] * -BITS_PER_NAT)
                if ranked:
                    at_least = logits >= logits.gather(-1, target)
                    ranks.append(at_least.sum(-1, dtype=torch.int32) - 1)
        return torch.cat(losses), torch.cat(ranks) if ranked else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRisks:
    """Bits of every scored token of the documents read, in their order, under one or two models.

    Lengths are the scored tokens of each document, ranks how many tokens the first model puts
    before the right one or at its side.
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

    Every document asked for needs at least two tokens. The model to compare with, `frozen`, is read
    in the same pass; the same PEFT model stands for itself with its adapter switched off. Results
    on the way are kept in the folder `shards`, and a second call with the same key goes on there.
    The key says what the models are, so that shards of others are never taken for theirs.
    """
    spec = RiskSpec() if spec is None else spec
    require_context(model, spec.max_length)
    rows = stretches(store, documents, spec)
    readers = [TargetReader(model)]
    if frozen is not None:
        readers.append(TargetReader(frozen, adapter_off=frozen is model))
    # Everything that decides the numbers of a shard.
    settings = {name: value for name, value in asdict(spec).items() if name != "progress"}
    digest = hashlib.sha256(f"{store.fingerprint}/{key}/{len(readers)}/{settings}".encode())
    digest.update(rows.starts.tobytes() + rows.lengths.tobytes())
    lengths = scored_lengths(store)[documents]
    kinds = (*(np.float32 for _ in readers), np.int32)
    columns = [np.empty(int(lengths.sum()), dtype=kind) for kind in kinds]
    parts = list(enumerate(rows.shards(spec.shard_tokens)))
    for number, shard in track(parts, "documents", enabled=spec.progress):
        path = None if shards is None else shards / f"{number:05d}.npz"
        found = _kept(path, digest.hexdigest(), partial(_read, readers, store, shard, spec))
        for column, values in zip(columns, found, strict=True):
            column[shard.targets()] = values
    return TokenRisks(
        documents=documents,
        lengths=lengths,
        adapted=columns[0],
        frozen=None if frozen is None else columns[1],
        ranks=columns[-1],
        vocabulary=readers[0].vocabulary,
    )


def _read(
    readers: list[TargetReader], store: TokenStore, rows: Stretches, spec: RiskSpec
) -> list[np.ndarray]:
    """Return the bits under each model and the ranks under the first, row after row."""
    device = readers[0].device
    limit = spec.batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
    columns: list[list[Tensor]] = [[] for _ in (*readers, "ranks")]
    for batch in rows.batches(limit):
        input_ids, places = (part.to(device) for part in batch.padded(store))
        for reader, column in zip(readers, columns, strict=False):
            bits, ranks = reader.read(input_ids, places, ranked=reader is readers[0])
            column.append(bits)
            if ranks is not None:
                columns[-1].append(ranks)
    # One transfer for a shard: a copy after every batch would make an accelerator wait.
    return [torch.cat(column).cpu().numpy() for column in columns]


def _kept(
    path: Path | None, identity: str, read: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """Return what a shard holds; what is not in its file yet is read and written there."""
    if path is not None and path.is_file():
        with np.load(path) as stored:
            if str(stored["identity"]) == identity:
                return [stored[f"column_{number}"] for number in range(len(stored.files) - 1)]
    columns = read()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        named = {f"column_{number}": column for number, column in enumerate(columns)}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, identity=np.array(identity), **named)
        write_atomically(path, file.getvalue())
    return columns
