"""What a training step keeps in memory: activations saved for the backward pass, and the peak."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn


class Saved:
    """A tensor as autograd holds it, for as long as it does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedBytes:
    """The bytes of distinct storages held for the backward pass, parameters left out."""

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        self._own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._held: WeakSet[Saved] = WeakSet()

    @property
    def total(self) -> int:
        """Return the bytes held now: a graph that was dropped on the way holds nothing."""
        storages = (saved.tensor.untyped_storage() for saved in self._held)
        held = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(size for address, size in held.items() if address not in self._own)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what autograd saves in the block."""
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved.tensor):
            yield

    def _save(self, tensor: Tensor) -> Saved:
        saved = Saved(tensor.detach())  # with its history it would hold the node that holds it
        self._held.add(saved)
        return saved


def saved_activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that one forward pass saves for its backward pass."""
    saved = SavedBytes(model)
    with saved.counting():
        loss = forward()
    size = saved.total
    del loss
    return size


def peak_step_bytes(step: Callable[[], None]) -> int:
    """Return the CUDA allocation peak of a step above the level before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
