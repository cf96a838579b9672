"""The causal mean of all hidden states so far, the same in one pass, cached and packed.

While decoding with a cache a module sees one token at a time, so the sums of what went before
must travel with the model's own cache: there, beam search reorders them and assisted decoding
crops them together with the keys and values they belong to.
"""

from collections.abc import Hashable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from hylorada.errors import UnsupportedModelError


class PrefixSums(DynamicLayer):
    """A layer of a model's cache that holds the running sums of hidden states at one site."""

    # A static cache stays one in the eyes of transformers, which then masks its unfilled part.
    is_compileable = True

    def __init__(self, owner: Hashable) -> None:
        super().__init__()
        self.owner = owner

    @classmethod
    def of(cls, cache: Cache, owner: Hashable, model_layers: int) -> "PrefixSums":
        """Return the sums that belong to `owner`, adding them behind the model's own layers.

        A cache with fixed layers has all that its pass runs: those before an early exit, or those
        that keep keys of their own. A lazy one is filled up with what it has not met yet.
        """
        for layer in cache.layers:
            if isinstance(layer, cls) and layer.owner == owner:
                return layer
        lazy = cache.layer_class_to_replicate
        while lazy is not None and len(cache.layers) < model_layers:
            cache.layers.append(lazy())
        sums = cls(owner)
        cache.layers.append(sums)
        return sums

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Refuse the keys of a block, which come here when the cache has no layer for it."""
        raise UnsupportedModelError(
            "a cache needs a layer for every block that a pass runs, because sums of the past lie "
            "behind them; this one has fewer; build it from the model's own configuration, and "
            "set assistant_early_exit only for models that then run fewer blocks"
        )

    def past(self) -> Float[Tensor, "batch past dim"] | None:
        """Return the sums up to each earlier token, or None at the start."""
        return self.keys[:, 0] if self.keys is not None and self.get_seq_length() else None

    def extend(self, sums: Float[Tensor, "batch time dim"]) -> None:
        """Append the sums up to each new token."""
        keys = sums[:, None]
        super().update(keys, keys[..., :0])


def causal_mean(
    hidden: Float[Tensor, "batch time dim"],
    positions: Int[Tensor, "#batch time"],
    history: PrefixSums | None = None,
) -> Float[Tensor, "batch time dim"]:
    """Return, for each token, the mean of its document's hidden states up to and with itself.

    A token's document starts `position` tokens before it, which leaves out left padding and the
    documents packed before it. Sums are float32.
    """
    past = None if history is None else history.past()
    sums = hidden.float().cumsum(dim=1)
    if past is not None:
        sums = sums + past[:, -1:]
    if history is not None:
        history.extend(sums)
    everything = sums if past is None else torch.cat([past, sums], dim=1)

    first = everything.shape[1] - hidden.shape[1]
    index = torch.arange(first, everything.shape[1], device=hidden.device)
    start = (index - positions).clamp(min=0).expand(hidden.shape[0], -1)
    before = everything.gather(1, (start - 1).clamp(min=0)[..., None].expand_as(hidden))
    before = torch.where((start > 0)[..., None], before, 0.0)
    return ((sums - before) / (index - start + 1)[..., None]).to(hidden.dtype)
