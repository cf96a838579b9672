"""Position bias: one shared table and one gate per adapted layer scale the LoRA update.

`delta_p <- delta_p * (1 + sigmoid(g_l) * tanh(b[bucket(p)]))`
"""

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
        bias = torch.tanh(self.table)[read_bucket(self.bucket_of_position, positions)]
        return 1.0 + torch.sigmoid(self.gates)[:, None, None] * bias


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
        self, activations: Float[Tensor, "batch time rank"]
    ) -> Float[Tensor, "#batch time"]:
        """Return the factor of each token of the sequences that the adapter serves."""
        positions = self.context.require(activations.shape[-2])
        key = (self.adapter, activations.dtype, activations.device)
        if key not in self.context.derived:
            factors = self.bias(positions.to(activations.device)).to(activations.dtype)
            # Compiled blocks of all layers are one graph only if the layer indexes a tensor.
            whole = torch.compiler.is_compiling()
            self.context.derived[key] = factors if whole else factors.unbind()
        factor: Tensor = self.context.derived[key][self.layer]
        rows = self.context.rows(self.adapter)
        return factor if rows is None or len(factor) == 1 else factor[rows]
