"""DoRA's hand-written node has the gradients of its formula; what it remembers never goes stale."""

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from hylorada.adapters.dora import DoraRows, FastDora, plus_row_products, rescale, without
from hylorada.adapters.lora import rows
from hylorada.seeds import generator
from tests.families import adapt, tokens
from tests.lora_layers import KINDS, error, exact, fast, lora_layer, results, tensors
from tests.reference import lora as reference

SIZE = (13, 7, 3)  # in, out, rank


def dora_layer(kind: str = "linear", dtype: torch.dtype = torch.float32) -> LoraLinear:
    return fast(lora_layer(kind, SIZE, True, dtype), dora=True)


def factor(
    layer: LoraLinear, variant: FastDora | None = None, *, as_before: bool = False
) -> Tensor:
    """Return what the variant of the layer, or a fresh one, multiplies the rows by."""
    with torch.no_grad():
        chosen = variant or layer.lora_variant["default"]
        return chosen.ready(layer, "default", torch.float32, as_before=as_before).factor


@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_is_magnitude_over_the_norm_of_the_sum(kind: str) -> None:
    layer = dora_layer(kind)
    base = layer.get_base_layer()
    weight = (base.weight.T if kind == "conv1d" else base.weight).double()
    parts = {name: tensor.detach().double() for name, tensor in tensors(layer).items()}
    norm = reference.row_norm(weight, parts["A"], parts["B"], layer.scaling["default"])
    expected = parts["magnitude"] / norm
    torch.testing.assert_close(factor(layer).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_dense_norms_it_errs_at_most_twice_as_much_as_peft(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hylorada.adapters.dora.is_small_on_a_gpu", lambda base: True)
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


def test_with_and_without_gradients_the_output_is_the_same() -> None:
    layer = dora_layer()
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
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
    before = factor(layer)
    assert factor(layer, as_before=True) is before
    with torch.no_grad():
        unchanged = layer(x)
        CHANGES[change](layer)
        changed = layer(x)
    assert not torch.allclose(changed, unchanged)
    layer.lora_variant["default"] = FastDora(None)
    with torch.no_grad():
        assert torch.equal(layer(x), changed)


def test_decoding_computes_no_norm_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = dora_layer().eval()
    x = torch.randn(2, 5, 13, generator=generator(0, "inputs"))
    with torch.no_grad():
        whole = layer(x)
        monkeypatch.setattr(FastDora, "row_norm", None)
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


def test_each_dtype_has_its_own_factor() -> None:
    layer = dora_layer().eval()
    variant = layer.lora_variant["default"]
    with torch.no_grad():
        dtypes = [
            {part.dtype for part in variant.ready(layer, "default", dtype, as_before=True)}
            for dtype in (torch.float32, torch.half)
        ]
    assert dtypes == [{torch.float32}, {torch.half}]


def test_weights_written_behind_autograd_are_seen_in_training_mode() -> None:
    layer = dora_layer().train()
    before = factor(layer).clone()
    layer.lora_B["default"].weight.data.mul_(2.0)
    assert not torch.allclose(factor(layer), before)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "eval"])
def test_weights_written_behind_autograd_by_a_training_step_are_seen_after_it(mode: bool) -> None:
    layer = dora_layer().eval()
    before = factor(layer).clone()
    layer.train(mode)
    layer(torch.ones(1, 1, 13)).sum().backward()
    layer.lora_B["default"].weight.data.mul_(2.0)
    layer.eval()
    assert not torch.allclose(factor(layer), before)


def test_the_norm_does_not_receive_a_gradient() -> None:
    layer = dora_layer()
    ready = layer.lora_variant["default"].ready(layer, "default", torch.float32)
    ready.factor.sum().backward()
    assert layer.lora_magnitude_vector["default"].weight.grad is not None
    assert layer.lora_A["default"].weight.grad is layer.lora_B["default"].weight.grad is None


@pytest.mark.parametrize("shape", [(5,), (1, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["without_bias", "with_bias"])
def test_rescaled_rows_keep_the_bias_as_it_is(shape: tuple[int, ...], bias: bool) -> None:
    draws = generator(0, "rows")
    sizes = (shape, (*shape[:-1], 2), (5, 2), (5,), (5,))
    result, low, up, scale, offset = (
        torch.randn(size, generator=draws, dtype=torch.float64) for size in sizes
    )
    kept = offset if bias else None
    found = rescale(without(kept, result), rows(low), 1.5 * scale[:, None] * up, scale, kept)
    offset = offset if bias else torch.zeros(5, dtype=torch.float64)
    torch.testing.assert_close(found, scale * (result - offset + 1.5 * low @ up.T) + offset)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
def test_rescaling_leaves_what_came_in_as_it_was_however_it_lies_in_memory(
    order: tuple[int, ...],
) -> None:
    draws = generator(0, "rows")
    kept = torch.randn(5, 5, 5, generator=draws)
    result, low, up = kept.clone().permute(order), torch.ones(25, 2), torch.ones(5, 2)
    found = rescale(result, low, 0.5 * up, torch.full((5,), 3.0), None)
    assert torch.equal(result, kept.permute(order))
    torch.testing.assert_close(found, 3.0 * kept.permute(order) + 1.0)


@pytest.mark.parametrize("in_one_launch", [False, True], ids=["in_steps", "in_one_launch"])
def test_products_of_rows_are_added_to_what_is_there(in_one_launch: bool) -> None:
    first, second = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([[5.0, 6.0]])
    start = torch.tensor([10.0, 20.0, 30.0])
    found = plus_row_products(start, first, second.expand(3, 2), 2.0, in_one_launch=in_one_launch)
    assert found.tolist() == [44.0, 98.0, 30.0]
    assert start.tolist() == [10.0, 20.0, 30.0]


def node_inputs(batch: tuple[int, ...], gain: tuple[int, ...] | None, bias: bool) -> list[Any]:
    """Return double-precision leaves for the node: 4 inputs, 5 outputs, rank 2."""
    draws = generator(0, "node")
    sizes = [(*batch, 5), (*batch, 4), (2, 4), (5, 2), (5,), gain, (5,) if bias else None]
    return [
        None if s is None else torch.randn(s, generator=draws, dtype=torch.float64).requires_grad_()
        for s in sizes
    ]


NORM = torch.tensor([0.5, 1.0, 2.0, 3.0, 0.1], dtype=torch.float64)


def node(*leaves: Any) -> Tensor:
    output: Tensor = DoraRows.apply(*leaves, 1.5, lambda exact, cast: NORM)
    return output


def formula(
    result: Tensor,
    x: Tensor,
    down: Tensor,
    up: Tensor,
    magnitude: Tensor,
    gain: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    inner = x @ down.T
    inner = inner if gain is None else inner * gain.view(inner.shape)
    update = 1.5 * inner @ up.T
    offset = 0.0 if bias is None else bias
    return magnitude / NORM * (result + update - offset) + offset


CASES = [
    ((3,), None),
    ((2, 3), None),
    ((2, 1, 3), None),
    ((2, 3), (6, 2)),
    ((1, 1), (1, 2)),
]


@pytest.mark.parametrize("bias", [False, True], ids=["without_bias", "with_bias"])
@pytest.mark.parametrize(("batch", "gain"), CASES, ids=str)
def test_the_node_has_the_value_and_the_gradients_of_its_formula(
    batch: tuple[int, ...], gain: tuple[int, ...] | None, bias: bool
) -> None:
    leaves = node_inputs(batch, gain, bias)
    torch.testing.assert_close(node(*leaves), formula(*leaves))
    assert torch.autograd.gradcheck(node, leaves)


@pytest.mark.parametrize("frozen", [0, 1, 2, 3, 4, 5, 6])
def test_the_node_serves_any_part_that_needs_no_gradient(frozen: int) -> None:
    leaves = node_inputs((2, 3), (6, 2), bias=True)
    leaves[frozen].requires_grad_(False)
    assert torch.autograd.gradcheck(node, leaves)


def test_a_gradient_that_is_an_expanded_number_is_as_good_as_any() -> None:
    leaves = node_inputs((2, 3), None, bias=True)
    given = [leaf for leaf in leaves if leaf is not None]
    found = torch.autograd.grad(node(*leaves).sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(formula(*leaves).sum(), given))


def test_gradients_come_back_in_the_dtype_of_their_parameter() -> None:
    layer = dora_layer(dtype=torch.bfloat16)
    layer(torch.ones(2, 3, 13, dtype=torch.bfloat16)).sum().backward()
    for tensor in tensors(layer).values():
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.is_contiguous()
        assert tensor.grad.any()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_position_bias_trains_through_the_node(family: str) -> None:
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
