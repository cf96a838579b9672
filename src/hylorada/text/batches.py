"""Token stores as torch datasets: packed blocks, padded documents and packed documents.

Items are dictionaries of long tensors, as `transformers.Trainer` takes them. A label of -100 is
neither trained on nor scored; models shift labels by one themselves.
"""

from collections.abc import Sequence, Sized
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset

from hylorada.errors import SpecError
from hylorada.seeds import generator
from hylorada.text.tokens import TokenStore

IGNORED = -100
Item = dict[str, Tensor]


class _Rows(Dataset[Item]):
    """Items of at most `length` tokens."""

    indices: Sized

    def __init__(self, store: TokenStore, length: int) -> None:
        if length < 2:
            raise SpecError(
                f"length must be at least 2, one token to see and one to predict; got {length}"
            )
        self.store, self.length = store, length

    def __len__(self) -> int:
        return len(self.indices)


class PackedBlocks(_Rows):
    """The contiguous stream of all documents cut into blocks; the incomplete tail is dropped.

    Args:
        store: The tokens.
        length: Tokens in a block.
        count: How many blocks to take; None takes all of them.
        seed: With a seed the `count` blocks are drawn without replacement, in the order drawn;
            without one they are the first, in the order of the text.
    """

    def __init__(
        self, store: TokenStore, length: int, *, count: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(store, length)
        available = len(store.tokens) // length
        if not available:
            raise SpecError(
                f"length must not exceed the {len(store.tokens)} tokens of the text; got {length}; "
                f"shorten it or give more text"
            )
        wanted = available if count is None else count
        if not 1 <= wanted <= available:
            raise SpecError(
                f"count must be 1 to {available}, the blocks of {length} tokens in this text; "
                f"got {wanted}"
            )
        if seed is None:
            chosen = torch.arange(wanted)
        else:
            chosen = torch.randperm(available, generator=generator(seed, "blocks"))[:wanted]
        self.indices: Int64[Tensor, " count"] = chosen

    def __getitem__(self, index: int) -> Item:
        start = int(self.indices[index]) * self.length
        tokens = _long(self.store.tokens[start : start + self.length])
        return {"input_ids": tokens, "labels": tokens.clone()}


class PaddedDocuments(_Rows):
    """One document an item, cut off after `length` tokens; collate with `pad_documents`.

    Documents of fewer than two tokens predict nothing and are left out.
    """

    def __init__(self, store: TokenStore, length: int) -> None:
        super().__init__(store, length)
        self.indices: np.ndarray = np.flatnonzero(np.diff(store.offsets) >= 2)
        if not self.indices.size:
            raise SpecError("there is no document of at least two tokens; check the text")

    def __getitem__(self, index: int) -> Item:
        tokens = _long(self.store.document(int(self.indices[index]))[: self.length])
        return {"input_ids": tokens, "labels": tokens.clone()}


class PackedDocuments(_Rows):
    """Whole documents packed into rows of `length` tokens, in the order of the text.

    Positions restart at 0 with every document and its first token is not a target, so no document
    is predicted from another. `transformers` keeps documents apart in attention by their restarting
    positions, but only without an attention mask, which rows do not have, and with
    `use_cache=False`, which its Trainer sets. What is left of a row is one more stretch of padding,
    with labels -100. A document longer than a row is cut into rows of its own.

    Args:
        store: The tokens.
        length: Tokens in a row.
        pad_token_id: Fills the rest of a row; nothing sees it or predicts it.
    """

    def __init__(self, store: TokenStore, length: int, *, pad_token_id: int = 0) -> None:
        super().__init__(store, length)
        self.pad_token_id = pad_token_id
        self.indices: list[list[tuple[int, int]]] = []  # start and stop of the pieces of each row
        room = 0
        for start, stop in pairwise(store.offsets.tolist()):
            for first in range(start, stop, length):
                last = min(first + length, stop)
                if last - first < 2:
                    continue
                if last - first > room:
                    self.indices.append([])
                    room = length
                self.indices[-1].append((first, last))
                room -= last - first
        if not self.indices:
            raise SpecError("there is no document of at least two tokens; check the text")

    def __getitem__(self, index: int) -> Item:
        pieces = [_long(self.store.tokens[start:stop]) for start, stop in self.indices[index]]
        rest = torch.full((self.length - sum(map(len, pieces)),), self.pad_token_id)
        labels = [piece.clone() for piece in pieces]
        for label in labels:
            label[0] = IGNORED
        return {
            "input_ids": torch.cat([*pieces, rest]),
            "labels": torch.cat([*labels, torch.full_like(rest, IGNORED)]),
            "position_ids": torch.cat([torch.arange(len(piece)) for piece in (*pieces, rest)]),
        }


def pad_documents(items: Sequence[Item], *, pad_token_id: int) -> Item:
    """Return items as long as the longest, with labels -100 and mask 0 on the padding behind them.

    Args:
        items: What `PaddedDocuments` or `PackedBlocks` gave.
        pad_token_id: Stands in the padding; the mask hides it, whatever it is.
    """
    longest = max(len(item["input_ids"]) for item in items)
    fill = {"input_ids": pad_token_id, "labels": IGNORED, "attention_mask": 0}
    columns: dict[str, list[Tensor]] = {}
    for item in items:
        for name, values in {**item, "attention_mask": torch.ones_like(item["labels"])}.items():
            padding = values.new_full((longest - len(values),), fill[name])
            columns.setdefault(name, []).append(torch.cat([values, padding]))
    return {name: torch.stack(rows) for name, rows in columns.items()}


def _long(tokens: np.ndarray) -> Int64[Tensor, " time"]:
    return torch.from_numpy(tokens.astype(np.int64))
