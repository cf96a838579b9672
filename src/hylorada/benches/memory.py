"""What a training step keeps in memory: activations saved for the backward pass, and the peak."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SavedBytes:
    """The bytes of distinct storages saved for the backward pass, parameters left out."""

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._seen: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Return the bytes seen so far."""
        return sum(self._seen.values())

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what autograd saves in the block; tensors must stay alive until it ends."""
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            yield

    def _save(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor


def saved_activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that one forward pass saves for its backward pass."""
    saved = SavedBytes(model)
    with saved.counting():
        loss = forward()
    del loss
    return saved.total


def peak_step_bytes(step: Callable[[], None]) -> int:
    """Return the CUDA allocation peak of a step above the level before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
