"""Position bias: one shared table and one gate per adapted layer scale the LoRA update.

`delta_p <- delta_p * (1 + sigmoid(g_l) * tanh(b[bucket(p)]))`
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hylorada.adapters.buckets import bucket_table, read_bucket
from hylorada.adapters.positions import PositionContext


class PositionBias(nn.Module):
    """The table `b` over logarithmic position buckets and the gates `g`, all zero at the start."""

    bucket_of_position: Tensor

    def __init__(self, layers: int, buckets: int = 64, max_positions: int = 1024) -> None:
        super().__init__()
        table = bucket_table("log", buckets, max_positions)
        self.register_buffer("bucket_of_position", table, persistent=False)
        self.table = nn.Parameter(torch.zeros(int(table[-1]) + 1))
        self.gates = nn.Parameter(torch.zeros(layers))

    def forward(
        self, positions: Int[Tensor, "#batch time"]
    ) -> Float[Tensor, " layers #batch time"]:
        """Return the factor by which each layer scales its update at each position."""
        return self.factors(self.bounded(positions))

    def bounded(self, positions: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return `tanh(b[bucket(p)])`."""
        return torch.tanh(self.table)[read_bucket(self.bucket_of_position, positions)]

    def factors(self, bias: Float[Tensor, "*shape"]) -> Float[Tensor, " layers *shape"]:
        """Return `1 + sigmoid(g_l) * bias` of every layer, as one outer product."""
        one = self.gates.new_ones(())
        return torch.addr(one, torch.sigmoid(self.gates), bias.flatten()).view(-1, *bias.shape)


class PositionGain:
    """One layer's view of an adapter's position bias: the factors of the tokens in flight.

    A plain object, so that the bias is registered once, on the tuner, and not in every layer. The
    first layer of a pass computes the factors of all layers.
    """

    def __init__(
        self, bias: PositionBias, layer: int, adapter: str, context: PositionContext
    ) -> None:
        self.bias = bias
        self.layer = layer
        self.adapter = adapter
        self.context = context

    def __call__(
        self, x: Float[Tensor, "*batch time in_dim"], rank: int
    ) -> Float[Tensor, "tokens rank"]:
        """Return the factor of each token of `x`, repeated in `rank` columns.

        `x` holds the sequences that the adapter serves.
        """
        positions = self.context.require(x.shape[-2])
        key = (self.adapter, rank, x.dtype, x.device)
        if key not in self.context.derived:
            self.context.derived[key] = self._of_all_layers(positions, x, rank)
        factor: Tensor = self.context.derived[key][self.layer]
        return factor

    def _of_all_layers(self, positions: Tensor, x: Tensor, rank: int) -> Any:
        """Return the factors of every layer.

        Repeated here, once for all of them: a CPU is slow at a product that repeats a number along
        short rows, and at the sum over them in its gradient.
        """
        served = self.context.rows(self.adapter)
        if served is not None and len(positions) > 1:
            positions = positions[served]
        bias = self.bias.bounded(positions.to(x.device))[..., None]
        repeated = bias.expand(x.shape[:-2].numel(), -1, rank)
        by_token = self.bias.factors(repeated).to(x.dtype).flatten(1, 2)
        # Compiled blocks of all layers are one graph only if the layer indexes a tensor.
        return by_token if torch.compiler.is_compiling() else by_token.unbind()
