"""A fast forward pass for PEFT's own LoRA layers: same parameters, same checkpoints.

PEFT casts the activations (tokens x in) up to the adapter's float32 and makes several elementwise
passes over tokens x out. Here the small factors are cast down instead, and the matrix product
itself scales the update and accumulates it.
"""

from typing import Any

import torch
from peft.tuners.lora.layer import LoraLayer, LoraVariant
from torch import Tensor, nn

from hylorada.adapters.position_bias import PositionGain


class LowRankUpdate:
    """`result + gain * s * B A drop(x)`, the part that LoRA and DoRA share."""

    def __init__(self, gain: PositionGain | None) -> None:
        self.gain = gain

    def supports_lora_conversion(self) -> bool:
        """Return whether plain LoRA can express the update: not where it depends on position."""
        return self.gain is None

    def accumulate(self, layer: LoraLayer, adapter: str, x: Tensor, result: Tensor) -> Tensor:
        """Return `result` plus the update, in the dtype of `result`."""
        down = layer.lora_A[adapter].weight.to(result.dtype)
        up = layer.lora_B[adapter].weight.to(result.dtype)
        inner = nn.functional.linear(layer.lora_dropout[adapter](x.to(result.dtype)), down)
        if self.gain is not None:
            inner = inner * self.gain(inner)[..., None]
        rows, low = result.reshape(-1, result.shape[-1]), inner.reshape(-1, inner.shape[-1])
        return torch.addmm(rows, low, up.t(), alpha=layer.scaling[adapter]).view(result.shape)


class FastLora(LowRankUpdate, LoraVariant):
    """Plain LoRA, its update accumulated by the matrix product."""

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """Return the layer's output with the update added."""
        return self.accumulate(module, active_adapter, x, result)

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
