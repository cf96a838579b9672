"""Any module in a random subspace."""

import copy

import pytest
import torch
from peft import get_peft_model
from torch import nn

from hylorada.errors import SpecError
from hylorada.specs.adapters import SubspaceFields
from hylorada.subspace import IDModule, StructuredIDModule, create_intrinsic_model
from tests.families import build, logits, perturb, settings, tokens, trainable
from tests.unit.subspace.small import MODES, Stack

X = torch.linspace(-1, 1, 12).view(2, 6)


def moved(module: IDModule) -> IDModule:
    with torch.no_grad():
        values = torch.linspace(-1, 1, module.subspace_params.numel())
        module.subspace_params.copy_(values)
    return module


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_starts_at_the_module_and_trains_one_tensor(mode: str) -> None:
    module = Stack().eval()
    expected = module(X)
    wrapped = create_intrinsic_model(module, 12, mode)
    assert torch.equal(wrapped(X), expected)
    assert wrapped.subspace_params.shape == (12,)
    assert not bool(wrapped.subspace_params.any())
    names = ["subspace.vector"] + (["subspace.gates"] if mode == "learned" else [])
    assert list(trainable(wrapped)) == names


def test_modes_are_classes() -> None:
    assert type(create_intrinsic_model(Stack(), 12)) is IDModule
    fixed = create_intrinsic_model(Stack(), 12, "fixed", allocation_ratio=0.25)
    assert isinstance(fixed, StructuredIDModule)
    assert fixed.gates is None
    assert fixed.shares() == {}
    assert fixed.subspace.allocation.settings.split() == (9, 3)
    with pytest.raises(SpecError, match="'uniform' has no structure; use IDModule"):
        StructuredIDModule(Stack(), SubspaceFields(intrinsic_dim=4))


def test_the_module_is_called_with_its_tensors_moved_and_keeps_its_own() -> None:
    module = Stack().eval()
    before = copy.deepcopy(module.state_dict())
    wrapped = moved(create_intrinsic_model(module, 12))
    found = wrapped(X)
    by_hand = copy.deepcopy(module)
    delta = wrapped.subspace.tensors()
    with torch.no_grad():
        for name, parameter in by_hand.named_parameters():
            if name in delta:
                parameter.add_(delta[name])
    assert set(delta) == {n for n, _ in module.named_parameters()} - {"frozen"}
    torch.testing.assert_close(found, by_hand(X))
    assert all(torch.equal(before[n], value) for n, value in module.state_dict().items())
    torch.testing.assert_close(wrapped.settled()(X), found)
    assert all(torch.equal(before[n], value) for n, value in module.state_dict().items())


def test_eval_reaches_every_dropout() -> None:
    wrapped = moved(create_intrinsic_model(Stack(), 12)).train()
    assert not torch.equal(wrapped(X), wrapped(X))
    wrapped.eval()
    assert torch.equal(wrapped(X), wrapped(X))


def test_layers_come_from_the_module_tree_and_the_rest_is_a_group() -> None:
    wrapped = create_intrinsic_model(Stack(), 12, "learned")
    assert isinstance(wrapped, StructuredIDModule)
    assert list(wrapped.shares()) == ["blocks.0", "blocks.1", "blocks.2", "rest"]
    assert list(wrapped.subspace.allocation.slices.values()) == [3, 3, 3, 3]


def test_a_task_that_needs_other_shares_moves_the_gates_apart() -> None:
    wrapped = create_intrinsic_model(Stack(width=8), 64, "learned")
    assert isinstance(wrapped, StructuredIDModule)
    start = {name: tensor.detach() for name, tensor in wrapped.generated().items()}
    # Layer 0 has to change A and keep B; layer 1 the other way round.
    wanted = {"blocks.0.lora_A": 1.0, "blocks.0.lora_B": 0.0}
    wanted |= {"blocks.1.lora_A": 0.0, "blocks.1.lora_B": 1.0}
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.05)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        found = wrapped.generated()
        errors = [found[name] - start[name] - change for name, change in wanted.items()]
        loss = torch.stack([error.square().mean() for error in errors]).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    shares = wrapped.shares()
    assert shares["blocks.0"] < 0.3
    assert shares["blocks.1"] > 0.7
    assert shares["blocks.2"] == shares["rest"] == 0.5


def test_factor_names_may_be_given() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Linear(6, 2, bias=False)
            self.up = nn.Linear(2, 6, bias=False)

    wrapped = create_intrinsic_model(Pair(), 6, "fixed", factors=("down", "up"))
    assert [target.factor for target in wrapped.subspace.allocation.layout] == ["A", "B"]
    with pytest.raises(SpecError, match="factors must be two words"):
        create_intrinsic_model(Pair(), 6, "fixed", factors=("down",))


@pytest.mark.parametrize("mode", ["fixed", "learned"])
def test_a_module_without_factors_is_refused_by_the_modes_that_divide(mode: str) -> None:
    with pytest.raises(SpecError, match="none among bias, weight"):
        create_intrinsic_model(nn.Linear(4, 4), 4, mode)
    assert create_intrinsic_model(nn.Linear(4, 4), 4)(torch.ones(1, 4)).shape == (1, 4)


def test_an_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(SpecError, match="uniform, fixed, learned; got 'learned_shared'"):
        create_intrinsic_model(Stack(), 12, "learned_shared")


def test_a_module_that_trains_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="Linear has none; set requires_grad"):
        create_intrinsic_model(nn.Linear(2, 2).requires_grad_(False), 2)


@pytest.mark.parametrize("mode", ["uniform", "fixed"])
def test_landmarks_and_position_bias_of_hylorada_move_too(mode: str) -> None:
    model = perturb(get_peft_model(build("gpt2"), settings()).eval())
    names = set(trainable(model))
    expected = logits(model, tokens())
    wrapped = create_intrinsic_model(model, 100, mode).eval()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(input_ids=tokens()).logits, expected)
    wrapped(input_ids=tokens(), labels=tokens()).loss.backward()
    assert bool(wrapped.subspace_params.grad is not None and wrapped.subspace_params.grad.any())
    moved(wrapped)
    changed = {name for name, delta in wrapped.subspace.tensors().items() if bool(delta.any())}
    assert changed == names
    assert any("landmarks" in name for name in changed)
    with torch.no_grad():
        found = wrapped(input_ids=tokens()).logits
    assert float((found - expected).abs().max()) > 1e-3
    torch.testing.assert_close(logits(wrapped.settled(), tokens()), found)
