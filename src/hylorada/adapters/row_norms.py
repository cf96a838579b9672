"""DoRA's row norms `|W + sBA|`: one dense sum where launches cost most, factored elsewhere."""

from typing import Any

import torch
from jaxtyping import Float
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

SMALLEST_NORM = 1e-6
# A GPU waits for launches on layers up to this size, and has room for one more weight of it.
LARGEST_DENSE_SUM = 4096 * 4096


def is_small_on_a_gpu(base: Any) -> bool:
    """Return whether `W + sBA` may be formed: two launches in place of seven."""
    if type(base) not in (nn.Linear, Conv1D):
        return False
    weight: Tensor = base.weight
    return weight.is_cuda and weight.numel() <= LARGEST_DENSE_SUM


def dense_row_norm(
    base: nn.Linear | Conv1D,
    down: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
    scaling: float,
) -> Float[Tensor, " out_dim"]:
    """Return `|W + sBA|` per output row in float32, the sum formed in the weight's dtype."""
    weight: Tensor = base.weight
    down, up = down.to(weight.dtype), up.to(weight.dtype)
    if type(base) is Conv1D:
        total, inputs = torch.addmm(weight, down.t(), up.t(), alpha=scaling), 0
    else:
        total, inputs = torch.addmm(weight, up, down, alpha=scaling), 1
    norm = torch.linalg.vector_norm(total, dim=inputs, dtype=torch.float32)
    return norm.clamp_(min=SMALLEST_NORM)


def factored_row_norm(
    frozen_square: Float[Tensor, " out_dim"],
    frozen_product: Float[Tensor, "out_dim rank"],
    down: Float[Tensor, "rank in_dim"],
    up: Float[Tensor, "out_dim rank"],
    scaling: float,
) -> Float[Tensor, " out_dim"]:
    """Return `sqrt(|W|^2 + s <B, 2 W A^T + s B A A^T>)` per output row.

    `frozen_product` is `W A^T`. All is float32 but for that product, which the frozen layer
    computes in its own dtype.
    """
    inner = torch.addmm(frozen_product.float(), up, down @ down.t(), beta=2, alpha=scaling)
    square = torch.add(frozen_square, torch.linalg.vecdot(up, inner), alpha=scaling)
    return square.clamp_(min=SMALLEST_NORM**2).sqrt_()


def frozen_product(base: Any, down: Float[Tensor, "rank in_dim"]) -> Float[Tensor, "out_dim rank"]:
    """Return `W A^T`: the rows of A sent through the frozen layer, quantised or not."""
    weight: Tensor = base.weight
    if type(base) is nn.Linear:
        return weight @ down.to(weight.dtype).t()
    if type(base) is Conv1D:
        return (down.to(weight.dtype) @ weight).t()  # a CPU is slow where both are transposed
    product: Tensor = base(down)
    bias = getattr(base, "bias", None)
    return (product if bias is None else product - bias).t()


def row_squares(base: Any, *, fan_in_fan_out: bool) -> Float[Tensor, " out_dim"]:
    """Return `|W|^2` per output row of a frozen weight, in float32."""
    plain = base.weight.is_floating_point()
    weight = base.weight if plain else dequantize_module_weight(base)
    return weight.float().square().sum(dim=0 if fan_in_fan_out else 1)
