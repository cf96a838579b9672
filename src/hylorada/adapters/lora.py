"""Fast forward passes for PEFT's own LoRA and DoRA layers: same parameters, same checkpoints.

PEFT casts the activations (tokens x in) up to the adapter's float32 and makes several elementwise
passes over tokens x out. Here the small factors are cast down instead, the scaling is folded into
the tokens x rank activations, and the matrix product itself accumulates the update.
"""

from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer, LoraVariant
from peft.tuners.lora.variants import DoraLinearVariant
from peft.utils.integrations import dequantize_module_weight
from peft.utils.other import transpose
from torch import Tensor, nn

from hylorada.adapters.position_bias import PositionGain

SMALLEST_SQUARE = 1e-12


class LowRankUpdate:
    """`result + gain * s * B A drop(x)`, the part that LoRA and DoRA share."""

    def __init__(self, gain: PositionGain | None) -> None:
        self.gain = gain

    def supports_lora_conversion(self) -> bool:
        """Return whether plain LoRA can express the update: not where it depends on position."""
        return self.gain is None

    def accumulate(self, layer: LoraLayer, adapter: str, x: Tensor, result: Tensor) -> Tensor:
        """Return `result` plus the update, in the dtype of `result`."""
        down = (layer.lora_A[adapter].weight * layer.scaling[adapter]).to(result.dtype)
        up = layer.lora_B[adapter].weight.to(result.dtype)
        inner = nn.functional.linear(layer.lora_dropout[adapter](x.to(result.dtype)), down)
        if self.gain is not None:
            inner = inner * self.gain(inner)[..., None]
        flat = result.reshape(-1, result.shape[-1])
        return torch.addmm(flat, inner.reshape(-1, inner.shape[-1]), up.t()).view(result.shape)


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


class FastDora(LowRankUpdate, DoraLinearVariant):
    """DoRA as in its paper: `y = m / |W + sBA|_row * (W x + s B A drop(x)) + bias`, norm detached.

    The norm is computed without forming `W + sBA`. Dropout acts on the low-rank branch, as in LoRA;
    PEFT also drops the input of the frozen product, which costs that product a second time and has
    the same expectation.
    """

    def __init__(self, gain: PositionGain | None) -> None:
        super().__init__(gain)
        self.frozen: tuple[tuple[Any, ...], Tensor] | None = None
        self.cached: tuple[tuple[Any, ...], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is remembered: its keys name tensors that a copy does not have."""
        return self.__dict__ | {"frozen": None, "cached": None}

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """Return the layer's output with direction and magnitude adapted."""
        updated = self.accumulate(module, active_adapter, x, result)
        magnitude = module.lora_magnitude_vector[active_adapter].weight
        factor = magnitude / self.row_norm(module, active_adapter)
        bias = getattr(module.get_base_layer(), "bias", None)
        return scale_rows(updated, factor, bias)

    @torch.no_grad()
    def row_norm(self, layer: LoraLayer, adapter: str) -> Float[Tensor, " out_dim"]:
        """Return `|W + sBA|` per output row in float32, detached as the paper does.

        Remembered in eval mode, where decoding would otherwise recompute it for every token.
        """
        down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        base = layer.get_base_layer()
        remember = not layer.training and not torch.compiler.is_compiling()
        key = (version(down), version(up), version(base.weight), layer.scaling[adapter])
        if remember and self.cached is not None and self.cached[0] == key:
            return self.cached[1]
        norm = factored_row_norm(
            self.frozen_square(layer),
            frozen_product(base, down),
            down,
            up,
            layer.scaling[adapter],
        )
        # Never across training steps: some optimisers write without a new version.
        self.cached = (key, norm) if remember else None
        return norm

    def frozen_square(self, layer: LoraLayer) -> Float[Tensor, " out_dim"]:
        """Return `|W|^2` per output row, computed once for a frozen weight."""
        base = layer.get_base_layer()
        if torch.compiler.is_compiling() and self.frozen is not None:
            return self.frozen[1]
        key = version(base.weight)
        if self.frozen is None or self.frozen[0] != key:
            weight = transpose(dequantize_module_weight(base), layer.fan_in_fan_out)
            self.frozen = (key, weight.detach().float().square().sum(dim=1))
        return self.frozen[1]


def factored_row_norm(
    frozen_square: Float[Tensor, " out_dim"],
    frozen_product: Float[Tensor, "rank out_dim"],
    down: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
    scaling: float,
) -> Float[Tensor, " out_dim"]:
    """Return `sqrt(|W|^2 + 2 s <B, W A^T> + s^2 <B (A A^T), B>)` per output row, in float32."""
    down, up = down.float(), up.float()
    # <B, 2 s W A^T + s^2 B (A A^T)>: one matrix product and one pass over B.
    inner = torch.addmm(
        frozen_product.float().t(), up, down @ down.t(), beta=2 * scaling, alpha=scaling**2
    )
    return (frozen_square + (up * inner).sum(dim=1)).clamp(min=SMALLEST_SQUARE).sqrt()


def scale_rows(
    updated: Float[Tensor, "*batch out_dim"],
    factor: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `factor * (updated - bias) + bias`: the rescaling that leaves the bias outside."""
    cast = factor.to(updated.dtype)
    if bias is None:
        return updated * cast
    return torch.addcmul(((1 - factor) * bias).to(updated.dtype), updated, cast)


def frozen_product(
    base: nn.Module, down: Float[Tensor, "rank in_dim"]
) -> Float[Tensor, "rank out_dim"]:
    """Return `A W^T`: the rows of A sent through the frozen layer, quantised or not."""
    weight = base.get_parameter("weight")
    product = base(down.to(weight.dtype if weight.is_floating_point() else down.dtype))
    bias = getattr(base, "bias", None)
    return product if bias is None else product - bias


def version(parameter: Tensor) -> tuple[Any, ...]:
    """Return what changes when a tensor is written to, replaced or moved."""
    return (id(parameter), parameter._version, parameter.device, parameter.dtype)
