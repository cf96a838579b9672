"""DoRA's squared row norms, dense and factored, against the norm of the sum formed in float64."""

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hylorada.adapters.lora import (
    dense_row_square,
    factored_row_square,
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
def test_the_dense_row_square_is_that_of_the_sum(
    kind: type[nn.Module], size: tuple[int, int, int]
) -> None:
    weight, down, up = drawn(*size)
    found = dense_row_square(layer(kind, weight), down.float(), 2.5 * up.T.float())
    expected = reference.row_norm(weight, down, up, 2.5)
    torch.testing.assert_close(found.double().sqrt(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_factored_row_square_is_that_of_the_sum(size: tuple[int, int, int]) -> None:
    weight, down, up = drawn(*size)
    parts = (weight.square().sum(1), down @ weight.T, down, 2.5 * up.T)
    found = factored_row_square(*(part.float() for part in parts))
    expected = reference.row_norm(weight, down, up, 2.5)
    torch.testing.assert_close(found.double().sqrt(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_dense_norm_in_bfloat16_errs_less_than_one_rounding(kind: type[nn.Module]) -> None:
    """Each entry of the sum is rounded once; a norm over many entries averages that away."""
    weight, down, up = (tensor.bfloat16().double() for tensor in drawn(48, 256, 8))
    base = layer(kind, weight).bfloat16()
    found = dense_row_square(base, down.bfloat16(), 2 * up.T.bfloat16())
    expected = reference.row_norm(weight, down, up, 2.0)
    assert found.dtype == torch.float32
    assert ((found.double().sqrt() - expected).abs() / expected).max() < 2**-9


def test_a_row_that_the_update_cancels_has_no_negative_square() -> None:
    weight = torch.randn(200, 3, generator=generator(0, "cancelled"))
    for row in weight.split(1):  # rounding takes about half of these below 0
        down, wide = row / 7, torch.full((1, 1), -7.0)
        square = factored_row_square(row.square().sum(1), down @ row.T, down, wide)
        assert 0 <= square <= 1e-5


def test_where_the_factor_lies_in_memory_changes_no_bit() -> None:
    """As when it is mapped from a file: on some CPUs `A A^T` rounds by the address of A."""
    weight, down, up = (tensor.float() for tensor in drawn(48, 64, 8))
    memory = torch.empty(down.numel() + 16)
    squares = []
    for offset in range(16):
        moved = memory[offset : offset + down.numel()].view_as(down).copy_(down)
        parts = (weight.square().sum(1), down @ weight.T, moved, up.T.contiguous())
        squares.append(factored_row_square(*parts))
    assert all(torch.equal(square, squares[0]) for square in squares)


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
    expected = weight if isinstance(base, Conv1D) else weight.T
    if getattr(base, "bias", None) is not None:
        nn.init.normal_(base.get_parameter("bias"))
    torch.testing.assert_close(frozen_product(base, torch.eye(5)), expected)
