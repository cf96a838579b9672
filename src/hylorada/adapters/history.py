"""The causal mean of all hidden states so far, the same in one pass, cached and packed.

While decoding with a cache a module sees one token at a time, so the sums of what went before
must travel with the model's own cache: there, beam search reorders them and assisted decoding
crops them together with the keys and values they belong to.
"""

from collections.abc import Hashable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class PrefixSums(DynamicLayer):
    """A layer of a model's cache that holds the running sums of hidden states at one site."""

    # A static cache stays one in the eyes of transformers, which then masks its unfilled part.
    is_compileable = True

    def __init__(self, owner: Hashable) -> None:
        super().__init__()
        self.owner = owner

    @classmethod
    def of(cls, cache: Cache, owner: Hashable, model_layers: int) -> "PrefixSums":
        """Return the sums that belong to `owner`, adding them behind the model's own layers."""
        while len(cache.layers) < model_layers:  # a lazy cache has not met all its layers yet
            assert cache.layer_class_to_replicate is not None, (
                "a cache with fixed layers has them all"
            )
            cache.layers.append(cache.layer_class_to_replicate())
        for layer in cache.layers[model_layers:]:
            if isinstance(layer, cls) and layer.owner == owner:
                return layer
        sums = cls(owner)
        cache.layers.append(sums)
        return sums

    def past(self) -> Float[Tensor, "batch past dim"] | None:
        """Return the sums up to each earlier token, or None at the start."""
        return self.keys[:, 0] if self.keys is not None and self.get_seq_length() else None

    def extend(self, sums: Float[Tensor, "batch time dim"]) -> None:
        """Append the sums up to each new token."""
        keys = sums[:, None]
        self.update(keys, keys[..., :0])


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
