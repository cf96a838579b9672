"""A fast forward pass for PEFT's own LoRA layers: same parameters, same checkpoints.

PEFT casts the activations (tokens x in) up to the adapter's float32 and makes several elementwise
passes over tokens x out. Here the small factors are scaled and cast down instead, and the matrix
product itself accumulates the update.
"""

from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer, LoraVariant
from torch import Tensor, nn

from hylorada.adapters.offloading import resident
from hylorada.adapters.position_bias import PositionGain
from hylorada.adapters.shared import SharedState


class LowRankUpdate:
    """`result + gain * s * B A drop(x)`, the part that LoRA and DoRA share."""

    def __init__(self, gain: PositionGain | None, state: SharedState | None = None) -> None:
        self.gain = gain
        self.state = state

    def supports_lora_conversion(self) -> bool:
        """Return whether PEFT may convert it to plain LoRA: not where landmarks or bias act."""
        return self.state is None or self.state.is_inert()

    def low_rank(
        self, layer: LoraLayer, adapter: str, x: Tensor, down: Float[Tensor, "rank in_dim"]
    ) -> Float[Tensor, "tokens rank"]:
        """Return `gain * down drop(x)` in the dtype of `down`."""
        x = layer.lora_dropout[adapter](x.to(down.dtype))
        gain = None if self.gain is None else self.gain(x, len(down))
        return gated(nn.functional.linear(rows(x), down), gain)


class FastLora(LowRankUpdate, LoraVariant):
    """Plain LoRA, its update accumulated by the matrix product."""

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """Return the layer's output with the update added."""
        down = resident(module.lora_A[active_adapter]).to(result.dtype)
        low = self.low_rank(module, active_adapter, x, down)
        up = resident(module.lora_B[active_adapter])
        return plus_update(result, low, up, module.scaling[active_adapter])

    @staticmethod
    def init(module: LoraLayer, adapter_name: str, **_: Any) -> None:
        """Do nothing: there is no tensor beside the factors."""

    @staticmethod
    def merge_safe(module: LoraLayer, active_adapter: str, orig_weight: Tensor) -> Tensor:
        """Return the weight with the update added."""
        return orig_weight + module.get_delta_weight(active_adapter).to(orig_weight.dtype)

    @staticmethod
    def merge_unsafe(module: LoraLayer, active_adapter: str, orig_weight: Tensor) -> None:
        """Add the update to the weight in place."""
        orig_weight.data += module.get_delta_weight(active_adapter).to(orig_weight.dtype)

    @staticmethod
    def unmerge(module: LoraLayer, active_adapter: str, orig_weight: Tensor) -> Tensor:
        """Return the weight with the update removed."""
        return orig_weight.data - module.get_delta_weight(active_adapter).to(orig_weight.dtype)


def plus_update(
    result: Float[Tensor, "*batch out_dim"],
    low: Float[Tensor, "tokens rank"],
    up: Float[Tensor, "out_dim rank"],
    scaling: float,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `result + scaling * low up^T`, computed in the dtype of the result.

    A product that accumulates spares a pass over many tokens, and costs a single one more.
    """
    if is_one_token(result):
        update = nn.functional.linear(low, up.to(result.dtype))
        return torch.add(result, update.view(result.shape), alpha=scaling)
    wide = laid_out(up, scaling, result.dtype)
    return torch.addmm(rows(result), low, wide).view(result.shape)


def laid_out(
    up: Float[Tensor, "out_dim rank"], scaling: float, dtype: torch.dtype
) -> Float[Tensor, "rank out_dim"]:
    """Return `scaling * up^T` in `dtype`, row by row in memory.

    Scaled here and laid out anew because a CPU is slow at a product that scales, and at the tall
    gradient of a transposed view.
    """
    return (scaling * up.t()).to(dtype, copy=True, memory_format=torch.contiguous_format)


def is_one_token(tensor: Float[Tensor, "*batch last"]) -> bool:
    """Return whether each sequence of a batch has one token, as while decoding with a cache."""
    return tensor.shape[-2:-1] == (1,)


def rows(tensor: Float[Tensor, "*batch last"]) -> Float[Tensor, "tokens last"]:
    """Return the tensor as a matrix, one row for each token."""
    return tensor.reshape(-1, tensor.shape[-1])


def gated(
    inner: Float[Tensor, "tokens rank"], gain: Float[Tensor, "tokens rank"] | None
) -> Float[Tensor, "tokens rank"]:
    """Return each token's low-rank activation times its gain."""
    return inner if gain is None else inner * gain
