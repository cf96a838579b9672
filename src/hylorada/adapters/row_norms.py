"""DoRA's row norms `|W + sBA|`: one dense sum where launches cost most, factored elsewhere."""

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

SMALLEST_NORM = 1e-6
# A GPU waits for launches on layers up to this size, and has room for one more weight of it.
LARGEST_DENSE_SUM = 4096 * 4096


def is_small_on_a_gpu(base: nn.Module) -> bool:
    """Return whether `W + sBA` may be formed: two launches in place of seven."""
    if type(base) not in (nn.Linear, Conv1D):
        return False
    weight = base.get_parameter("weight")
    return weight.is_cuda and weight.numel() <= LARGEST_DENSE_SUM


def dense_row_norm(
    base: nn.Module,
    scaled_down: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
) -> Float[Tensor, " out_dim"]:
    """Return `|W + B (sA)|` per output row in float32, the sum formed in the weight's dtype."""
    weight = base.get_parameter("weight")
    scaled_down, up = scaled_down.to(weight.dtype), up.to(weight.dtype)
    if type(base) is Conv1D:
        total, inputs = torch.addmm(weight, scaled_down.t(), up.t()), 0
    else:
        total, inputs = torch.addmm(weight, up, scaled_down), 1
    norm = torch.linalg.vector_norm(total, dim=inputs, dtype=torch.float32)
    return norm.clamp_(min=SMALLEST_NORM)


def factored_row_norm(
    frozen_square: Float[Tensor, " out_dim"],
    frozen_product: Float[Tensor, "out_dim rank"],
    scaled_down: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
) -> Float[Tensor, " out_dim"]:
    """Return `sqrt(|W|^2 + 2 <B, W (sA)^T> + <B (sA)(sA)^T, B>)` per output row.

    `frozen_product` is `W (sA)^T`. All is float32 but for that product, which the frozen layer
    computes in its own dtype.
    """
    inner = torch.addmm(frozen_product.float(), up, scaled_down @ scaled_down.t(), beta=2)
    square = torch.linalg.vecdot(up, inner).add_(frozen_square)
    return square.clamp_(min=SMALLEST_NORM**2).sqrt_()


def frozen_product(
    base: nn.Module, rows: Float[Tensor, "rank in_dim"]
) -> Float[Tensor, "out_dim rank"]:
    """Return `W rows^T`: the rows sent through the frozen layer, quantised or not."""
    weight = base.get_parameter("weight")
    if type(base) is nn.Linear:
        return weight @ rows.to(weight.dtype).t()
    if type(base) is Conv1D:
        return (rows.to(weight.dtype) @ weight).t()  # a CPU is slow where both are transposed
    product = base(rows)
    bias = getattr(base, "bias", None)
    return (product if bias is None else product - bias).t()


def row_squares(layer: LoraLayer) -> Float[Tensor, " out_dim"]:
    """Return `|W|^2` per output row of a layer's frozen weight, in float32."""
    base = layer.get_base_layer()
    plain = base.weight.is_floating_point()
    weight = base.weight if plain else dequantize_module_weight(base)
    return weight.float().square().sum(dim=0 if layer.fan_in_fan_out else 1)
