"""From documents to a token store: streams, shows progress, resumes, and finishes atomically.

Documents are gathered into shards. A finished shard lies in `<folder>.partial` with a hash of its
text and of the tokenizer, so a second call reads the text again but tokenises only what is missing
or has changed. The folder itself appears at the end, by one rename.
"""

import hashlib
import json
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt, UInt64
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.files import flush, write_atomically
from hylorada.names import require_one_of
from hylorada.text.formats import Document

SCHEMA = 2
TOKENS, OFFSETS, BYTE_COUNTS = "tokens.bin", "offsets.npy", "byte_counts.npy"
TEXT_HASHES, META = "text_hashes.npy", "meta.json"


@dataclass(frozen=True, slots=True)
class TokenStore:
    """The tokens of all documents one after the other, and where each document lies.

    Attributes:
        tokens: Token ids, uint16 or uint32 by the size of the vocabulary.
        offsets: Where each document starts, and at last the number of tokens.
        byte_counts: UTF-8 bytes of each document's text, the unit of bits per byte.
        fingerprint: Hash of tokenizer, document boundary and text.
        text_hashes: 64 bits of the SHA-256 of each text, or none where it is not known.
        tokenizer: Hash of the tokenizer alone, or empty where it is not known.
    """

    tokens: UInt[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, " documents_and_end"]
    byte_counts: Int64[np.ndarray, " documents"]
    fingerprint: str
    text_hashes: UInt64[np.ndarray, " documents_or_none"] = field(
        default_factory=lambda: np.empty(0, dtype=np.uint64)
    )
    tokenizer: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def document(self, index: int) -> UInt[np.ndarray, " tokens"]:
        """Return the tokens of one document, a view of the memory map."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        index %= len(self)
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """Return the store in a folder that `tokenise` finished, without reading its tokens."""
        if not (folder / META).is_file():
            raise SpecError(f"{folder} holds no prepared tokens; run `hylorada prepare` first")
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        if meta["schema"] != SCHEMA:
            raise SpecError(
                f"{folder} was written as schema {meta['schema']}, this version reads {SCHEMA}; "
                f"prepare it again"
            )
        dtype = np.dtype(meta["dtype"])
        stored_bytes = (folder / TOKENS).stat().st_size
        if stored_bytes != meta["tokens"] * dtype.itemsize:
            raise SpecError(
                f"{folder / TOKENS} must have {meta['tokens'] * dtype.itemsize} bytes; got "
                f"{stored_bytes}; delete the folder and prepare it again"
            )
        return cls(
            tokens=np.memmap(folder / TOKENS, dtype=dtype, mode="r"),
            offsets=np.load(folder / OFFSETS, mmap_mode="r"),
            byte_counts=np.load(folder / BYTE_COUNTS, mmap_mode="r"),
            fingerprint=meta["fingerprint"],
            text_hashes=np.load(folder / TEXT_HASHES, mmap_mode="r"),
            tokenizer=meta["tokenizer"],
        )


def without_end_marks(store: TokenStore, mark: int | None) -> TokenStore:
    """Return the text alone where every document ends in `mark`, else the store as it is.

    A mark that the base model never saw after text is learnt in a moment and worth many bits: a
    gain must not come from there.
    """
    ends = np.asarray(store.offsets)[1:][np.diff(store.offsets) > 0] - 1
    if mark is None or not bool((np.asarray(store.tokens[ends]) == mark).all()):
        return store
    removed = np.concatenate([[0], np.cumsum(np.diff(store.offsets) > 0)])
    return replace(
        store,
        tokens=np.delete(np.asarray(store.tokens), ends),
        offsets=np.asarray(store.offsets) - removed,
        fingerprint=f"{store.fingerprint}/text",
    )


def require_disjoint(stores: Mapping[str, TokenStore]) -> None:
    """Raise if a text occurs in two of the named stores, such as train and test."""
    for first, second in combinations(stores, 2):
        shared = np.intersect1d(stores[first].text_hashes, stores[second].text_hashes)
        if shared.size:
            raise SpecError(
                f"{first} and {second} must have no document in common; they share "
                f"{shared.size}; remove the copies from one of them"
            )


BOUNDARIES = ("auto", "eos", "bos", "none")
SHARDS = "shards"


class _Encoding:
    """A tokenizer, the tokens it puts around a document, and the dtype that holds them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, boundary: str) -> None:
        require_one_of("boundary", boundary, BOUNDARIES)
        if boundary == "auto":
            boundary = "none" if tokenizer.eos_token_id is None else "eos"
        token = {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}.get(boundary)
        if token is None and boundary != "none":
            raise SpecError(f"this tokenizer has no {boundary} token; choose boundary 'none'")
        around = (token,) if isinstance(token, int) else ()
        self.tokenizer = tokenizer
        self.before: tuple[int, ...] = around if boundary == "bos" else ()
        self.after: tuple[int, ...] = () if boundary == "bos" else around
        self.dtype = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
        name = tokenizer_fingerprint(tokenizer)
        self.fingerprint = f"{name}/{self.before}/{self.after}/{SCHEMA}"


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
    encoding = _Encoding(tokenizer, boundary)
    if folder.exists() and not (folder / META).is_file():
        raise SpecError(f"{folder} exists and holds no tokens; choose another folder")
    finished = TokenStore.open(folder) if folder.exists() else None
    work = folder.with_name(f"{folder.name}.partial")
    total = hashlib.sha256(encoding.fingerprint.encode())
    shards: list[Path] = []
    with closing(_shards(documents, shard_bytes, folder.name, progress)) as found:
        for number, shard in enumerate(found):
            digests = [hashlib.sha256(document.text.encode()).digest() for document in shard]
            total.update(b"".join(digests))
            if finished is None:
                path = work / SHARDS / f"{number:06d}.npz"
                _keep_shard(path, shard, digests, encoding)
                shards.append(path)
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


def _shards(
    documents: Iterable[Document], shard_bytes: int, name: str, shown: bool
) -> Generator[list[Document], None, None]:
    """Yield the documents in shards, and show on standard error what has been done."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        line = bar.add_task(f"tokenising {name}", total=None)
        shard: list[Document] = []
        count = size = yielded = 0
        for document in chain(documents, [None]):  # the last shard may be small
            if document is not None:
                shard.append(document)
                size += len(document.text.encode())
            if shard and (document is None or size - yielded >= shard_bytes):
                yield shard
                count, yielded, shard = count + len(shard), size, []
                done = f"tokenising {name}: {count:,} documents, {size / 1e6:,.1f} MB"
                bar.update(line, description=done)


def _keep_shard(
    path: Path, shard: list[Document], digests: list[bytes], encoding: _Encoding
) -> None:
    """Tokenise a shard into its file, unless the file already holds this text."""
    key = hashlib.sha256(encoding.fingerprint.encode() + b"".join(digests)).hexdigest()
    if path.is_file():
        with np.load(path) as stored:
            if str(stored["key"]) == key:
                return
    texts = [document.text for document in shard]
    encoded = encoding.tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, verbose=False
    )["input_ids"]
    rows = [(*encoding.before, *row, *encoding.after) for row in encoded]
    hashes = b"".join(digest[:8] for digest in digests)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    np.savez(
        content,
        tokens=np.concatenate([np.array(row, dtype=encoding.dtype) for row in rows]),
        lengths=np.array([len(row) for row in rows], dtype=np.int64),
        byte_counts=np.array([len(text.encode()) for text in texts], dtype=np.int64),
        text_hashes=np.frombuffer(hashes, dtype=">u8").astype(np.uint64),
        key=np.array(key),
    )
    write_atomically(path, content.getvalue())


def _finish(shards: list[Path], work: Path, encoding: _Encoding, fingerprint: str) -> None:
    """Write the store's files beside the shards, and force them to disk."""
    parts: dict[str, list[np.ndarray]] = {"lengths": [], "byte_counts": [], "text_hashes": []}
    with (work / TOKENS).open("wb") as file:
        for path in shards:
            with np.load(path) as shard:
                shard["tokens"].tofile(file)
                for name, found in parts.items():
                    found.append(shard[name])
    lengths, byte_counts, hashes = (np.concatenate(found) for found in parts.values())
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])
    if offsets[-1] == 0:
        shutil.rmtree(work)
        raise SpecError(f"the {len(offsets) - 1} documents hold no token; check the text field")
    np.save(work / OFFSETS, offsets)
    np.save(work / BYTE_COUNTS, byte_counts)
    np.save(work / TEXT_HASHES, hashes)
    meta = {
        "schema": SCHEMA,
        "dtype": encoding.dtype.name,
        "documents": len(offsets) - 1,
        "tokens": int(offsets[-1]),
        "bytes": int(byte_counts.sum()),
        "tokenizer": tokenizer_fingerprint(encoding.tokenizer),
        "before_document": encoding.before,
        "after_document": encoding.after,
        "vocabulary": len(encoding.tokenizer),
        "fingerprint": fingerprint,
    }
    (work / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
    for name in (TOKENS, OFFSETS, BYTE_COUNTS, TEXT_HASHES, META):
        flush(work / name)
