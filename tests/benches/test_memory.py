"""What autograd keeps for the backward pass, counted by hand."""

import pytest
import torch
from torch import Tensor, nn

from hylorada_benches.memory import SavedBytes, peak_step_bytes, saved_activation_bytes


def test_a_layer_and_a_relu_save_their_input_and_the_result() -> None:
    layer, rows = nn.Linear(4, 5), torch.randn(3, 4)

    def loss() -> Tensor:
        return layer(rows).relu().sum()

    # The layer needs its input for its weight, the relu its own output; the weight is not counted.
    assert saved_activation_bytes(layer, loss) == 4 * (3 * 4 + 3 * 5)


def test_a_frozen_layer_saves_nothing_but_its_own_weight() -> None:
    layer, rows = nn.Linear(4, 5), torch.randn(3, 4, requires_grad=True)
    layer.requires_grad_(False)
    assert saved_activation_bytes(layer, lambda: layer(rows).sum()) == 0


def test_half_the_width_of_a_number_is_half_the_bytes() -> None:
    layer, rows = nn.Linear(4, 5).bfloat16(), torch.randn(3, 4).bfloat16()
    assert saved_activation_bytes(layer, lambda: layer(rows).sum()) == 2 * 3 * 4


def test_what_two_operations_save_is_counted_once() -> None:
    first, second = nn.Linear(4, 5, bias=False), nn.Linear(4, 6, bias=False)
    rows = torch.randn(3, 4)
    both = nn.ModuleList([first, second])
    bytes_saved = saved_activation_bytes(both, lambda: first(rows).sum() + second(rows).sum())
    assert bytes_saved == 4 * 3 * 4


def test_a_view_counts_its_whole_storage() -> None:
    layer, rows = nn.Linear(4, 5), torch.randn(6, 4)
    # Keeping two rows keeps the six they lie in.
    assert saved_activation_bytes(layer, lambda: layer(rows[:2]).sum()) == 4 * 6 * 4


def test_buffers_belong_to_the_model() -> None:
    class Scaled(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(5))

    module, rows = Scaled(), torch.randn(3, 5, requires_grad=True)
    assert saved_activation_bytes(module, lambda: (rows * module.scale).sum()) == 0


def test_nothing_is_counted_outside_the_block() -> None:
    layer, rows = nn.Linear(4, 5), torch.randn(3, 4)
    saved = SavedBytes(layer)
    layer(rows).relu().sum()
    assert saved.total == 0
    with saved.counting():
        loss = layer(rows).sum()
    assert saved.total == 4 * 3 * 4
    loss.backward()
    assert layer.weight.grad is not None


def test_a_graph_that_is_dropped_on_the_way_is_not_counted() -> None:
    layer, rows = nn.Linear(4, 5), torch.randn(3, 4)

    def loss() -> Tensor:
        factor = layer(rows).relu().sum().detach()
        return (layer(rows) * factor).sum()

    # The input for the weight, and the factor: the rectified rows were for nothing.
    assert saved_activation_bytes(layer, loss) == 4 * (3 * 4 + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the peak is measured on CUDA")
def test_the_peak_of_a_step_counts_what_it_allocates() -> None:
    found = peak_step_bytes(lambda: torch.zeros(2**20, device="cuda").sum().item())
    assert 2**22 <= found < 2**23
