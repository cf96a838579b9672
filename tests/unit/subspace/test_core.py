"""One vector for many tensors, generated and pulled back once per step."""

import copy
import pickle

import pytest
import torch
from accelerate.state import GradientState
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hylorada.errors import RunError
from hylorada.specs.adapters import SubspaceFields
from hylorada.subspace.allocation import Allocation, Target
from hylorada.subspace.core import Subspace
from tests.unit.subspace.small import MODES

SHAPES = {"0.A": (2, 6), "0.B": (6, 2), "1.A": (2, 6), "1.B": (6, 2)}


def subspace(mode: str = "uniform", **changes: float | bool) -> Subspace:
    targets = [
        Target(name=name, shape=shape, factor=name[-1], layer=name[0])
        for name, shape in SHAPES.items()
    ]
    allocation = Allocation(
        targets, SubspaceFields(intrinsic_dim=8, allocation_mode=mode, **changes)
    )
    start = [torch.full(t.shape, 0.5 if t.factor == "A" else 0.0) for t in allocation.layout]
    return Subspace(allocation, start)


def moved(mode: str = "uniform", **changes: float | bool) -> Subspace:
    found = subspace(mode, **changes)
    with torch.no_grad():
        found.vector.copy_(torch.linspace(-1, 1, 8))
    return found


def score(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return a number that depends on every tensor in its own way."""
    for layer in "01":
        x = x + (x @ tensors[f"{layer}.A"].t()).tanh() @ tensors[f"{layer}.B"].t()
    return x.square().sum()


def batches(count: int = 3) -> list[Tensor]:
    return list(torch.linspace(-1, 1, count * 12).view(count, 2, 6))


def plain_gradients(space: Subspace, xs: list[Tensor]) -> list[Tensor]:
    """Return the gradients that autograd finds through the plain map."""
    flat = space.generate()
    layout = space.allocation.layout
    pieces = flat.split([target.size for target in layout])
    pairs = zip(layout, pieces, strict=True)
    tensors = {target.name: piece.view(target.shape) for target, piece in pairs}
    total = torch.stack([score(tensors, x) for x in xs]).sum()
    return list(torch.autograd.grad(total, list(space.parameters())))


def gradients(space: Subspace) -> list[Tensor]:
    found = [parameter.grad for parameter in space.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("mode", MODES)
def test_the_start_is_the_initial_value_in_every_mode(mode: str) -> None:
    space = subspace(mode)
    assert space.vector.shape == (8,)
    assert not bool(space.vector.any())
    for name, tensor in space.tensors().items():
        assert tensor.shape == SHAPES[name]
        assert torch.equal(tensor, torch.full_like(tensor, 0.5 if name.endswith("A") else 0.0))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_plain_map(mode: str) -> None:
    space = moved(mode, relative_sharpness=True)
    expected = plain_gradients(space, batches(1))
    score(space.tensors(), batches(1)[0]).backward()
    for found, wanted in zip(gradients(space), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_accumulated_gradients_are_exact_with_one_projection_each_way(mode: str) -> None:
    space = moved(mode, relative_sharpness=True)
    expected = plain_gradients(space, batches(3))
    first, second, last = batches(3)
    with space.holding_gradients():
        for x in (first, second):
            score(space.tensors(), x).backward()
    assert not bool(gradients(space)[0].any())
    score(space.tensors(), last).backward()
    assert space.projections == {"apply": 1, "adjoint": 1}
    for found, wanted in zip(gradients(space), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_accelerate_says_which_backward_is_the_last() -> None:
    space = moved()
    expected = plain_gradients(space, batches(2))
    state = GradientState()
    try:
        state._set_sync_gradients(False)
        score(space.tensors(), batches(2)[0]).backward()
    finally:
        state._set_sync_gradients(True)
    score(space.tensors(), batches(2)[1]).backward()
    assert space.projections == {"apply": 1, "adjoint": 1}
    torch.testing.assert_close(gradients(space)[0], expected[0])


def test_a_loop_that_says_nothing_is_exact_too() -> None:
    space = moved()
    expected = plain_gradients(space, batches(2))
    for x in batches(2):
        score(space.tensors(), x).backward()
    torch.testing.assert_close(gradients(space)[0], expected[0])
    assert space.projections == {"apply": 2, "adjoint": 2}


def test_two_passes_may_come_before_their_backwards() -> None:
    space = moved()
    expected = plain_gradients(space, batches(2))
    first, second = (score(space.tensors(), x) for x in batches(2))
    first.backward()
    second.backward()
    torch.testing.assert_close(gradients(space)[0], expected[0])


def test_zeroed_gradients_take_what_was_held_with_them() -> None:
    space = moved()
    expected = plain_gradients(space, batches(1))
    with space.holding_gradients():
        score(space.tensors(), batches(3)[2]).backward()
    space.zero_grad()
    score(space.tensors(), batches(1)[0]).backward()
    torch.testing.assert_close(gradients(space)[0], expected[0])


def test_a_step_over_held_gradients_is_an_error() -> None:
    space = moved()
    with space.holding_gradients():
        score(space.tensors(), batches(1)[0]).backward()
    torch.optim.AdamW(space.parameters()).step()
    with pytest.raises(RunError, match="while gradients of a micro-batch were waiting"):
        space.tensors()


def test_tensors_follow_the_vector() -> None:
    space = subspace()
    with torch.no_grad():
        before = space.tensors()["0.A"].clone()
        space.vector.add_(1.0)
        after = space.tensors()["0.A"]
        assert not torch.equal(before, after)
        again = space.tensors()["0.A"]
    assert again is after
    assert space.projections["apply"] == 2


def test_a_write_that_hides_its_version_is_seen_by_the_next_step() -> None:
    space = moved()
    score(space.tensors(), batches(1)[0]).backward()
    before = space.tensors()["0.A"].detach().clone()
    score(space.tensors(), batches(1)[0]).backward()
    space.vector.data.mul_(2)  # as optimisers that write through raw pointers do
    assert not torch.equal(space.tensors()["0.A"], before)


def test_one_cast_serves_all_tensors_of_a_dtype() -> None:
    space = moved()
    low = space.tensors(torch.bfloat16)
    assert {tensor.dtype for tensor in low.values()} == {torch.bfloat16}
    exact = space.tensors()
    for name, tensor in low.items():
        torch.testing.assert_close(tensor, exact[name].bfloat16())
    assert space.projections["apply"] == 1
    (score(low, batches(1)[0].bfloat16()).float() + score(exact, batches(1)[0])).backward()
    assert space.projections["adjoint"] == 1


def test_inference_mode_does_not_leak_into_training() -> None:
    space = moved()
    with torch.inference_mode():
        space.tensors()
    score(space.tensors(), batches(1)[0]).backward()
    space.requires_grad_(False)
    with torch.inference_mode():
        space.tensors()
    x = batches(1)[0].requires_grad_()
    score(space.tensors(), x).backward()
    assert x.grad is not None


@pytest.mark.parametrize("mode", MODES)
def test_a_parametrized_vector_is_what_is_projected(mode: str) -> None:
    class Half(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value / 2

    plain, halved = moved(mode), moved(mode)
    with torch.no_grad():
        plain.vector.div_(2)
    parametrize.register_parametrization(halved, "vector", Half())
    assert torch.equal(halved.tensors()["1.B"], plain.tensors()["1.B"])
    with halved.holding_gradients():
        score(halved.tensors(), batches(2)[0]).backward()
    score(halved.tensors(), batches(2)[1]).backward()
    expected = plain_gradients(plain, batches(2))[0]
    original = halved.get_parameter("parametrizations.vector.original")
    assert original.grad is not None
    torch.testing.assert_close(original.grad, expected / 2)
    copied = copy.deepcopy(halved)
    assert torch.equal(copied.tensors()["1.B"], plain.tensors()["1.B"])


def test_copies_and_pickles_have_their_own_coordinates() -> None:
    space = moved("learned")
    score(space.tensors(), batches(1)[0]).backward()
    space.tensors()
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert torch.equal(other.tensors()["0.B"], space.tensors()["0.B"])
        with torch.no_grad():
            other.vector.zero_()
        assert not torch.equal(other.tensors()["0.B"], space.tensors()["0.B"])


def test_the_fingerprint_tells_of_all_that_decides_the_tensors() -> None:
    prints = {
        subspace().fingerprint(),
        subspace("fixed").fingerprint(),
        subspace("fixed", allocation_ratio=0.25).fingerprint(),
        subspace("learned").fingerprint(),
        subspace("learned", gate_sharpness=5.0).fingerprint(),
        subspace("learned", relative_sharpness=True).fingerprint(),
        subspace(projection_seed=1).fingerprint(),
        subspace().fingerprint("scaling 2"),
    }
    assert len(prints) == 8
    assert moved().fingerprint() == subspace().fingerprint()
    other = subspace()
    assert other.initial is not None
    other.initial[0] += 1e-3
    assert other.fingerprint() != subspace().fingerprint()


def test_sharpness_moves_geometrically_with_progress() -> None:
    space = moved("learned", gate_sharpness=16.0, gate_sharpness_start=1.0)
    assert space.sharpness == 16.0
    sharp = space.tensors()["0.B"].clone()
    space.progress = 0.0
    assert space.sharpness == 1.0
    assert not torch.equal(space.tensors()["0.B"], sharp)
    space.progress = 0.5
    assert space.sharpness == pytest.approx(4.0)


def test_shares_are_half_at_the_start_and_absent_without_gates() -> None:
    assert subspace("learned").shares() == {"0": 0.5, "1": 0.5}
    assert subspace("fixed").shares() == {}


def test_the_gradient_of_the_parameters_is_kept_on_request() -> None:
    space = moved()
    score(space.tensors(), batches(1)[0]).backward()
    assert space.gradient is None
    space.keeps_gradient = True
    score(space.tensors(), batches(1)[0]).backward()
    kept = space.gradient
    assert kept is not None
    projected = space.allocation.projection.adjoint(kept)
    torch.testing.assert_close(2 * projected, gradients(space)[0])
