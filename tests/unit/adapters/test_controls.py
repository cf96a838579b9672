"""Controls: sizes, formulas by hand, and a start that changes nothing where it should."""

from typing import Any

import pytest
import torch
from torch import nn

from hylorada import SpecError
from hylorada.adapters.landmarks import Bias, LowRank, NormGain, Static


def states() -> torch.Tensor:
    return torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])


@torch.no_grad()
def test_bias_adds_one_vector_to_every_token() -> None:
    module = Bias(3)
    assert torch.equal(module(states()), states())
    module.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    assert module(states()).tolist() == [[[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]]


@torch.no_grad()
def test_static_adds_its_scaled_landmark_to_every_token() -> None:
    module = Static(3, scale=0.5)
    module.landmark.copy_(torch.tensor([2.0, 0.0, -2.0]))
    assert module(states()).tolist() == [[[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]]


@torch.no_grad()
def test_low_rank_adds_a_linear_map_of_each_token() -> None:
    module = LowRank(3, rank=1)
    assert torch.equal(module(states()), states())
    module.down.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    module.up.copy_(torch.tensor([[0.0], [1.0], [10.0]]))
    assert module(states()).tolist() == [[[1.0, 3.0, 13.0], [4.0, 9.0, 46.0]]]


@torch.no_grad()
def test_norm_gain_rescales_each_channel() -> None:
    module = NormGain(3)
    assert torch.equal(module(states()), states())
    module.gain.copy_(torch.tensor([0.0, 1.0, -1.0]))
    assert module(states()).tolist() == [[[1.0, 4.0, 0.0], [4.0, 10.0, 0.0]]]


@pytest.mark.parametrize(
    ("module", "size"), [(Bias(7), 7), (Static(7), 8), (LowRank(7, 2), 28), (NormGain(7), 7)]
)
def test_a_control_has_its_documented_size(module: nn.Module, size: int) -> None:
    assert sum(parameter.numel() for parameter in module.parameters()) == size


@pytest.mark.parametrize("module", [Bias(3), Static(3), LowRank(3, 2), NormGain(3)])
def test_a_control_keeps_the_dtype_and_ignores_positions(module: nn.Module) -> None:
    low = states().bfloat16()
    assert module(low).dtype == torch.bfloat16
    assert torch.equal(module(low, torch.tensor([[5, 6]])), module(low))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("value", "rule"), [(0, "at least 1"), (2.5, "a whole number"), (True, "a whole number")]
)
@pytest.mark.parametrize("control", [Bias, Static, LowRank, NormGain])
def test_a_size_that_is_no_whole_number_is_refused(control: Any, value: object, rule: str) -> None:
    sizes = ["hidden_size", "rank"] if control is LowRank else ["hidden_size"]
    for size in sizes:
        with pytest.raises(SpecError, match=f"{size} must be {rule}.*; got {value}"):
            control(**dict.fromkeys(sizes, 2) | {size: value})


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -0.1])
def test_a_scale_that_is_not_finite_or_negative_is_refused(scale: float) -> None:
    with pytest.raises(SpecError, match=f"landmark scale must be .*; got {scale}"):
        Static(3, scale)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("module", [Bias(3), Static(3), LowRank(3, 2), NormGain(3)])
def test_states_that_are_no_batch_of_tokens_are_refused(module: nn.Module) -> None:
    with pytest.raises(SpecError, match=r"must be \(batch, time, dim\); got \(2, 3\)"):
        module(states()[0])
