"""A fast pass for PEFT's own DoRA layers: same parameters, same checkpoints.

`y = m / |W + sBA|_row * (W x + s B A drop(x)) + bias`, the norm detached, as in DoRA's paper. That
is LoRA's output under a batch normalisation in evaluation mode: its mean is the bias, its variance
the squared row norm, its weight the magnitude. So PyTorch's own kernels rescale the tokens, forward
and back.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import Tensor, nn

from hylorada.adapters.lora import LowRankUpdate, is_one_token, laid_out, rows
from hylorada.adapters.position_bias import PositionGain
from hylorada.adapters.row_norms import (
    dense_row_square,
    factored_row_square,
    frozen_product,
    is_small_on_a_gpu,
    row_squares,
)

SMALLEST_NORM = 1e-6
FEWEST_ROWS, MOST_ROWS = 16, 64


class Decoding(NamedTuple):
    """What a pass of one token reads of the trained tensors, in the dtype of its activations."""

    factor: Float[Tensor, " out_dim"]
    rescaled_up: Float[Tensor, "out_dim rank"]
    offset: Float[Tensor, " out_dim"] | None


class FastDora(LowRankUpdate, DoraLinearVariant):
    """DoRA whose dropout acts on the low-rank branch, as in LoRA.

    PEFT also drops the input of the frozen product, which costs that product a second time and has
    the same expectation.
    """

    def __init__(self, gain: PositionGain | None) -> None:
        super().__init__(gain)
        self.frozen: tuple[tuple[Any, ...], Tensor] | None = None
        self.last: tuple[tuple[Any, ...], Tensor] | None = None
        self.decoding: Decoding | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is remembered: its keys name tensors that a copy does not have."""
        return self.__dict__ | {"frozen": None, "last": None, "decoding": None}

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """Return the layer's output with direction and magnitude adapted.

        Decoding would spend more on norms than on its token, so a pass of one token takes those of
        the pass before it while all versions are the same. A pass of several looks again, and none
        with gradients is remembered, because some optimisers and averages of weights write without
        a new version.
        """
        base, dtype, scaling = module.get_base_layer(), result.dtype, module.scaling[active_adapter]
        down, up = module.lora_A[active_adapter].weight, module.lora_B[active_adapter].weight
        magnitude = module.lora_magnitude_vector[active_adapter].weight
        bias = getattr(base, "bias", None)
        cast_down = down.to(dtype)
        low = self.low_rank(module, active_adapter, x, cast_down)
        forgets = torch.is_grad_enabled() or torch.compiler.is_compiling()
        read = (down, up, magnitude, base.weight, bias)
        key = () if forgets else (*map(version, read), scaling, dtype)
        if key and is_one_token(x) and self.last is not None and self.last[0] == key:
            if self.decoding is None:
                self.decoding = for_decoding(self.last[1], magnitude, scaling * up, bias, dtype)
            return decoded(result, low, self.decoding)
        wide = laid_out(up, scaling, dtype)
        square = self.row_square(base, module.fan_in_fan_out, cast_down, wide)
        self.last, self.decoding = ((key, square) if key else None), None
        adapted = torch.addmm(rows(result), low, wide)
        return rescale(adapted, square, magnitude, bias).view(result.shape)

    @torch.no_grad()  # as the paper does
    def row_square(
        self,
        base: Any,
        fan_in_fan_out: bool,
        down: Float[Tensor, "rank in_dim"],
        wide: Float[Tensor, "rank out_dim"],
    ) -> Float[Tensor, " out_dim"]:
        """Return `|W + wide^T down|^2` per output row in float32."""
        if is_small_on_a_gpu(base):
            return dense_row_square(base, down, wide)
        square = self.frozen_square(base, fan_in_fan_out)
        return factored_row_square(square, frozen_product(base, down), down, wide)

    def frozen_square(self, base: Any, fan_in_fan_out: bool) -> Float[Tensor, " out_dim"]:
        """Return `|W|^2` per output row, computed once for a frozen weight."""
        if torch.compiler.is_compiling():  # a graph cannot ask whether the weight is still the same
            return row_squares(base, fan_in_fan_out=fan_in_fan_out)
        key = version(base.weight)
        if self.frozen is None or self.frozen[0] != key:
            self.frozen = (key, row_squares(base, fan_in_fan_out=fan_in_fan_out))
        return self.frozen[1]


def rescale(
    adapted: Float[Tensor, "tokens out_dim"],
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "tokens out_dim"]:
    """Return `magnitude / sqrt(square) * (adapted - bias) + bias`."""
    if bias is not None and bias.requires_grad:  # the mean of a normalisation receives no gradient
        bias = bias.to(adapted.dtype)
        return rescale(adapted - bias, square, magnitude, None) + bias
    square = square.to(torch.promote_types(adapted.dtype, square.dtype))
    folds = tokens_in_a_row(adapted)
    if folds > 1:
        return rescale_side_by_side(adapted, square, magnitude, bias, folds)
    mean = torch.zeros_like(square) if bias is None else bias.to(square.dtype)
    offset, eps = None if bias is None else mean, SMALLEST_NORM**2
    weight = magnitude.to(square.dtype)
    return nn.functional.batch_norm(adapted, mean, square, weight, offset, eps=eps)


def rescale_side_by_side(
    adapted: Float[Tensor, "tokens out_dim"],
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
    folds: int,
) -> Float[Tensor, "tokens out_dim"]:
    """Return the same from `folds` tokens to a row, whose vectors are as often side by side.

    Each token in a row costs the vectors of the normalisation once more. So its weight takes in the
    norm, and mean and variance are constants that all layers share.
    """
    if rest := len(adapted) % folds:
        parts = adapted.split([len(adapted) - rest, rest])
        return torch.cat([rescale(part, square, magnitude, bias) for part in parts])
    factor = (magnitude * (square + SMALLEST_NORM**2).rsqrt()).repeat(folds)
    mean, variance = zeros_and_ones(len(factor), factor.dtype)
    if bias is not None:
        mean = bias.to(factor.dtype).repeat(folds)
    offset, tokens = None if bias is None else mean, adapted.view(-1, len(factor))
    scaled = nn.functional.batch_norm(tokens, mean, variance, factor, offset, eps=0.0)
    return scaled.view(adapted.shape)


@lru_cache(maxsize=8)
def zeros_and_ones(
    size: int, dtype: torch.dtype
) -> tuple[Float[Tensor, " size"], Float[Tensor, " size"]]:
    """Return both vectors: of the few last sizes the same ones to all who ask."""
    return torch.zeros(size, dtype=dtype, device="cpu"), torch.ones(size, dtype=dtype, device="cpu")


def tokens_in_a_row(adapted: Float[Tensor, "tokens out_dim"]) -> int:
    """Return how many tokens to put side by side before a normalisation with gradients.

    A CPU adds up the rows one after the other and loses digits with each: over a thousand rows,
    three times as many as a sum in pairs. A tensor of another class may only stand for numbers, and
    must not be remembered for those that have them.
    """
    if not adapted.is_cpu or type(adapted) is not Tensor or torch.compiler.is_compiling():
        return 1
    if not torch.is_grad_enabled():
        return 1
    return fold(len(adapted), FEWEST_ROWS, MOST_ROWS)


@lru_cache
def fold(tokens: int, fewest: int, most: int) -> int:
    """Return how many tokens in a row leave at `most` so many rows, without a rest if possible.

    A rest costs a copy of all tokens; to have none is not worth less than the `fewest` rows.
    """
    folds = max(1, math.ceil(tokens / most))
    return next((n for n in range(folds, tokens // fewest + 1) if tokens % n == 0), folds)


def for_decoding(
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    up: Float[Tensor, "out_dim rank"],
    bias: Float[Tensor, " out_dim"] | None,
    dtype: torch.dtype,
) -> Decoding:
    """Return `f = magnitude / sqrt(square)`, `f up` and `(1 - f) bias`."""
    factor = magnitude * (square + SMALLEST_NORM**2).rsqrt()
    offset = None if bias is None else ((1 - factor) * bias).to(dtype)
    return Decoding(factor.to(dtype), (factor[:, None] * up).to(dtype), offset)


def decoded(
    result: Float[Tensor, "*batch out_dim"], low: Float[Tensor, "tokens rank"], ready: Decoding
) -> Float[Tensor, "*batch out_dim"]:
    """Return `factor * result + rescaled_up low + offset`: as many steps as LoRA takes."""
    update = nn.functional.linear(low, ready.rescaled_up, ready.offset)
    return torch.addcmul(update.view(result.shape), result, ready.factor)


def version(parameter: Tensor | None) -> tuple[Any, ...]:
    """Return what changes when a tensor is written to, replaced or moved."""
    if parameter is None:
        return ()
    return (id(parameter), parameter._version, parameter.device, parameter.dtype)
