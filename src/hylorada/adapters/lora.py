"""Fast passes for PEFT's own LoRA and DoRA layers: same parameters, same checkpoints.

PEFT casts the activations (tokens x in) up to the adapter's float32 and makes several elementwise
passes over tokens x out. Here the small factors are scaled and cast down instead, and the matrix
product itself accumulates the update.

DoRA's `y = m / |W + sBA|_row * (W x + s B A drop(x)) + bias`, the norm detached as in its paper, is
LoRA's output under a batch normalisation in evaluation mode: its mean is the bias, its variance the
squared row norm, its weight the magnitude. So in half precision, and on a GPU that waits for
launches, PyTorch's own kernels rescale the tokens, forward and back.
"""

import torch
from jaxtyping import Float
from peft.tuners.lora.layer import LoraLayer, LoraVariant
from peft.tuners.lora.variants import DoraLinearVariant
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.positions import PositionGain
from hylorada.adapters.shared import SharedState
from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.models.anatomy import resident

# A GPU waits for launches on layers up to this size, and has room for one more weight of it.
LARGEST_DENSE_SUM = 4096 * 4096
SMALLEST_NORM = 1e-6

PerOutput = Float[Tensor, " out_dim"]
Down = Float[Tensor, "rank in_dim"]
Up = Float[Tensor, "out_dim rank"]
Wide = Float[Tensor, "rank out_dim"]
Low = Float[Tensor, "tokens rank"]
Outputs = Float[Tensor, "tokens out_dim"]
Result = Float[Tensor, "*batch out_dim"]
Version = tuple[object, ...]


class LowRankUpdate:
    """`result + gain * s * B A drop(x)`, the part that LoRA and DoRA share."""

    def __init__(self, gain: PositionGain | None, state: SharedState | None = None) -> None:
        self.gain, self.state = gain, state

    def supports_lora_conversion(self) -> bool:
        """Return whether PEFT may convert it to plain LoRA: not where landmarks or bias act."""
        return self.state is None or self.state.is_inert()

    def low_rank(self, layer: LoraLayer, adapter: str, x: Tensor, down: Down) -> Low:
        """Return `gain * down drop(x)` in the dtype of `down`."""
        x = layer.lora_dropout[adapter](x.to(down.dtype))
        low = nn.functional.linear(rows(x), down)
        return low if self.gain is None else low * self.gain(x, len(down))


class FastLora(LowRankUpdate, LoraVariant):
    """Plain LoRA, its update accumulated by the matrix product."""

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: object
    ) -> Tensor:
        """Return the layer's output with the update added."""
        down = resident(module.lora_A[active_adapter]).to(result.dtype)
        low = self.low_rank(module, active_adapter, x, down)
        up = resident(module.lora_B[active_adapter])
        return plus_update(result, low, up, module.scaling[active_adapter])

    @staticmethod
    def init(module: LoraLayer, adapter_name: str, **_: object) -> None:
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


def plus_update(result: Result, low: Low, up: Up, scaling: float) -> Result:
    """Return `result + scaling * low up^T`, computed in the dtype of the result.

    A product that accumulates spares a pass over many tokens, and costs a single one more.
    """
    if is_one_token(result):
        update = nn.functional.linear(low, up.to(result.dtype))
        return torch.add(result, update.view(result.shape), alpha=scaling)
    wide = laid_out(up, scaling, result.dtype)
    return torch.addmm(rows(result), low, wide).view(result.shape)


def laid_out(up: Up, scaling: float, dtype: torch.dtype) -> Wide:
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


def is_small_on_a_gpu(base: nn.Module) -> bool:
    """Return whether `W + sBA` may be formed: three launches in place of seven."""
    if type(base) not in (nn.Linear, Conv1D):
        return False
    weight = resident(base)
    return weight.is_cuda and weight.numel() <= LARGEST_DENSE_SUM


def dense_row_square(base: nn.Module, down: Down, wide: Wide) -> PerOutput:
    """Return `|W + wide^T down|^2` per output row in float32, summed in the weight's dtype."""
    weight = resident(base)
    down, wide = down.to(weight.dtype), wide.to(weight.dtype)
    left, right, inputs = (down.t(), wide, 0) if type(base) is Conv1D else (wide.t(), down, 1)
    total = torch.addmm(weight, left, right)
    return torch.linalg.vector_norm(total, dim=inputs, dtype=torch.float32).square_()


def factored_row_square(
    frozen_square: PerOutput, frozen_product: Wide, down: Down, wide: Wide
) -> PerOutput:
    """Return `|W|^2 + <wide, 2 A W^T + A A^T wide>` per column of `wide = s B^T`, never below 0.

    `frozen_product` is `A W^T`. The sums are float32; that product and the factors come in the
    dtypes of the frozen layer and of the activations. A is copied, because some CPUs round `A A^T`
    by the address of A, and one that was mapped from a file begins anywhere.
    """
    down, wide = down.to(torch.float32, copy=True), wide.float()
    inner = torch.addmm(frozen_product.float(), down @ down.t(), wide, beta=2)
    return torch.add(frozen_square, (wide * inner).sum(dim=0)).clamp_(min=0)


def frozen_product(base: nn.Module, down: Down) -> Wide:
    """Return `A W^T`: the rows of A sent through the frozen layer, quantised or not."""
    weight = resident(base)
    if type(base) is nn.Linear:
        return nn.functional.linear(down.to(weight.dtype), weight)
    if type(base) is Conv1D:
        return down.to(weight.dtype) @ weight
    product: Tensor = base(down)
    bias = getattr(base, "bias", None)
    return product if bias is None else product - bias


class FastDora(LowRankUpdate, DoraLinearVariant):
    """DoRA whose dropout acts on the low-rank branch, as in LoRA.

    PEFT also drops the input of the frozen product, which costs that product a second time and has
    the same expectation.
    """

    def __init__(self, gain: PositionGain | None, state: SharedState | None = None) -> None:
        super().__init__(gain, state)
        self.frozen: tuple[Version, Tensor] | None = None
        self.last: tuple[Version, Tensor] | None = None
        # What a pass of one token reads, in its dtype: the factor, the rescaled up and the offset.
        self.decoding: tuple[Tensor, Tensor, Tensor | None] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave out what is remembered: its keys name tensors that a copy does not have."""
        return self.__dict__ | {"frozen": None, "last": None, "decoding": None}

    def supports_lora_conversion(self) -> bool:
        """Return that PEFT may not convert it: the magnitudes would be lost."""
        return False

    def forward(
        self, module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: object
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
                factor = factors(self.last[1], magnitude)
                offset = None if bias is None else ((1 - factor) * bias).to(dtype)
                rescaled_up = (factor[:, None] * (scaling * up)).to(dtype)
                self.decoding = (factor.to(dtype), rescaled_up, offset)
            factor, rescaled_up, offset = self.decoding
            update = nn.functional.linear(low, rescaled_up, offset)  # as many steps as LoRA takes
            return torch.addcmul(update.view(result.shape), result, factor)
        wide = laid_out(up, scaling, dtype)
        square = self.row_square(base, module.fan_in_fan_out, cast_down, wide)
        self.last, self.decoding = ((key, square) if key else None), None
        adapted = torch.addmm(rows(result), low, wide)
        return rescale(adapted, square, magnitude, bias).view(result.shape)

    @torch.no_grad()  # as the paper does
    def row_square(
        self, base: nn.Module, fan_in_fan_out: bool, down: Down, wide: Wide
    ) -> PerOutput:
        """Return `|W + wide^T down|^2` per output row in float32."""
        if is_small_on_a_gpu(base):
            return dense_row_square(base, down, wide)
        square = self.frozen_square(base, fan_in_fan_out)
        return factored_row_square(square, frozen_product(base, down), down, wide)

    def frozen_square(self, base: nn.Module, fan_in_fan_out: bool) -> PerOutput:
        """Return `|W|^2` per output row in float32, computed once for a frozen weight."""
        weight = resident(base)
        # A graph cannot ask whether the weight is still the same.
        key = () if torch.compiler.is_compiling() else version(weight)
        if key and self.frozen is not None and self.frozen[0] == key:
            return self.frozen[1]
        weight = weight if weight.is_floating_point() else dequantize_module_weight(base)
        square = weight.float().square().sum(dim=0 if fan_in_fan_out else 1)
        if key:
            self.frozen = (key, square)
        return square


def rescale(
    adapted: Outputs, square: PerOutput, magnitude: PerOutput, bias: PerOutput | None
) -> Outputs:
    """Return `magnitude / sqrt(square) * (adapted - bias) + bias`.

    In full precision on a CPU the plain formula is faster than the normalisation, and more exact:
    the latter adds up the magnitudes' gradient token by token, where a sum takes them in pairs.
    """
    square = square.to(torch.promote_types(adapted.dtype, square.dtype))
    magnitude = magnitude.to(square.dtype)
    if not adapted.is_cpu or adapted.dtype != square.dtype:
        return normalised(adapted, square, magnitude, bias)
    factor = factors(square, magnitude)
    return adapted * factor if bias is None else torch.lerp(bias.to(factor), adapted, factor)


def factors(square: PerOutput, magnitude: PerOutput) -> PerOutput:
    """Return `magnitude / sqrt(square)`."""
    return magnitude * (square + SMALLEST_NORM**2).rsqrt()


def normalised(
    adapted: Outputs, square: PerOutput, magnitude: PerOutput, bias: PerOutput | None
) -> Outputs:
    """Rescale by a batch normalisation, which reads half precision beside float32 vectors."""
    if bias is not None and bias.requires_grad:  # the mean of a normalisation receives no gradient
        bias = bias.to(adapted.dtype)
        return normalised(adapted - bias, square, magnitude, None) + bias
    mean = torch.zeros_like(square) if bias is None else bias.to(square.dtype)
    offset, eps = None if bias is None else mean, SMALLEST_NORM**2
    return nn.functional.batch_norm(adapted, mean, square, magnitude, offset, eps=eps)


def version(parameter: Tensor | None) -> Version:
    """Return what changes when a tensor is written to, replaced or moved.

    Tensors made in inference mode do not count writes: each time they are others.
    """
    if parameter is None:
        return ()
    writes = object() if parameter.is_inference() else parameter._version
    return (id(parameter), writes, parameter.data_ptr(), parameter.device, parameter.dtype)


def check_rank(rank: int, in_dim: int, out_dim: int, name: str) -> None:
    """Refuse a rank above the smaller side of the layer of this name."""
    smaller = min(in_dim, out_dim)
    if rank > smaller:
        rule = f"r must not exceed the smaller side, {smaller}, of {name}"
        raise SpecError(f"{rule}; got {rank}; lower it")
