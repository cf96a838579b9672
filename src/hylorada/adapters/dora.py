"""A fast forward and backward pass for PEFT's own DoRA layers: same parameters, same checkpoints.

`y = m / |W + sBA|_row * (W x + s B A drop(x)) + bias`, the norm detached, as in DoRA's paper.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lora.variants import DoraLinearVariant
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hylorada.adapters.lora import LowRankUpdate, gated, is_one_token, rows
from hylorada.adapters.position_bias import PositionGain
from hylorada.adapters.row_norms import (
    dense_row_norm,
    factored_row_norm,
    frozen_product,
    is_small_on_a_gpu,
    row_squares,
)

Factors = tuple[Tensor, Tensor]
RowNorm = Callable[[Factors, Factors], Tensor]


class Ready(NamedTuple):
    """What a pass reads of the trained tensors, in the dtype of its activations."""

    down: Float[Tensor, "rank in_dim"]
    rescaled_up: Float[Tensor, "out_dim rank"]
    factor: Float[Tensor, " out_dim"]


class FastDora(LowRankUpdate, DoraLinearVariant):
    """DoRA whose dropout acts on the low-rank branch, as in LoRA.

    PEFT also drops the input of the frozen product, which costs that product a second time and has
    the same expectation.
    """

    def __init__(self, gain: PositionGain | None) -> None:
        super().__init__(gain)
        self.frozen: tuple[tuple[Any, ...], Tensor] | None = None
        self.last: tuple[tuple[Any, ...], Ready] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is remembered: its keys name tensors that a copy does not have."""
        return self.__dict__ | {"frozen": None, "last": None}

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: Any
    ) -> Tensor:
        """Return the layer's output with direction and magnitude adapted."""
        base = module.get_base_layer()
        bias = getattr(base, "bias", None)
        bias = None if bias is None else bias.to(result.dtype)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return self._differentiable(module, active_adapter, base, x, result, bias)
        ready = self.ready(module, active_adapter, result.dtype, as_before=is_one_token(x))
        low = self.low_rank(module, active_adapter, x, ready.down)
        return rescale(without(bias, result), low, ready.rescaled_up, ready.factor, bias)

    def _differentiable(
        self,
        layer: LoraLayer,
        adapter: str,
        base: nn.Module,
        x: Tensor,
        result: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        self.last = None
        x = layer.lora_dropout[adapter](x.to(result.dtype))
        scaling = layer.scaling[adapter]
        output: Tensor = DoraRows.apply(
            result,
            x,
            layer.lora_A[adapter].weight,
            layer.lora_B[adapter].weight,
            layer.lora_magnitude_vector[adapter].weight,
            None if self.gain is None else self.gain(x, layer.r[adapter]),
            bias,
            scaling,
            partial(self.row_norm, base, layer.fan_in_fan_out, scaling),
        )
        return output

    def ready(
        self, layer: LoraLayer, adapter: str, dtype: torch.dtype, *, as_before: bool = False
    ) -> Ready:
        """Return A, `s f B` and `f = m / |W + sBA|`, computed anew or `as_before`.

        Decoding would spend more on norms than on its token, so a pass of one token takes what the
        pass before it took while all versions are the same. A pass of several looks again, because
        some optimisers and averages of weights write without a new version.
        """
        base, scaling = layer.get_base_layer(), layer.scaling[adapter]
        down, up = exact = (layer.lora_A[adapter].weight, layer.lora_B[adapter].weight)
        magnitude = layer.lora_magnitude_vector[adapter].weight
        remembers = not torch.compiler.is_compiling()
        key = (*map(version, (down, up, magnitude, base.weight)), scaling, dtype)
        if remembers and as_before and self.last is not None and self.last[0] == key:
            return self.last[1]
        cast = (down.to(dtype), up.to(dtype))
        with torch.no_grad():  # as the paper does
            norm = self.row_norm(base, layer.fan_in_fan_out, scaling, exact, cast)
        factor = (magnitude / norm).to(dtype)
        ready = Ready(cast[0], cast[1] * (factor * scaling)[:, None], factor)
        self.last = (key, ready) if remembers else None
        return ready

    def row_norm(
        self, base: Any, fan_in_fan_out: bool, scaling: float, exact: Factors, cast: Factors
    ) -> Float[Tensor, " out_dim"]:
        """Return `|W + sBA|` per output row in float32.

        `exact` are A and B as they are trained, `cast` the same in the dtype of the activations.
        """
        if is_small_on_a_gpu(base):
            return dense_row_norm(base, *cast, scaling)
        down, up = exact
        return factored_row_norm(
            self.frozen_square(base, fan_in_fan_out),
            frozen_product(base, cast[0]),
            down.float(),
            up.float(),
            scaling,
        )

    def frozen_square(self, base: Any, fan_in_fan_out: bool) -> Float[Tensor, " out_dim"]:
        """Return `|W|^2` per output row, computed once for a frozen weight."""
        if torch.compiler.is_compiling():  # a graph cannot ask whether the weight is still the same
            return row_squares(base, fan_in_fan_out=fan_in_fan_out)
        key = version(base.weight)
        if self.frozen is None or self.frozen[0] != key:
            self.frozen = (key, row_squares(base, fan_in_fan_out=fan_in_fan_out))
        return self.frozen[1]


def rescale(
    centred: Float[Tensor, "*batch out_dim"],
    low: Float[Tensor, "tokens rank"],
    rescaled_up: Float[Tensor, "out_dim rank"],
    factor: Float[Tensor, " out_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"]:
    """Return `factor * centred + bias + low rescaled_up^T`.

    Where `rescaled_up` is `s * factor * up`, the update is rescaled without a pass over the tokens.
    """
    update = nn.functional.linear(low, rescaled_up, bias)
    return update.view(centred.shape).addcmul_(centred, factor)


def without(bias: Tensor | None, result: Tensor) -> Tensor:
    """Return a layer's output before its bias was added."""
    return result if bias is None else result - bias


class DoraRows(torch.autograd.Function):
    """`f * (result - bias + s B (gain * A x)) + bias` with `f = m / norm`, in one node.

    By hand, because a training step with many small layers waits for launches: autograd would make
    twice as many, and three more tensors of the size of the output.
    """

    @staticmethod
    def forward(
        ctx: Any,
        result: Tensor,
        x: Tensor,
        down: Tensor,
        up: Tensor,
        magnitude: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        scaling: float,
        row_norm: RowNorm,
    ) -> Tensor:
        """Return the adapted rows."""
        ctx.dtypes = (down.dtype, up.dtype, magnitude.dtype)
        ctx.scaling = scaling
        cast_down, cast_up = down.to(result.dtype), up.to(result.dtype)
        inner = nn.functional.linear(rows(x), cast_down)
        norm = row_norm((down, up), (cast_down, cast_up))
        factor = torch.div(magnitude, norm, out=torch.empty_like(norm, dtype=result.dtype))
        scaled = factor * scaling
        rescaled_up, centred = cast_up * scaled[:, None], without(bias, result)
        ctx.save_for_backward(
            x, cast_down, cast_up, rescaled_up, inner, centred, factor, scaled, norm, gain
        )
        return rescale(centred, gated(inner, gain), rescaled_up, factor, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors that came in."""
        x, down, up, rescaled_up, inner, centred, factor, scaled, norm, gain = ctx.saved_tensors
        _, need_x, _, _, _, need_gain, need_bias, *_ = ctx.needs_input_grad
        low, tokens = gated(inner, gain), rows(gradient)
        product = gradient * centred
        # The small factor first: a CPU is slow at a tall result from a transposed gradient.
        for_row = torch.mm(low.t(), tokens).t()
        for_factor = plus_row_products(
            rows(product).sum(dim=0), up, for_row, ctx.scaling, in_one_launch=gradient.is_cuda
        )
        for_bias = (1 - factor) * tokens.sum(dim=0) if need_bias else None
        for_result = torch.mul(gradient, factor, out=product)
        for_low = torch.mm(tokens, rescaled_up)
        down_dtype, up_dtype, magnitude_dtype = ctx.dtypes
        for_up = torch.mul(for_row, scaled[:, None], out=torch.empty_like(up, dtype=up_dtype))
        for_gain = for_low * inner if need_gain else None
        for_low = gated(for_low, gain)
        return (
            for_result,
            torch.mm(for_low, down).view(x.shape) if need_x else None,
            torch.mm(for_low.t(), rows(x)).to(down_dtype),
            for_up,
            (for_factor / norm).to(magnitude_dtype),
            for_gain,
            for_bias,
            None,
            None,
        )


def plus_row_products(
    start: Float[Tensor, " out_dim"],
    first: Float[Tensor, "out_dim rank"],
    second: Float[Tensor, "out_dim rank"],
    scaling: float,
    *,
    in_one_launch: bool,
) -> Float[Tensor, " out_dim"]:
    """Return `start + scaling * <first, second>` per row.

    A batched product is one launch, which a GPU waits for; a CPU is slow at it in bfloat16.
    """
    if in_one_launch:
        start, left, right = start[:, None, None], first[:, None], second[:, :, None]
        return torch.baddbmm(start, left, right, alpha=scaling).flatten()
    return torch.add(start, (first * second).sum(dim=1), alpha=scaling)


def version(parameter: Tensor) -> tuple[Any, ...]:
    """Return what changes when a tensor is written to, replaced or moved."""
    return (id(parameter), parameter._version, parameter.device, parameter.dtype)
