"""PEFT's LoRA and DoRA layers, alone: plain, on the fast path, and in float64."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.lora import FastDora, FastLora
from tests.families import seeded
from tests.reference import lora as reference

KINDS: dict[str, Callable[[int, int], Any]] = {
    "linear": lambda inside, outside: nn.Linear(inside, outside),
    "linear_without_bias": lambda inside, outside: nn.Linear(inside, outside, bias=False),
    "conv1d": lambda inside, outside: Conv1D(outside, inside),
}


def lora_layer(
    kind: str, size: tuple[int, int, int], dora: bool, dtype: torch.dtype, dropout: float = 0.0
) -> LoraLinear:
    """Return one of PEFT's layers with noise in every tensor that LoRA trains."""
    inside, outside, rank = size
    config = LoraConfig(use_dora=dora, use_rslora=True, fan_in_fan_out=kind == "conv1d")
    config.lora_dropout = dropout
    with seeded(0):
        base = KINDS[kind](inside, outside).to(dtype).requires_grad_(False)
        if base.bias is not None:
            nn.init.normal_(base.bias)
        nn.init.normal_(base.weight, std=inside**-0.5)
        layer = LoraLinear(
            base, "default", config, r=rank, lora_alpha=16, is_target_conv_1d_layer=kind == "conv1d"
        )
        nn.init.normal_(layer.lora_A["default"].weight, std=inside**-0.5)
        nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    for factors in (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector):
        factors.float().requires_grad_(True)
    return layer


def fast(layer: LoraLinear, dora: bool) -> LoraLinear:
    """Return a copy of the layer on the fast path."""
    twin = copy.deepcopy(layer)
    twin.lora_variant["default"] = FastDora(None) if dora else FastLora(None)
    twin.cast_input_dtype_enabled = False
    return twin


def tensors(layer: LoraLinear) -> dict[str, Tensor]:
    found = {"A": layer.lora_A["default"].weight, "B": layer.lora_B["default"].weight}
    if "default" in layer.lora_magnitude_vector:
        found["magnitude"] = layer.lora_magnitude_vector["default"].weight
    return found


def exact(layer: LoraLinear) -> tuple[Callable[[Tensor], Tensor], dict[str, Tensor]]:
    """Return the layer in float64, and the leaves whose gradients it has."""
    leaves = {n: t.detach().double().requires_grad_() for n, t in tensors(layer).items()}
    base = layer.get_base_layer()
    weight = base.weight.double()
    weight = weight.T if isinstance(base, Conv1D) else weight
    bias = None if base.bias is None else base.bias.double()
    scaling = layer.scaling["default"]

    def forward(x: Tensor) -> Tensor:
        if "magnitude" in leaves:
            return reference.dora(
                x, weight, bias, leaves["A"], leaves["B"], scaling, leaves["magnitude"]
            )
        return reference.lora(x, weight, bias, leaves["A"], leaves["B"], scaling)

    return forward, leaves


def results(
    forward: Callable[[Tensor], Tensor], leaves: dict[str, Tensor], x: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """Return output and gradients in float64."""
    x = x.detach().requires_grad_()
    output = forward(x)
    output.backward(upstream.to(output.dtype))
    found = {"output": output.detach().double()}
    for name, leaf in (leaves | {"x": x}).items():
        assert leaf.grad is not None, name
        found[name] = leaf.grad.double()
    return found


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
