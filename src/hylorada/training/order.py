"""The order of the training data: fixed by seed and epoch, whatever the number of processes."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from hylorada.errors import SpecError
from hylorada.seeds import generator


class DealtBatches(Sampler[list[int]]):
    """The micro-batches one process computes, dealt from batches all processes agree on.

    A batch is cut into `accumulation` pieces and each piece into equal shares, one per process,
    so that any number of processes takes the same optimiser steps.

    Args:
        items: Size of the dataset.
        batch_size: Items per optimiser step, over all processes.
        accumulation: Pieces of a batch that follow each other.
        seed: Fixes the order of every epoch.
        process: Which process this is.
        processes: How many there are.
    """

    def __init__(
        self,
        items: int,
        batch_size: int,
        *,
        accumulation: int = 1,
        seed: int = 0,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        if items < 1:
            raise SpecError(f"training needs at least one item; got {items}")
        if batch_size % (accumulation * processes):
            raise SpecError(
                "batch_size must be a multiple of accumulation × processes, "
                f"{accumulation} × {processes}; got {batch_size}"
            )
        if items % processes:
            raise SpecError(
                f"the training items must divide evenly among the {processes} processes; "
                f"got {items}; use {items - items % processes}"
            )
        self.share = batch_size // (accumulation * processes)
        self.epoch = 0
        self._items = items
        self._seed = seed
        self._process = process
        self._processes = processes

    def __len__(self) -> int:
        return -(-self._items // (self.share * self._processes))

    def __iter__(self) -> Iterator[list[int]]:
        stream = generator(self._seed, "training order", self.epoch)
        order = torch.randperm(self._items, generator=stream).tolist()
        piece = self.share * self._processes
        for start in range(0, self._items, piece):
            dealt = order[start : start + piece]
            share = len(dealt) // self._processes
            yield dealt[self._process * share : (self._process + 1) * share]
