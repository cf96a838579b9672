"""DoRA's squared row norms `|W + sBA|^2`: a dense sum where launches cost most, else factored."""

from typing import Any

import torch
from jaxtyping import Float
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

# A GPU waits for launches on layers up to this size, and has room for one more weight of it.
LARGEST_DENSE_SUM = 4096 * 4096


def is_small_on_a_gpu(base: Any) -> bool:
    """Return whether `W + sBA` may be formed: three launches in place of seven."""
    if type(base) not in (nn.Linear, Conv1D):
        return False
    weight: Tensor = base.weight
    return weight.is_cuda and weight.numel() <= LARGEST_DENSE_SUM


def dense_row_square(
    base: nn.Linear | Conv1D,
    down: Float[Tensor, "rank in_dim"],
    wide: Float[Tensor, "rank out_dim"],
) -> Float[Tensor, " out_dim"]:
    """Return `|W + wide^T down|^2` per output row in float32, summed in the weight's dtype."""
    weight: Tensor = base.weight
    down, wide = down.to(weight.dtype), wide.to(weight.dtype)
    if type(base) is Conv1D:
        total, inputs = torch.addmm(weight, down.t(), wide), 0
    else:
        total, inputs = torch.addmm(weight, wide.t(), down), 1
    return torch.linalg.vector_norm(total, dim=inputs, dtype=torch.float32).square_()


def factored_row_square(
    frozen_square: Float[Tensor, " out_dim"],
    frozen_product: Float[Tensor, "rank out_dim"],
    down: Float[Tensor, "rank in_dim"],
    wide: Float[Tensor, "rank out_dim"],
) -> Float[Tensor, " out_dim"]:
    """Return `|W|^2 + <wide, 2 A W^T + A A^T wide>` per column of `wide = s B^T`, never below 0.

    `frozen_product` is `A W^T`. The sums are float32; that product and the factors come in the
    dtypes of the frozen layer and of the activations. A is copied, because some CPUs round `A A^T`
    by the address of A, and one that was mapped from a file begins anywhere.
    """
    down, wide = down.to(torch.float32, copy=True), wide.float()
    inner = torch.addmm(frozen_product.float(), down @ down.t(), wide, beta=2)
    return torch.add(frozen_square, (wide * inner).sum(dim=0)).clamp_(min=0)


def frozen_product(base: Any, down: Float[Tensor, "rank in_dim"]) -> Float[Tensor, "rank out_dim"]:
    """Return `A W^T`: the rows of A sent through the frozen layer, quantised or not."""
    weight: Tensor = base.weight
    if type(base) is nn.Linear:
        return nn.functional.linear(down.to(weight.dtype), weight)
    if type(base) is Conv1D:
        return down.to(weight.dtype) @ weight
    product: Tensor = base(down)
    bias = getattr(base, "bias", None)
    return product if bias is None else product - bias


def row_squares(base: Any, *, fan_in_fan_out: bool) -> Float[Tensor, " out_dim"]:
    """Return `|W|^2` per output row of a frozen weight, in float32."""
    plain = base.weight.is_floating_point()
    weight = base.weight if plain else dequantize_module_weight(base)
    return weight.float().square().sum(dim=0 if fan_in_fan_out else 1)
