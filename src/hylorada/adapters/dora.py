"""A fast pass for PEFT's own DoRA layers: same parameters, same checkpoints.

`y = m / |W + sBA|_row * (W x + s B A drop(x)) + bias`, the norm detached, as in DoRA's paper. That
is LoRA's output under a batch normalisation in evaluation mode: its mean is the bias, its variance
the squared row norm, its weight the magnitude. So in half precision, and on a GPU that waits for
launches, PyTorch's own kernels rescale the tokens, forward and back.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import Tensor, nn

from hylorada.adapters.lora import LowRankUpdate, is_one_token, laid_out, rows
from hylorada.adapters.offloading import resident
from hylorada.adapters.position_bias import PositionGain
from hylorada.adapters.row_norms import (
    dense_row_square,
    factored_row_square,
    frozen_product,
    is_small_on_a_gpu,
    row_squares,
)
from hylorada.adapters.shared import SharedState
from hylorada.errors import UnsupportedModelError

SMALLEST_NORM = 1e-6


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

    def __init__(self, gain: PositionGain | None, state: SharedState | None = None) -> None:
        super().__init__(gain, state)
        self.frozen: tuple[tuple[Any, ...], Tensor] | None = None
        self.last: tuple[tuple[Any, ...], Tensor] | None = None
        self.decoding: Decoding | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is remembered: its keys name tensors that a copy does not have."""
        return self.__dict__ | {"frozen": None, "last": None, "decoding": None}

    def supports_lora_conversion(self) -> bool:
        """Return that PEFT may not convert it: the magnitudes would be lost."""
        return False

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
        if base.weight.is_meta:
            raise UnsupportedModelError(
                "DoRA reads the weights that it adapts, and some are offloaded; keep these layers "
                "on a device, or train with use_dora=False"
            )
        down, up = (resident(f[active_adapter]) for f in (module.lora_A, module.lora_B))
        magnitude = resident(module.lora_magnitude_vector[active_adapter])
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
    """Return `magnitude / sqrt(square) * (adapted - bias) + bias`.

    In full precision on a CPU the plain formula is faster than the normalisation, and more exact:
    the latter adds up the magnitudes' gradient token by token, where a sum takes them in pairs.
    """
    square = square.to(torch.promote_types(adapted.dtype, square.dtype))
    plain = adapted.is_cpu and adapted.dtype == square.dtype
    return (multiplied if plain else normalised)(adapted, square, magnitude.to(square.dtype), bias)


def multiplied(
    adapted: Float[Tensor, "tokens out_dim"],
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "tokens out_dim"]:
    """Return it from the factor of each output."""
    factor = factors(square, magnitude)
    return adapted * factor if bias is None else torch.lerp(bias.to(factor), adapted, factor)


def factors(
    square: Float[Tensor, " out_dim"], magnitude: Float[Tensor, " out_dim"]
) -> Float[Tensor, " out_dim"]:
    """Return `magnitude / sqrt(square)`."""
    return magnitude * (square + SMALLEST_NORM**2).rsqrt()


def normalised(
    adapted: Float[Tensor, "tokens out_dim"],
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "tokens out_dim"]:
    """Return it from a batch normalisation, which reads half precision beside float32 vectors."""
    if bias is not None and bias.requires_grad:  # the mean of a normalisation receives no gradient
        bias = bias.to(adapted.dtype)
        return normalised(adapted - bias, square, magnitude, None) + bias
    mean = torch.zeros_like(square) if bias is None else bias.to(square.dtype)
    offset, eps = None if bias is None else mean, SMALLEST_NORM**2
    return nn.functional.batch_norm(adapted, mean, square, magnitude, offset, eps=eps)


def for_decoding(
    square: Float[Tensor, " out_dim"],
    magnitude: Float[Tensor, " out_dim"],
    up: Float[Tensor, "out_dim rank"],
    bias: Float[Tensor, " out_dim"] | None,
    dtype: torch.dtype,
) -> Decoding:
    """Return `f = magnitude / sqrt(square)`, `f up` and `(1 - f) bias`."""
    factor = factors(square, magnitude)
    offset = None if bias is None else ((1 - factor) * bias).to(dtype)
    return Decoding(factor.to(dtype), (factor[:, None] * up).to(dtype), offset)


def decoded(
    result: Float[Tensor, "*batch out_dim"], low: Float[Tensor, "tokens rank"], ready: Decoding
) -> Float[Tensor, "*batch out_dim"]:
    """Return `factor * result + rescaled_up low + offset`: as many steps as LoRA takes."""
    update = nn.functional.linear(low, ready.rescaled_up, ready.offset)
    return torch.addcmul(update.view(result.shape), result, ready.factor)


def version(parameter: Tensor | None) -> tuple[Any, ...]:
    """Return what changes when a tensor is written to, replaced or moved.

    Tensors made in inference mode do not count writes: each time they are others.
    """
    if parameter is None:
        return ()
    writes = object() if parameter.is_inference() else parameter._version
    return (id(parameter), writes, parameter.data_ptr(), parameter.device, parameter.dtype)
