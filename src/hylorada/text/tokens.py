"""From documents to a token store: streams, shows progress, resumes, and finishes atomically.

Documents are gathered into shards. A finished shard lies in `<folder>.partial` with a hash of its
text and of the tokenizer, so a second call reads the text again but tokenises only what is missing
or has changed. The folder itself appears at the end, by one rename.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.files import flush
from hylorada.names import require_one_of
from hylorada.text.corpus import Document
from hylorada.text.store import (
    BYTE_COUNTS,
    META,
    OFFSETS,
    SCHEMA,
    TEXT_HASHES,
    TOKENS,
    TokenStore,
)

BOUNDARIES = ("auto", "eos", "bos", "none")
SHARDS = "shards"


@dataclass(frozen=True, slots=True)
class _Encoding:
    """A tokenizer, the tokens it puts around a document, and the dtype that holds them."""

    tokenizer: PreTrainedTokenizerBase
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: np.dtype[np.uint16] | np.dtype[np.uint32]
    fingerprint: str


def tokenise(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    boundary: str = "auto",
    shard_bytes: int = 4_000_000,
    progress: bool = True,
) -> TokenStore:
    """Write the tokens of all documents to a folder and return them as a store.

    A folder that already holds this text under this tokenizer is returned as it is.

    Args:
        documents: The corpus, in a fixed order; read once, never held in memory as a whole.
        tokenizer: Encodes each text without special tokens of its own.
        folder: Where the store will lie; its parent is created.
        boundary: "eos" ends and "bos" begins each document with that token; "none" adds nothing;
            "auto" is "eos" where the tokenizer has one, else "none".
        shard_bytes: Text gathered before it is tokenised and saved, in bytes of UTF-8.
        progress: Whether to show documents and tokens on standard error.
    """
    encoding = _encoding(tokenizer, boundary)
    if folder.exists() and not (folder / META).is_file():
        raise SpecError(f"{folder} exists and holds no tokens; choose another folder")
    finished = TokenStore.open(folder) if folder.exists() else None
    work = folder.with_name(f"{folder.name}.partial")
    total = hashlib.sha256(encoding.fingerprint.encode())
    shards: list[Path] = []
    with _Report(progress, folder.name) as report:
        for number, shard in enumerate(_shards(documents, shard_bytes)):
            digests = [hashlib.sha256(document.text.encode()).digest() for document in shard]
            total.update(b"".join(digests))
            if finished is None:
                path = work / SHARDS / f"{number:06d}.npz"
                _keep_shard(path, shard, digests, encoding)
                shards.append(path)
            report.advance(shard)
    fingerprint = total.hexdigest()[:32]
    if finished is not None:
        if finished.fingerprint != fingerprint:
            raise SpecError(
                f"{folder} holds other text, or tokens of another tokenizer; delete it or choose "
                f"another folder"
            )
        return finished
    if not shards:
        raise SpecError("there are no documents to tokenise; check the source and the split")
    _finish(shards, work, encoding, fingerprint)
    work.replace(folder)
    flush(folder.parent)
    shutil.rmtree(folder / SHARDS)
    return TokenStore.open(folder)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of what a tokenizer does to text, whatever its padding and truncation."""
    if tokenizer.is_fast:
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        # Calling a tokenizer with padding writes that setting into its description.
        description["padding"] = description["truncation"] = None
    else:
        description = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    stable = json.dumps(description, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(stable.encode()).hexdigest()[:32]


def _encoding(tokenizer: PreTrainedTokenizerBase, boundary: str) -> _Encoding:
    require_one_of("boundary", boundary, BOUNDARIES)
    if boundary == "auto":
        boundary = "none" if tokenizer.eos_token_id is None else "eos"
    token = {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}.get(boundary)
    if token is None and boundary != "none":
        raise SpecError(f"this tokenizer has no {boundary} token; choose boundary 'none'")
    around = (token,) if isinstance(token, int) else ()
    before, after = (around, ()) if boundary == "bos" else ((), around)
    dtype = np.dtype(np.uint16) if len(tokenizer) <= 2**16 else np.dtype(np.uint32)
    name = f"{tokenizer_fingerprint(tokenizer)}/{before}/{after}/{SCHEMA}"
    return _Encoding(tokenizer, before, after, dtype, name)


def _shards(documents: Iterable[Document], shard_bytes: int) -> Iterator[list[Document]]:
    shard: list[Document] = []
    size = 0
    for document in documents:
        shard.append(document)
        size += len(document.text.encode())
        if size >= shard_bytes:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _keep_shard(
    path: Path, shard: list[Document], digests: list[bytes], encoding: _Encoding
) -> None:
    """Tokenise a shard into its file, unless the file already holds this text."""
    key = hashlib.sha256(encoding.fingerprint.encode() + b"".join(digests)).hexdigest()
    if _stored_key(path) == key:
        return
    texts = [document.text for document in shard]
    encoded = encoding.tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, verbose=False
    )["input_ids"]
    rows = [(*encoding.before, *row, *encoding.after) for row in encoded]
    hashes = b"".join(digest[:8] for digest in digests)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".writing")
    with unfinished.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(row, dtype=encoding.dtype) for row in rows]),
            lengths=np.array([len(row) for row in rows], dtype=np.int64),
            byte_counts=np.array([len(text.encode()) for text in texts], dtype=np.int64),
            text_hashes=np.frombuffer(hashes, dtype=">u8").astype(np.uint64),
            key=np.array(key),
        )
    flush(unfinished)
    unfinished.replace(path)


def _stored_key(path: Path) -> str | None:
    if not path.is_file():
        return None
    with np.load(path) as stored:
        return str(stored["key"])


def _finish(shards: list[Path], work: Path, encoding: _Encoding, fingerprint: str) -> None:
    """Write the store's files beside the shards, and force them to disk."""
    lengths, byte_counts, hashes = [], [], []
    with (work / TOKENS).open("wb") as file:
        for path in shards:
            with np.load(path) as shard:
                shard["tokens"].tofile(file)
                lengths.append(shard["lengths"])
                byte_counts.append(shard["byte_counts"])
                hashes.append(shard["text_hashes"])
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), *lengths]).cumsum()
    if offsets[-1] == 0:
        shutil.rmtree(work)
        raise SpecError(f"the {len(offsets) - 1} documents hold no token; check the text field")
    np.save(work / OFFSETS, offsets)
    np.save(work / BYTE_COUNTS, np.concatenate(byte_counts))
    np.save(work / TEXT_HASHES, np.concatenate(hashes))
    meta = {
        "schema": SCHEMA,
        "dtype": encoding.dtype.name,
        "documents": len(offsets) - 1,
        "tokens": int(offsets[-1]),
        "bytes": int(sum(counts.sum() for counts in byte_counts)),
        "tokenizer": tokenizer_fingerprint(encoding.tokenizer),
        "before_document": encoding.before,
        "after_document": encoding.after,
        "vocabulary": len(encoding.tokenizer),
        "fingerprint": fingerprint,
    }
    (work / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
    for name in (TOKENS, OFFSETS, BYTE_COUNTS, TEXT_HASHES, META):
        flush(work / name)


class _Report:
    """A line on standard error with the documents and megabytes done so far."""

    def __init__(self, shown: bool, name: str) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not shown)
        self._name = name
        self._documents = self._bytes = 0

    def __enter__(self) -> "_Report":
        self._bar.start()
        self._task = self._bar.add_task(f"tokenising {self._name}", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, shard: list[Document]) -> None:
        """Count one more shard."""
        self._documents += len(shard)
        self._bytes += sum(len(document.text.encode()) for document in shard)
        self._bar.update(
            self._task,
            description=f"tokenising {self._name}: {self._documents:,} documents, "
            f"{self._bytes / 1e6:,.1f} MB",
        )
