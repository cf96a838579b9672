"""Tokens of many documents on disk, read through memory maps so that a corpus may exceed memory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt, UInt64

from hylorada.errors import SpecError

SCHEMA = 2
TOKENS, OFFSETS, BYTE_COUNTS = "tokens.bin", "offsets.npy", "byte_counts.npy"
TEXT_HASHES, META = "text_hashes.npy", "meta.json"


def _no_hashes() -> np.ndarray:
    return np.empty(0, dtype=np.uint64)


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
    text_hashes: UInt64[np.ndarray, " documents_or_none"] = field(default_factory=_no_hashes)
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


def require_disjoint(stores: Mapping[str, TokenStore]) -> None:
    """Raise if a text occurs in two of the named stores, such as train and test."""
    names = list(stores)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            shared = np.intersect1d(stores[first].text_hashes, stores[second].text_hashes)
            if shared.size:
                raise SpecError(
                    f"{first} and {second} must have no document in common; they share "
                    f"{shared.size}; remove the copies from one of them"
                )
