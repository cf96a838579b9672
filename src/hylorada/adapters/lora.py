"""Fast forward passes for PEFT's own LoRA and DoRA layers: same parameters, same checkpoints.

PEFT casts the activations (tokens x in) up to the adapter's float32 and makes several elementwise
passes over tokens x out. Here the small factors are cast down instead, the scaling is folded into
A, and the matrix product itself accumulates the update.
"""

from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer, LoraVariant
from peft.tuners.lora.variants import DoraLinearVariant
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.position_bias import PositionGain

SMALLEST_SQUARE = 1e-12


class LowRankUpdate:
    """`result + gain * s * B A drop(x)`, the part that LoRA and DoRA share."""

    def __init__(self, gain: PositionGain | None) -> None:
        self.gain = gain

    def supports_lora_conversion(self) -> bool:
        """Return whether plain LoRA can express the update: not where it depends on position."""
        return self.gain is None

    def accumulate(
        self, layer: LoraLayer, adapter: str, x: Tensor, result: Tensor, scaled: Tensor
    ) -> Tensor:
        """Return `result` plus the update, in the dtype of `result`; `scaled` is `s A` in it."""
        up = layer.lora_B[adapter].weight.to(result.dtype)
        inner = nn.functional.linear(layer.lora_dropout[adapter](x.to(result.dtype)), scaled)
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
        scaled = module.lora_A[active_adapter].weight * module.scaling[active_adapter]
        return self.accumulate(module, active_adapter, x, result, scaled.to(result.dtype))

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
        exact = module.lora_A[active_adapter].weight * module.scaling[active_adapter]
        scaled = exact.to(result.dtype)
        updated = self.accumulate(module, active_adapter, x, result, scaled)
        magnitude = module.lora_magnitude_vector[active_adapter].weight
        factor = magnitude * self.inverse_norm(module, active_adapter, exact, scaled)
        bias = getattr(module.get_base_layer(), "bias", None)
        return RescaleRows.apply(
            updated, factor.to(updated.dtype), None if bias is None else bias.to(updated.dtype)
        )

    @torch.no_grad()
    def inverse_norm(
        self,
        layer: LoraLayer,
        adapter: str,
        exact: Float[Tensor, "rank in_dim"],
        scaled: Float[Tensor, "rank in_dim"],
    ) -> Float[Tensor, " out_dim"]:
        """Return `1 / |W + sBA|` per output row in float32, detached as the paper does.

        Remembered in eval mode, where decoding would otherwise recompute it for every token.
        `exact` and `scaled` are `s A`, in its own dtype and in that of the activations.
        """
        down, up = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
        base = layer.get_base_layer()
        remember = not layer.training and not torch.compiler.is_compiling()
        key = (version(down), version(up), version(base.weight), layer.scaling[adapter])
        if remember and self.cached is not None and self.cached[0] == key:
            return self.cached[1]
        inverse = inverse_row_norm(
            self.frozen_square(layer), frozen_product(base, scaled), exact.float(), up.float()
        )
        # Never across training steps: some optimisers write without a new version.
        self.cached = (key, inverse) if remember else None
        return inverse

    @torch.no_grad()
    def frozen_square(self, layer: LoraLayer) -> Float[Tensor, " out_dim"]:
        """Return `|W|^2` per output row, computed once for a frozen weight."""
        if torch.compiler.is_compiling():  # a graph cannot ask whether the weight is still the same
            return row_squares(layer)
        key = version(layer.get_base_layer().weight)
        if self.frozen is None or self.frozen[0] != key:
            self.frozen = (key, row_squares(layer))
        return self.frozen[1]


def row_squares(layer: LoraLayer) -> Float[Tensor, " out_dim"]:
    """Return `|W|^2` per output row of a layer's frozen weight, in float32."""
    base = layer.get_base_layer()
    plain = base.weight.is_floating_point()
    weight = base.weight if plain else dequantize_module_weight(base)
    return weight.float().square().sum(dim=0 if layer.fan_in_fan_out else 1)


class RescaleRows(torch.autograd.Function):
    """`factor * (updated - bias) + bias`: the rescaling that leaves the bias outside.

    By hand, because a training step with many small layers waits for launches, and autograd would
    make half as many again.
    """

    @staticmethod
    def forward(ctx: Any, updated: Tensor, factor: Tensor, bias: Tensor | None) -> Tensor:
        """Return the rescaled rows."""
        ctx.save_for_backward(updated, factor, bias)
        if bias is None:
            return updated * factor
        return torch.addcmul(torch.addcmul(bias, bias, factor, value=-1), updated, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of the three inputs."""
        updated, factor, bias = ctx.saved_tensors
        tokens = tuple(range(gradient.ndim - 1))
        # The bias is taken off before the sum: two long sums would cancel.
        product = updated if bias is None else updated - bias
        for_factor = (gradient * product).sum(dim=tokens)
        for_bias = (1 - factor) * gradient.sum(dim=tokens) if ctx.needs_input_grad[2] else None
        return gradient * factor, for_factor, for_bias


def inverse_row_norm(
    frozen_square: Float[Tensor, " out_dim"],
    frozen_product: Float[Tensor, "out_dim rank"],
    scaled: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
) -> Float[Tensor, " out_dim"]:
    """Return `1 / sqrt(|W|^2 + 2 <B, W (sA)^T> + <B (sA)(sA)^T, B>)` per output row.

    `frozen_product` is `W (sA)^T`. All is float32 but for that product, which the frozen layer
    computes in its own dtype.
    """
    inner = torch.addmm(frozen_product.float(), up, scaled @ scaled.t(), beta=2)
    square = torch.baddbmm(frozen_square[:, None, None], up[:, None], inner[:, :, None])
    return square.flatten().clamp_(min=SMALLEST_SQUARE).rsqrt_()


def frozen_product(
    base: nn.Module, rows: Float[Tensor, "rank in_dim"]
) -> Float[Tensor, "out_dim rank"]:
    """Return `W rows^T`: the rows sent through the frozen layer, quantised or not."""
    weight = base.get_parameter("weight")
    if type(base) in (nn.Linear, Conv1D):
        matrix = weight.t() if type(base) is Conv1D else weight
        return matrix @ rows.to(weight.dtype).t()
    product = base(rows)
    bias = getattr(base, "bias", None)
    return (product if bias is None else product - bias).t()


def version(parameter: Tensor) -> tuple[Any, ...]:
    """Return what changes when a tensor is written to, replaced or moved."""
    return (id(parameter), parameter._version, parameter.device, parameter.dtype)
