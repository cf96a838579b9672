"""Quantisation-aware training: quantised forward, straight-through backward, plain at the end."""

import copy

import numpy as np
import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from hylorada.compression.coder import adaptive_bits
from hylorada.compression.message import quantise_gates
from hylorada.compression.quantise import exact, scaled_codebook, short_step
from hylorada.compression.training import QuantizingWrapper, settle_gates
from hylorada.errors import SpecError
from hylorada.subspace import SubLoRAConfig, create_intrinsic_model

START = torch.tensor([-1.1, -0.6, -0.2, 0.0, 0.3, 0.4, 0.9, 1.6])


class Coordinates(nn.Module):
    """A module with one vector and a weighting of it."""

    def __init__(self, start: Tensor = START) -> None:
        super().__init__()
        self.vector = nn.Parameter(start.clone())

    def forward(self, weights: Tensor) -> Tensor:
        return (weights * self.vector).sum()


def model(mode: str = "uniform") -> PeftModel:
    """Return a small model with a SubLoRA adapter whose coordinates have moved."""
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = LlamaForCausalLM(config)
        adapted = get_peft_model(
            base, SubLoRAConfig(intrinsic_dim=60, allocation_mode=mode, task_type="CAUSAL_LM")
        )
        nn.init.normal_(adapted.base_model.subspace().vector, std=0.05)
    return adapted


def loss(adapted: nn.Module) -> Tensor:
    """Return the loss on fixed tokens."""
    tokens = torch.arange(48).reshape(3, 16) % 32
    found: Tensor = adapted(input_ids=tokens, labels=tokens).loss
    return found


# Forward and backward


@pytest.mark.parametrize("kind", ["symmetric", "learned"])
def test_the_module_sees_codebook_values(kind: str) -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, kind=kind)
    values = wrapper.quantised().values
    assert np.array_equal(module.vector.detach().numpy(), values)
    assert wrapper(torch.ones(8)).item() == pytest.approx(values.sum())


def test_a_dead_zone_makes_the_zero_level_wider() -> None:
    counts = [
        QuantizingWrapper(Coordinates(), levels=5, step=0.5, dead_zone=zone).quantised().counts
        for zone in (0.0, 0.4)
    ]
    assert counts == [[1, 1, 2, 2, 2], [1, 1, 4, 1, 1]]


def test_gradients_pass_straight_through_to_coordinates() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=3)
    weights = torch.arange(8.0)
    wrapper(weights).backward()
    original = module.get_parameter("parametrizations.vector.original")
    assert original.grad is not None
    assert original.grad.tolist() == weights.tolist()


def test_a_listed_value_gets_the_sum_over_its_symbols() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=4, kind="learned")
    weights = torch.arange(1.0, 9.0)
    wrapper(weights).backward()
    values = module.get_parameter("parametrizations.vector.0.trained")
    symbols = wrapper.quantised().symbols
    expected = [float(weights[symbols == level].sum()) for level in range(4)]
    assert values.grad is not None
    assert values.grad.tolist() == expected


def test_a_step_gets_the_sum_over_multiples() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, step=0.5)
    weights = torch.arange(1.0, 9.0)
    wrapper(weights).backward()
    step = module.get_parameter("parametrizations.vector.0.trained")
    multiples = torch.from_numpy(wrapper.quantised().symbols - 2)
    assert step.grad is not None
    assert float(step.grad) == float((weights * multiples).sum())


@pytest.mark.parametrize("step", [0.3, 1e-7, 3e-5, 0.0123, 60_000.0])
def test_the_step_is_rounded_as_in_a_message(step: float) -> None:
    wrapper = QuantizingWrapper(Coordinates(), levels=3, step=step)
    assert wrapper.quantised().codebook.step == short_step(step)


# Gradually


def test_nothing_is_rounded_before_it_is_settled() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, gradual=True)
    assert torch.equal(module.vector, START)
    wrapper.settle(1.0)
    assert np.array_equal(module.vector.detach().numpy(), wrapper.quantised().values)


def test_the_closest_coordinates_are_settled_first() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, step=1.0, gradual=True)
    wrapper.settle(3 / 8)
    # 0.0 is a value; -1.1 and 0.9 are a tenth away
    assert module.vector.tolist() == pytest.approx([-1.0, -0.6, -0.2, 0.0, 0.3, 0.4, 1.0, 1.6])


def test_settled_coordinates_stay_and_free_ones_have_exact_gradients() -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, step=1.0, gradual=True)
    wrapper.settle(3 / 8)
    weights = torch.arange(1.0, 9.0)
    wrapper(weights).backward()
    original = module.get_parameter("parametrizations.vector.original")
    assert original.grad is not None
    assert original.grad.tolist() == [0.0, 2.0, 3.0, 0.0, 5.0, 6.0, 0.0, 8.0]
    with torch.no_grad():
        original += 1.0
    wrapper.settle(0.1)  # less than before settles nothing more
    assert module.vector.tolist() == pytest.approx([-1.0, 0.4, 0.8, 0.0, 1.3, 1.4, 1.0, 2.6])
    assert wrapper.finish().values.tolist() == [-1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("kind", ["symmetric", "learned"])
def test_a_gradual_codebook_is_not_trained(kind: str) -> None:
    module = Coordinates()
    QuantizingWrapper(module, levels=3, kind=kind, gradual=True)
    trained = [name for name, part in module.named_parameters() if part.requires_grad]
    assert trained == ["parametrizations.vector.original"]


def test_free_coordinates_make_up_for_settled_ones() -> None:
    draws = torch.Generator().manual_seed(0)
    mixing = torch.randn(30, 60, generator=draws)
    target = torch.randn(60, generator=draws)
    rounded = QuantizingWrapper(Coordinates(target), levels=5, dead_zone=0.1).finish()
    module = Coordinates(target)
    wrapper = QuantizingWrapper(module, levels=5, dead_zone=0.1, gradual=True)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for step in range(100):
        wrapper.settle(step / 100)
        optimiser.zero_grad()
        (mixing @ (module.vector - target)).square().sum().backward()
        optimiser.step()
    losses = [
        (mixing @ (torch.from_numpy(found.values) - target)).square().sum().item()
        for found in (wrapper.finish(), rounded)
    ]
    assert losses[0] < 0.6 * losses[1]


def test_settled_coordinates_are_counted_as_they_are() -> None:
    wrapper = QuantizingWrapper(Coordinates(), levels=3, step=1.0, gradual=True, sharpness=50.0)
    wrapper.settle(1.0)
    counts = np.bincount(np.abs(wrapper.quantised().symbols - 1))
    expected = -(counts * np.log2(counts / 8)).sum() + counts[1]
    assert wrapper.bits().item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(SpecError, match="share to settle must lie between 0 and 1"):
        QuantizingWrapper(Coordinates(), levels=3, gradual=True).settle(share)


# Bits


def test_bits_of_hard_assignments_are_the_entropy_under_shared_signs() -> None:
    vector = torch.tensor([0.0] * 4 + [1.0] * 3 + [-1.0])
    wrapper = QuantizingWrapper(Coordinates(vector), levels=3, step=1.0, sharpness=100.0)
    # one half for 0, one quarter for each sign
    assert wrapper.bits().item() == pytest.approx(4 * 1 + 4 * 2)


def test_bits_follow_the_code_length() -> None:
    vector = torch.from_numpy(np.random.default_rng(0).laplace(size=500)).float()
    wrapper = QuantizingWrapper(Coordinates(vector), levels=7, sharpness=20.0)
    real = adaptive_bits(wrapper.quantised().counts, symmetric=True)
    assert wrapper.bits().item() == pytest.approx(real, rel=0.05)


@pytest.mark.parametrize("kind", ["symmetric", "learned"])
def test_a_price_on_bits_leads_to_fewer_bits(kind: str) -> None:
    vector = torch.from_numpy(np.random.default_rng(0).normal(size=300)).float()
    bits = []
    for price in (0.0, 0.3):
        module = Coordinates(vector)
        wrapper = QuantizingWrapper(module, levels=7, kind=kind)
        optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
        for _ in range(40):
            optimiser.zero_grad()
            error = (module.vector - vector).square().sum()
            (error + price * wrapper.bits()).backward()
            optimiser.step()
        bits.append(adaptive_bits(wrapper.finish().counts, symmetric=kind == "symmetric"))
    assert bits[1] < 0.85 * bits[0]


@pytest.mark.parametrize("kind", ["symmetric", "learned"])
def test_an_untrained_vector_has_finite_bits(kind: str) -> None:
    module = Coordinates(torch.zeros(5))
    bits = QuantizingWrapper(module, levels=3, kind=kind).bits()
    bits.backward()
    assert bits.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


# The end


@pytest.mark.parametrize("kind", ["symmetric", "learned"])
def test_a_finished_module_is_plain_and_holds_what_a_message_holds(kind: str) -> None:
    module = Coordinates()
    wrapper = QuantizingWrapper(module, levels=5, kind=kind)
    seen = module.vector.detach().numpy().copy()
    found = wrapper.finish()
    assert type(module) is Coordinates
    assert list(module.state_dict()) == ["vector"]
    assert isinstance(module.vector, nn.Parameter)
    assert module.vector.detach().numpy().tobytes() == found.values.tobytes() == seen.tobytes()
    again = exact(found.values)
    assert again is not None
    assert np.array_equal(again.values, found.values)


def test_a_finished_wrapper_says_so() -> None:
    wrapper = QuantizingWrapper(Coordinates(), levels=3)
    wrapper.finish()
    for action in (wrapper.bits, wrapper.quantised, wrapper.finish):
        with pytest.raises(SpecError, match="wrap the module again"):
            action()


def test_an_untrained_vector_can_be_wrapped() -> None:
    found = QuantizingWrapper(Coordinates(torch.zeros(5)), levels=3).finish()
    assert found.values.tolist() == [0.0] * 5
    assert found.codebook.values.tolist() == scaled_codebook(1.0, 1).values.tolist()


# In subspaces


def test_a_sublora_model_trains_quantised_and_ends_plain() -> None:
    adapted = model()
    names = [name for name, _ in adapted.named_parameters()]
    wrapper = QuantizingWrapper(adapted, levels=5)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert len(trained) == 2  # coordinates and step
    optimiser = torch.optim.Adam(trained, lr=0.01)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        found = loss(adapted)
        found.backward()
        optimiser.step()
        losses.append(found.item())
    assert min(losses[-5:]) < losses[0] - 0.05
    with torch.no_grad():
        before = loss(adapted)
        wrapper.finish()
        assert torch.equal(loss(adapted), before)
    assert [name for name, _ in adapted.named_parameters()] == names


def test_an_intrinsic_module_is_wrapped_by_its_subspace_params() -> None:
    module = create_intrinsic_model(nn.Linear(6, 5), intrinsic_dim=12)
    nn.init.normal_(module.subspace_params)
    wrapper = QuantizingWrapper(module, levels=3)
    inputs = torch.ones(2, 6)
    quantised = wrapper(inputs)
    found = wrapper.finish()
    assert torch.equal(module(inputs), quantised)
    assert np.array_equal(module.subspace_params.detach().numpy(), found.values)


def test_gates_are_settled_on_their_grid() -> None:
    adapted = model("learned")
    gates = adapted.base_model.subspace().gates
    nn.init.normal_(gates)
    expected = quantise_gates(gates.detach().numpy(), 5)
    found = settle_gates(adapted, 5)
    assert np.array_equal(gates.detach().numpy(), expected.values)
    assert np.array_equal(found.symbols, expected.symbols)
    assert not gates.requires_grad


def test_a_wrapped_module_can_be_copied() -> None:
    module = Coordinates()
    QuantizingWrapper(module, levels=3)
    assert torch.equal(copy.deepcopy(module).vector, module.vector)


# Refusals


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kind": "random"}, "kind must be one of symmetric, learned"),
        ({"levels": 4}, "odd number of levels"),
        ({"levels": 4, "step": 0.5}, "odd number of levels"),
        ({"levels": 257, "step": 0.5}, "levels must lie between"),
        ({"levels": 0, "kind": "learned"}, "levels must lie between"),
        ({"dead_zone": 0.7}, "dead_zone must lie between"),
        ({"step": 0.0}, "step must be positive"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        QuantizingWrapper(Coordinates(), **settings)


def test_a_module_without_a_vector_is_refused() -> None:
    with pytest.raises(SpecError, match="one parameter vector or subspace_params; Linear has 0"):
        QuantizingWrapper(nn.Linear(2, 2))


def test_two_vectors_need_a_choice() -> None:
    both = nn.ModuleDict({"a": Coordinates(), "b": Coordinates()})
    with pytest.raises(SpecError, match="ModuleDict has 2"):
        QuantizingWrapper(both)


def test_another_parameter_is_named() -> None:
    module = nn.Linear(3, 2)
    found = QuantizingWrapper(module, "bias", levels=3).finish()
    assert np.array_equal(module.bias.detach().numpy(), found.values)
