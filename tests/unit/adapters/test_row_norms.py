"""DoRA's row norms, dense and factored, against the norm of the sum formed in float64."""

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.row_norms import (
    SMALLEST_NORM,
    dense_row_norm,
    factored_row_norm,
    frozen_product,
    is_small_on_a_gpu,
)
from hylorada.seeds import generator
from tests.reference import lora as reference


def drawn(outputs: int, inputs: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return `W`, `A` and `B` in float64."""
    draws = generator(0, "norms")
    sizes = ((outputs, inputs), (rank, inputs), (outputs, rank))
    weight, down, up = (torch.randn(s, generator=draws, dtype=torch.float64) for s in sizes)
    return weight, 0.3 * down, 0.3 * up


def layer(kind: type[nn.Module], weight: Tensor) -> nn.Module:
    outputs, inputs = weight.shape
    base = Conv1D(outputs, inputs) if kind is Conv1D else nn.Linear(inputs, outputs)
    base.weight = nn.Parameter((weight.T if kind is Conv1D else weight).float().contiguous())
    return base


SIZES = [(7, 13, 3), (24, 8, 1), (5, 5, 5), (48, 64, 8), (1, 4, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_the_dense_row_norm_is_the_norm_of_the_sum(
    kind: type[nn.Module], size: tuple[int, int, int]
) -> None:
    weight, down, up = drawn(*size)
    found = dense_row_norm(layer(kind, weight), down.float(), up.float(), 2.5)
    expected = reference.row_norm(weight, down, up, 2.5)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_factored_row_norm_is_the_norm_of_the_sum(size: tuple[int, int, int]) -> None:
    weight, down, up = drawn(*size)
    parts = (weight.square().sum(1), weight @ down.T, down, up)
    found = factored_row_norm(*(part.float() for part in parts), 2.5)
    expected = reference.row_norm(weight, down, up, 2.5)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_dense_norm_in_bfloat16_errs_less_than_one_rounding(kind: type[nn.Module]) -> None:
    """Each entry of the sum is rounded once; a norm over many entries averages that away."""
    weight, down, up = (tensor.bfloat16().double() for tensor in drawn(48, 256, 8))
    base = layer(kind, weight).bfloat16()
    found = dense_row_norm(base, down.bfloat16(), up.bfloat16(), 2.0)
    expected = reference.row_norm(weight, down, up, 2.0)
    assert found.dtype == torch.float32
    assert ((found.double() - expected).abs() / expected).max() < 2**-9


def test_a_row_that_the_update_cancels_has_no_negative_square() -> None:
    weight = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    down, up = torch.tensor([[3.0, 4.0]]), torch.tensor([[-1.0], [0.0]])
    norm = factored_row_norm(weight.square().sum(1), weight @ down.T, down, up, 1.0)
    assert SMALLEST_NORM <= norm[0] <= 1e-3
    assert norm[1] == 1.0


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_row_of_zeros_has_the_smallest_norm_and_not_zero(kind: type[nn.Module]) -> None:
    weight = torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    norm = dense_row_norm(layer(kind, weight), torch.ones(1, 2), torch.zeros(2, 1), 1.0)
    assert norm.tolist() == pytest.approx([SMALLEST_NORM, 2.0])


def test_on_a_cpu_or_of_a_foreign_layer_the_sum_is_never_formed() -> None:
    assert not is_small_on_a_gpu(nn.Linear(2, 2))
    assert not is_small_on_a_gpu(nn.Identity())


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
