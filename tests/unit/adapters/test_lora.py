"""Fast LoRA and DoRA err at most twice as much as PEFT's own layers, judged against float64."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.lora import (
    FastDora,
    FastLora,
    RescaleRows,
    frozen_product,
    inverse_row_norm,
)
from hylorada.seeds import generator
from tests.families import adapt, build, logits, seeded, settings, tokens
from tests.reference import lora as reference

SIZES = [(13, 7, 3), (8, 24, 1), (5, 5, 5), (64, 48, 8)]  # in, out, rank
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize(("kind", "size"), [*product(KINDS, SIZES)], ids=str)
def test_the_fast_path_errs_at_most_twice_as_much_as_peft(
    kind: str, size: tuple[int, int, int], dora: bool, dtype: torch.dtype
) -> None:
    plain = lora_layer(kind, size, dora, dtype)
    same_dtype = copy.deepcopy(plain).to(dtype)  # the plain form in the precision of the base
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    for seed in range(4):  # one draw of a tiny layer is mostly luck
        draws = generator(seed, "inputs")
        x = torch.randn(5, 31, size[0], generator=draws).to(dtype)
        upstream = torch.randn(5, 31, size[1], generator=draws).to(dtype)
        yardstick = results(*exact(plain), x.double(), upstream)
        for errors, layer in ((ours, fast(plain, dora)), (theirs, copy.deepcopy(same_dtype))):
            found = results(layer, tensors(layer), x, upstream)
            for name, expected in yardstick.items():
                errors[name].append(error(found[name], expected))
    for name in ours:
        assert math.hypot(*ours[name]) <= 2 * math.hypot(*theirs[name]), name


def inverse_norm(layer: LoraLinear, variant: FastDora | None = None) -> Tensor:
    """Return what the layer's variant, or a fresh one, divides the rows by."""
    variant = variant or layer.lora_variant["default"]
    scaled = layer.lora_A["default"].weight * layer.scaling["default"]
    return variant.inverse_norm(layer, "default", scaled, scaled)


@pytest.mark.parametrize("kind", KINDS)
def test_the_factored_row_norm_is_the_norm_of_the_sum(kind: str) -> None:
    layer = fast(lora_layer(kind, (13, 7, 3), True, torch.float32), dora=True)
    base = layer.get_base_layer()
    weight = (base.weight.T if kind == "conv1d" else base.weight).double()
    parts = tensors(layer)
    down, up = parts["A"].detach().double(), parts["B"].detach().double()
    expected = reference.row_norm(weight, down, up, layer.scaling["default"])
    torch.testing.assert_close(1 / inverse_norm(layer).double(), expected, atol=1e-6, rtol=1e-6)


def test_a_row_that_the_update_cancels_has_no_negative_square() -> None:
    weight = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    down, up = torch.tensor([[3.0, 4.0]]), torch.tensor([[-1.0], [0.0]])
    inverse = inverse_row_norm(weight.square().sum(1), weight @ down.T, down, up)
    assert inverse.isfinite().all()
    assert inverse[0] >= 1e3
    assert inverse[1] == 1.0


CHANGES: dict[str, Callable[[LoraLinear], object]] = {
    "A": lambda layer: layer.lora_A["default"].weight.mul_(2.0),
    "B": lambda layer: layer.lora_B["default"].weight.mul_(2.0),
    "base": lambda layer: layer.get_base_layer().weight.mul_(2.0),
    "scaling": lambda layer: layer.scaling.update(default=1.0),
    "loaded": lambda layer: layer.lora_B["default"].load_state_dict({"weight": torch.ones(7, 3)}),
    "replaced": lambda layer: layer.lora_B.update({"default": nn.Linear(3, 7, bias=False)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_in_eval_mode_a_norm_is_remembered_until_something_changes(change: str) -> None:
    layer = fast(lora_layer("linear", (13, 7, 3), True, torch.float32), dora=True).eval()
    before = inverse_norm(layer)
    assert inverse_norm(layer) is before
    with torch.no_grad():
        CHANGES[change](layer)
    after = inverse_norm(layer)
    assert not torch.allclose(after, before)
    assert torch.allclose(after, inverse_norm(layer, FastDora(None)))


def test_weights_written_behind_autograd_are_seen_in_training_mode() -> None:
    layer = fast(lora_layer("linear", (13, 7, 3), True, torch.float32), dora=True).train()
    before = inverse_norm(layer).clone()
    layer.lora_B["default"].weight.data.mul_(2.0)
    assert not torch.allclose(inverse_norm(layer), before)


def test_weights_written_behind_autograd_while_training_are_seen_in_eval_mode() -> None:
    layer = fast(lora_layer("linear", (13, 7, 3), True, torch.float32), dora=True).eval()
    before = inverse_norm(layer).clone()
    layer.train()
    layer.lora_B["default"].weight.data.mul_(2.0)
    inverse_norm(layer)
    layer.eval()
    assert not torch.allclose(inverse_norm(layer), before)


def test_the_norm_does_not_receive_a_gradient() -> None:
    layer = fast(lora_layer("linear", (13, 7, 3), True, torch.float32), dora=True)
    assert not inverse_norm(layer).requires_grad


@pytest.mark.parametrize("shape", [(1, 5), (4, 5), (2, 3, 5), (2, 1, 3, 5)], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["without_bias", "with_bias"])
def test_rescaled_rows_have_the_gradients_of_their_formula(
    shape: tuple[int, ...], bias: bool
) -> None:
    draws = generator(0, "rows")
    rows = torch.randn(shape, generator=draws, dtype=torch.float64)
    factor, offset = torch.randn(2, 5, generator=draws, dtype=torch.float64)
    inputs: list[Any] = [rows, factor, offset if bias else None]
    expected = factor * (rows - offset) + offset if bias else factor * rows
    torch.testing.assert_close(RescaleRows.apply(*inputs), expected)
    leaves: list[Any] = [i if i is None else i.requires_grad_() for i in inputs]
    assert torch.autograd.gradcheck(RescaleRows.apply, leaves)
    if bias:
        offset.requires_grad_(False)
        assert torch.autograd.gradcheck(RescaleRows.apply, leaves)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_dropout_keeps_the_expected_output(dora: bool) -> None:
    layer = lora_layer("linear", (13, 7, 3), dora, torch.float32, dropout=0.5)
    quick = fast(layer, dora).train()
    x = torch.randn(1, 1, 13, generator=generator(1, "inputs"))
    expected = fast(layer, dora).eval()(x)
    with seeded(0), torch.no_grad():
        draws = torch.cat([quick(x) for _ in range(3000)])
    spread = draws.std(dim=0) / 3000**0.5
    assert (spread > 0).all()
    assert ((draws.mean(dim=0) - expected[0]).abs() < 5 * spread).all()


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_position_bias_scales_the_update_and_nothing_else(family: str, dora: bool) -> None:
    """The first adapted layer of a model against the float64 formula with the same gain."""
    model = adapt(family, use_dora=dora, landmark_enabled=False)
    name, layer = next(iter(model.base_model.lora_layers("default")))
    assert name
    seen: dict[str, Tensor] = {}
    layer.register_forward_hook(lambda module, args, output: seen.update(x=args[0], y=output))
    rows = tokens()
    logits(model, rows)
    bias = model.base_model.shared_state("default").position_bias
    gain = bias(torch.arange(rows.shape[1])[None])[0].detach().double()
    assert (gain - 1).abs().max() > 0.05
    base = layer.get_base_layer()
    weight = base.weight.double()
    arguments: dict[str, Any] = {
        "x": seen["x"].double(),
        "weight": weight.T if isinstance(base, Conv1D) else weight,
        "bias": None if base.bias is None else base.bias.double(),
        "down": tensors(layer)["A"].detach().double(),
        "up": tensors(layer)["B"].detach().double(),
        "scaling": layer.scaling["default"],
        "gain": gain,
    }
    if dora:
        arguments["magnitude"] = tensors(layer)["magnitude"].detach().double()
    expected = reference.dora(**arguments) if dora else reference.lora(**arguments)
    torch.testing.assert_close(seen["y"].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_or_two_adapters_agree_with_peft(family: str, dora: bool) -> None:
    plain: dict[str, Any] = {"landmark_enabled": False, "position_bias": False, "use_dora": dora}
    ours = adapt(family, **plain)
    ours.add_adapter("second", settings(**plain))
    targets = list(ours.peft_config["default"].target_modules)
    config = LoraConfig(
        r=4,
        lora_alpha=4,
        use_rslora=True,
        use_dora=dora,
        target_modules=targets,
        fan_in_fan_out=family == "gpt2",
    )
    theirs = get_peft_model(build(family), config).eval()
    theirs.add_adapter("second", config)
    theirs.eval()
    with torch.no_grad():
        for name, tensor in ours.state_dict().items():
            if ".second." in name:
                tensor.add_(0.1)
    theirs.load_state_dict(ours.state_dict())
    for adapters in (["default"], ["default", "second"]):
        ours.base_model.set_adapter(adapters)
        theirs.base_model.set_adapter(adapters)
        torch.testing.assert_close(
            logits(ours, tokens()), logits(theirs, tokens()), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_only_an_update_without_position_bias_converts_to_lora(dora: bool) -> None:
    for bias in (False, True):
        model = adapt("llama", use_dora=dora, landmark_enabled=False, position_bias=bias)
        layers = [layer for _, layer in model.base_model.lora_layers("default")]
        assert {layer.supports_lora_conversion("default") for layer in layers} == {not bias}


class ForeignLinear(nn.Linear):
    """Stands for a quantised layer: only its forward pass knows its weight."""


@pytest.mark.parametrize(
    "base", [nn.Linear(5, 3), Conv1D(3, 5), ForeignLinear(5, 3), ForeignLinear(5, 3, bias=False)]
)
def test_the_frozen_product_leaves_the_bias_out(base: nn.Module) -> None:
    weight = base.get_parameter("weight")
    expected = weight.T if isinstance(base, Conv1D) else weight
    if getattr(base, "bias", None) is not None:
        nn.init.normal_(base.get_parameter("bias"))
    torch.testing.assert_close(frozen_product(base, torch.eye(5)), expected)
