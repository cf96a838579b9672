"""Position bias: the formula by hand, and buckets that are exact where contexts are read most."""

import math

import pytest
import torch

from hylorada import UnsupportedModelError
from hylorada.adapters.positions import PositionBias, PositionContext, PositionGain


def test_an_untrained_bias_is_one_everywhere() -> None:
    bias = PositionBias(layers=2)
    assert torch.equal(bias(torch.arange(9)[None], 3, 4), torch.ones(2, 27, 4))


def test_the_factor_is_its_formula() -> None:
    bias = PositionBias(layers=2, buckets=4, max_positions=4)
    with torch.no_grad():
        bias.table.copy_(torch.tensor([0.0, 1.0, -2.0, 3.0]))
        bias.gates.copy_(torch.tensor([0.5, -1.0]))
    found = bias(torch.tensor([[0, 1], [2, 3]]), 2, 1)
    for layer, gate in enumerate((0.5, -1.0)):
        share = 1 / (1 + math.exp(-gate))
        expected = [1 + share * math.tanh(entry) for entry in (0.0, 1.0, -2.0, 3.0)]
        torch.testing.assert_close(found[layer], torch.tensor(expected).view(4, 1))


def test_buckets_are_exact_below_32_and_all_reached() -> None:
    bias = PositionBias(layers=1, buckets=64, max_positions=1024)
    table = bias.bucket_of_position
    assert table[:32].tolist() == list(range(32))
    assert table.unique().tolist() == list(range(64))


def test_both_tensors_receive_a_gradient_once_the_table_has_left_zero() -> None:
    bias = PositionBias(layers=1, buckets=4, max_positions=4)
    with torch.no_grad():
        bias.table.fill_(0.5)
    bias(torch.arange(4)[None], 1, 1).sum().backward()
    assert bias.table.grad is not None
    assert bias.gates.grad is not None
    assert bias.table.grad.all()
    assert bias.gates.grad.all()


def two_layers() -> PositionBias:
    bias = PositionBias(layers=2, buckets=4, max_positions=4)
    with torch.no_grad():
        bias.table.copy_(torch.arange(4.0))
        bias.gates.copy_(torch.tensor([0.5, -1.0]))
    return bias


def test_each_layer_reads_its_factors_of_the_tokens_in_flight() -> None:
    bias, context = two_layers(), PositionContext()
    gains = [PositionGain(bias, layer, "default", context) for layer in range(2)]
    with pytest.raises(UnsupportedModelError, match="positions are unknown"):
        gains[0](torch.zeros(1, 2, 1), 1)
    context.current = torch.tensor([[2, 3]])
    expected = bias(context.current, 1, 1)
    for layer in range(2):
        found = gains[layer](torch.zeros(1, 2, 1), 3)
        assert torch.equal(found, expected[layer].expand(2, 3))


def test_sequences_at_the_same_positions_have_the_same_factors() -> None:
    bias, context = two_layers(), PositionContext()
    context.current = torch.tensor([[2, 3]])
    found = PositionGain(bias, 1, "default", context)(torch.zeros(3, 2, 1), 1)
    assert torch.equal(found, bias(context.current, 1, 1)[1].repeat(3, 1))
    unbatched = PositionGain(bias, 1, "default", context)(torch.zeros(2, 1), 2)
    assert torch.equal(unbatched, found[:2].expand(2, 2))


def test_a_layer_reads_only_the_rows_its_adapter_serves() -> None:
    bias, context = two_layers(), PositionContext()
    context.current = torch.tensor([[0], [1], [2]])
    context.mixed_batch = ["one", "two", "one"]
    gain = PositionGain(bias, 1, "one", context)
    assert torch.equal(gain(torch.zeros(2, 1, 1), 1), bias(torch.tensor([[0], [2]]), 2, 1)[1])
