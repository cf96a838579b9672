"""DoRA's rescaling has the gradients of its formula; what it remembers never goes stale."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from hylorada.adapters.lora import FastDora, laid_out, normalised, rescale
from hylorada.seeds import generator
from tests.families import adapt, tokens
from tests.lora_layers import KINDS, error, exact, fast, lora_layer, results, tensors
from tests.reference import lora as reference

SIZE = (13, 7, 3)  # in, out, rank


def dora_layer(kind: str = "linear", dtype: torch.dtype = torch.float32) -> LoraLinear:
    return fast(lora_layer(kind, SIZE, True, dtype), dora=True)


def row_square(layer: LoraLinear) -> Tensor:
    """Return the squared norms of the rows of a layer's weight with its update."""
    parts, base = tensors(layer), layer.get_base_layer()
    wide = laid_out(parts["B"], layer.scaling["default"], torch.float32)
    variant: FastDora = layer.lora_variant["default"]
    return variant.row_square(base, layer.fan_in_fan_out, parts["A"], wide)


@pytest.mark.parametrize("kind", KINDS)
def test_the_row_square_is_that_of_the_sum_and_a_constant(kind: str) -> None:
    layer = dora_layer(kind)
    base = layer.get_base_layer()
    weight = (base.weight.T if kind == "conv1d" else base.weight).double()
    parts = {name: tensor.detach().double() for name, tensor in tensors(layer).items()}
    norm = reference.row_norm(weight, parts["A"], parts["B"], layer.scaling["default"])
    found = row_square(layer)
    torch.testing.assert_close(found.double().sqrt(), norm, atol=1e-6, rtol=1e-6)
    assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_dense_norms_it_errs_at_most_twice_as_much_as_peft(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hylorada.adapters.lora.is_small_on_a_gpu", lambda base: True)
    plain = lora_layer(kind, (64, 48, 8), True, dtype)
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    for seed in range(3):
        draws = generator(seed, "inputs")
        x = torch.randn(5, 31, 64, generator=draws).to(dtype)
        upstream = torch.randn(5, 31, 48, generator=draws).to(dtype)
        yardstick = results(*exact(plain), x.double(), upstream)
        for errors, layer in ((ours, fast(plain, True)), (theirs, copy.deepcopy(plain).to(dtype))):
            for name, found in results(layer, tensors(layer), x, upstream).items():
                errors[name].append(error(found, yardstick[name]))
    for name in ours:
        assert math.hypot(*ours[name]) <= 2 * math.hypot(*theirs[name]), name


@pytest.mark.parametrize("length", [0, 1, 5, 512])
def test_with_and_without_gradients_the_output_is_the_same(length: int) -> None:
    layer = dora_layer()
    x = torch.randn(2, length, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        expected = layer(x)
    assert torch.equal(layer(x), expected)


CHANGES: dict[str, Callable[[LoraLinear], object]] = {
    "A": lambda layer: layer.lora_A["default"].weight.mul_(2.0),
    "B": lambda layer: layer.lora_B["default"].weight.mul_(2.0),
    "magnitude": lambda layer: layer.lora_magnitude_vector["default"].weight.mul_(2.0),
    "base": lambda layer: layer.get_base_layer().weight.mul_(2.0),
    "scaling": lambda layer: layer.scaling.update(default=1.0),
    "loaded": lambda layer: layer.lora_B["default"].load_state_dict({"weight": torch.ones(7, 3)}),
    "replaced": lambda layer: layer.lora_B.update({"default": nn.Linear(3, 7, bias=False)}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_single_token_takes_what_was_remembered_until_something_changes(change: str) -> None:
    layer = dora_layer().eval()
    x = torch.randn(1, 1, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        unchanged = layer(x)
        CHANGES[change](layer)
        changed = layer(x)
    assert not torch.allclose(changed, unchanged)
    layer.lora_variant["default"] = FastDora(None)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), changed)


def test_decoding_computes_no_norm_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = dora_layer().eval()
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        whole = layer(x)
        monkeypatch.setattr(FastDora, "row_square", None)
        tokens = [layer(x[:, [place]]) for place in range(5)]
    torch.testing.assert_close(torch.cat(tokens, dim=1), whole)


def test_weights_written_behind_autograd_are_seen_by_the_next_pass_of_several_tokens() -> None:
    layer = dora_layer().eval()
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        before = layer(x)
        layer.lora_B["default"].weight.data.mul_(2.0)
        after, of_last = layer(x), layer(x[:, -1:])
    assert not torch.allclose(after, before)
    torch.testing.assert_close(of_last, after[:, -1:])
    layer.lora_variant["default"] = FastDora(None)
    with torch.no_grad():
        assert torch.equal(layer(x), after)


def test_a_frozen_weight_with_other_data_has_another_norm() -> None:
    """PiSSA, `vector_to_parameters` and the like give a parameter other data, not a new version."""
    layer = dora_layer().eval()
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        layer(x)
        layer.base_layer.weight.data = 3 * layer.base_layer.weight.data
        found = layer(x)
        layer.lora_variant["default"] = FastDora(None)
        assert torch.equal(layer(x), found)


def test_a_layer_made_in_inference_mode_works_there() -> None:
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
    expected = dora_layer().eval()(x)
    with torch.inference_mode():
        layer = dora_layer().eval()
        for _ in range(2):
            torch.testing.assert_close(layer(x), expected.detach())
        torch.testing.assert_close(layer(x[:, :1]), expected[:, :1].detach())


def test_each_dtype_has_its_own_norm() -> None:
    layer = dora_layer().eval()
    x = torch.randn(1, 1, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            after_another = layer(x)
            layer.lora_variant["default"] = FastDora(None)
            assert torch.equal(layer(x), after_another)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("mode", [True, False], ids=["training", "eval"])
def test_no_pass_with_gradients_is_remembered(mode: bool, length: int) -> None:
    """An optimiser may write behind autograd, and a prompt may have one token."""
    layer = dora_layer().train(mode)
    x = torch.randn(1, 1, 13, generator=generator(0, "inputs"))
    layer(x.expand(1, length, 13)).sum().backward()
    layer.lora_B["default"].weight.data.mul_(2.0)
    layer.eval()
    with torch.no_grad():
        found = layer(x)
        layer.lora_variant["default"] = FastDora(None)
        torch.testing.assert_close(found, layer(x))


def rescaling_inputs(count: int, bias: bool) -> list[Any]:
    """Return as many tokens, the magnitudes and the bias: leaves with five features."""
    draws = generator(0, "rescaling")
    return [
        None if s is None else torch.randn(s, generator=draws, dtype=torch.float64).requires_grad_()
        for s in ((count, 5), (5,), (5,) if bias else None)
    ]


NORM = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1], dtype=torch.float64)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]] = {
    "multiplied": rescale,  # on a CPU, with all in one dtype
    "normalised": normalised,
}


def formula(adapted: Tensor, magnitude: Tensor, bias: Tensor | None) -> Tensor:
    offset = 0.0 if bias is None else bias
    return magnitude / NORM * (adapted - offset) + offset


@pytest.mark.parametrize("frozen", ["nothing", "adapted", "magnitude", "bias"])
@pytest.mark.parametrize("bias", [False, True], ids=["without_bias", "with_bias"])
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("way", WAYS)
def test_rescaling_has_the_value_and_the_gradients_of_its_formula(
    way: str, count: int, bias: bool, frozen: str
) -> None:
    def rescaled(adapted: Tensor, magnitude: Tensor, bias: Tensor | None) -> Tensor:
        return WAYS[way](adapted, NORM.square(), magnitude, bias)

    leaves = rescaling_inputs(count, bias)
    for name, leaf in zip(("adapted", "magnitude", "bias"), leaves, strict=True):
        if leaf is not None:
            leaf.requires_grad_(name != frozen)
    torch.testing.assert_close(rescaled(*leaves), formula(*leaves))
    assert torch.autograd.gradcheck(rescaled, leaves)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_a_pass_leaves_what_came_in_as_it_was_however_it_lies_in_memory(
    order: tuple[int, ...],
) -> None:
    layer = dora_layer()
    x = torch.randn(7, 7, 13, generator=generator(0, "rows"))
    result = torch.randn(7, 7, 7, generator=generator(1, "rows"))
    given = result.clone().permute(order)
    found = layer.lora_variant["default"].forward(layer, "default", x, given)
    assert torch.equal(given, result.permute(order))
    expected = layer.lora_variant["default"].forward(layer, "default", x, given.contiguous())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_zeros_is_rescaled_by_a_finite_factor(way: str) -> None:
    found = WAYS[way](torch.ones(2, 3), torch.zeros(3), torch.ones(3), torch.ones(3))
    assert found.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_result_has_the_dtype_of_what_was_adapted(dtype: torch.dtype) -> None:
    found = rescale(torch.ones(2, 3, dtype=dtype), torch.ones(3), torch.ones(3), None)
    assert found.dtype == dtype


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_an_expanded_number_is_as_good_as_any(way: str) -> None:
    adapted, magnitude, bias = leaves = rescaling_inputs(6, bias=True)
    output = WAYS[way](adapted, NORM.square(), magnitude, bias)
    found = torch.autograd.grad(output.sum(), leaves)
    torch.testing.assert_close(found, torch.autograd.grad(formula(*leaves).sum(), leaves))


@pytest.mark.parametrize("shape", [(8, 1024), (1, 251), (1, 8191)], ids=str)
def test_many_tokens_cost_the_magnitudes_no_more_digits_than_in_peft(
    shape: tuple[int, int],
) -> None:
    plain = lora_layer("linear", (16, 12, 2), True, torch.float32)
    errors: dict[str, list[float]] = defaultdict(list)
    for seed in range(8):
        draws = generator(seed, "inputs")
        x = torch.randn(*shape, 16, generator=draws)
        upstream = torch.randn(*shape, 12, generator=draws)
        expected = results(*exact(plain), x.double(), upstream)["magnitude"]
        for name, layer in (("ours", fast(plain, True)), ("theirs", copy.deepcopy(plain))):
            found = results(layer, tensors(layer), x, upstream)["magnitude"]
            errors[name].append(error(found, expected))
    assert math.hypot(*errors["ours"]) <= 2 * math.hypot(*errors["theirs"])


def test_gradients_come_back_in_the_dtype_of_their_parameter() -> None:
    layer = dora_layer(dtype=torch.bfloat16)
    layer(torch.ones(2, 3, 13, dtype=torch.bfloat16)).sum().backward()
    for tensor in tensors(layer).values():
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.is_contiguous()
        assert tensor.grad.any()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_position_bias_trains_through_dora(family: str) -> None:
    """The gradient of table and gates is the slope of the loss, measured by differences."""
    model = adapt(family, use_dora=True, landmark_enabled=False).double()
    bias = model.base_model.shared_state("default").position_bias
    rows = tokens()
    vocabulary = model.config.vocab_size
    weights = torch.randn(*rows.shape, vocabulary, generator=generator(0, "w"), dtype=torch.float64)

    def loss() -> Tensor:
        return (model(input_ids=rows).logits * weights).mean()

    loss().backward()
    for parameter in (bias.table, bias.gates):
        assert parameter.grad is not None
        direction = parameter.grad / parameter.grad.norm()
        sides = []
        for step in (1e-3, -1e-3):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
                sides.append(loss())
                parameter.sub_(direction, alpha=step)
        slope = (sides[0] - sides[1]) / 2e-3
        torch.testing.assert_close(slope, parameter.grad.norm(), rtol=3e-3, atol=1e-8)
