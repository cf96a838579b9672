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
        self, positions: Int[Tensor, "#batch time"], sequences: int, rank: int
    ) -> Float[Tensor, "layers tokens rank"]:
        """Return the factor of every layer at each token of `sequences`, in `rank` equal columns.

        Repeated here, once for all layers: a CPU is slow at a product that repeats a number along
        short rows, and at the sum over them in its gradient.
        """
        bias = torch.tanh(self.table)[read_bucket(self.bucket_of_position, positions)]
        repeated = bias[..., None].expand(sequences, -1, rank).reshape(-1)
        one = self.gates.new_ones(())
        factors = torch.addr(one, torch.sigmoid(self.gates), repeated)  # all layers in one product
        return factors.view(len(self.gates), -1, rank)


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
        self, x: Float[Tensor, "*batch in_dim"], rank: int
    ) -> Float[Tensor, "tokens rank"]:
        """Return the factor of each token of `x`, repeated in `rank` columns.

        `x` holds the sequences that the adapter serves.
        """
        positions = self.context.require(x)
        key = (self.adapter, rank, x.dtype, x.device)
        if key not in self.context.derived:
            self.context.derived[key] = self._of_all_layers(positions, x, rank)
        factor: Tensor = self.context.derived[key][self.layer]
        return factor

    def _of_all_layers(self, positions: Tensor, x: Tensor, rank: int) -> Any:
        """Return the factors of every layer."""
        served = self.context.rows(self.adapter)
        if served is not None and len(positions) > 1:
            positions = positions[served]
        sequences = x.shape[:-1].numel() // positions.shape[-1]
        positions = positions.to(self.bias.bucket_of_position.device)
        by_token = self.bias(positions, sequences, rank).to(x.device, x.dtype)
        # Compiled blocks of all layers are one graph only if the layer indexes a tensor.
        return by_token if torch.compiler.is_compiling() else by_token.unbind()
