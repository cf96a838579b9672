"""How the coordinates are divided between A and B."""

import math

import pytest
import torch

from hylorada.errors import SpecError
from hylorada.specs.adapters import SubspaceFields
from hylorada.subspace.allocation import REST, Allocation, Target, natural_order, proportional
from hylorada.subspace.projections import PROJECTIONS, build_projection


def paper_targets(fused: bool) -> list[Target]:
    """Return the factors of GPT-2 small with rank 4 on q, v and the head, as names and shapes."""
    targets = []
    for layer in range(12):
        names = {"c_attn": 2304} if fused else {"q": 768, "v": 768}
        for name, rows in names.items():
            stem, group = f"h.{layer}.attn.{name}", f"h.{layer}"
            targets += [
                Target(name=f"{stem}.A", shape=(4, 768), factor="A", layer=group),
                Target(name=f"{stem}.B", shape=(rows, 4), factor="B", layer=group),
            ]
    return [
        *targets,
        Target(name="lm_head.A", shape=(4, 768), factor="A"),
        Target(name="lm_head.B", shape=(50304, 4), factor="B"),
    ]


@pytest.mark.parametrize(("fused", "a_size"), [(False, 76_800), (True, 39_936)])
def test_gpt2_small_has_the_parameters_of_the_paper(fused: bool, a_size: int) -> None:
    allocation = Allocation(paper_targets(fused), SubspaceFields(allocation_mode="fixed"))
    assert allocation.full == allocation.projection.full == 351_744
    assert allocation.a_size == a_size
    assert allocation.full - allocation.a_size == {76_800: 274_944, 39_936: 311_808}[a_size]


@pytest.mark.parametrize(
    ("dim", "ratio", "split"),
    [(1000, 0.2, (800, 200)), (1000, 0.8, (200, 800)), (100, 0.29, (71, 29)), (3, 0.5, (2, 1))],
)
def test_the_ratio_is_the_share_of_b(dim: int, ratio: float, split: tuple[int, int]) -> None:
    assert (
        SubspaceFields(intrinsic_dim=dim, allocation_mode="fixed", allocation_ratio=ratio).split()
        == split
    )


def test_fixed_moves_a_by_the_first_coordinates_and_b_by_the_others() -> None:
    spec = SubspaceFields(intrinsic_dim=10, allocation_mode="fixed", allocation_ratio=0.4)
    targets = [Target(name=f"m.{f}", shape=(4, 5), factor=f) for f in "BA"]
    allocation = Allocation(targets, spec)
    assert [target.name for target in allocation.layout] == ["m.A", "m.B"]
    w = torch.zeros(10)
    w[5] = 1.0
    moved = allocation.projection.apply(w)
    assert bool(moved[:20].any())
    assert not bool(moved[20:].any())
    w = torch.zeros(10)
    w[6] = 1.0
    moved = allocation.projection.apply(w)
    assert not bool(moved[:20].any())
    assert bool(moved[20:].any())


def test_uniform_moves_both_factors_by_every_coordinate() -> None:
    targets = [Target(name=f"m.{f}", shape=(30, 30), factor=f) for f in "AB"]
    allocation = Allocation(targets, SubspaceFields(intrinsic_dim=5))
    for column in torch.eye(5):
        moved = allocation.projection.apply(column)
        assert bool(moved[:900].any())
        assert bool(moved[900:].any())


def test_learned_slices_are_proportional_to_the_layers_and_sum_to_the_dimension() -> None:
    allocation = Allocation(paper_targets(True), SubspaceFields(allocation_mode="learned"))
    sizes = allocation.slices
    # A layer has 12,288 of 351,744 parameters: 34.9 coordinates; the head has 580.8.
    assert sizes == {f"h.{layer}": 35 for layer in range(12)} | {REST: 580}
    assert list(sizes)[-1] == REST


def test_a_slice_never_exceeds_its_smaller_factor() -> None:
    allocation = Allocation(
        paper_targets(True), SubspaceFields(intrinsic_dim=20_000, allocation_mode="learned")
    )
    sizes = allocation.slices
    assert sizes[REST] == 3072
    assert sum(sizes.values()) == 20_000
    assert {size for layer, size in sizes.items() if layer != REST} == {1410, 1411}


@pytest.mark.parametrize(
    ("weights", "total", "capacities", "sizes"),
    [
        ([1, 1, 1], 3, [9, 9, 9], (1, 1, 1)),
        ([1, 1, 1], 5, [9, 9, 9], (2, 2, 1)),
        ([1000, 1], 10, [99, 99], (9, 1)),
        ([8, 1, 1], 20, [4, 99, 99], (4, 8, 8)),
        ([5], 7, [7], (7,)),
    ],
)
def test_sizes_are_proportional_between_one_and_capacity(
    weights: list[int], total: int, capacities: list[int], sizes: tuple[int, ...]
) -> None:
    assert proportional(weights, total, capacities) == sizes


@pytest.mark.parametrize("total", [1, 9])
def test_what_the_layers_cannot_hold_is_refused(total: int) -> None:
    with pytest.raises(SpecError, match=f"between the 2 layers and the 8 parameters.*got {total}"):
        proportional([1, 1], total, [4, 4])


def learned(**changes: float | bool) -> Allocation:
    targets = [
        Target(name=f"{layer}.{f}", shape=(4, 4), factor=f, layer=layer)
        for layer in ("0", "1")
        for f in "AB"
    ]
    return Allocation(
        targets, SubspaceFields(intrinsic_dim=10, allocation_mode="learned", **changes)
    )


def test_the_mask_is_a_sigmoid_of_the_distance_to_the_gate() -> None:
    gates = torch.tensor([0.3, -1.2])
    mask = learned().mask(gates)
    for layer, logit in enumerate(gates.tolist()):
        share = 1 / (1 + math.exp(-logit))
        expected = [1 / (1 + math.exp(-10 * (share * 5 - i))) for i in range(5)]
        assert mask[5 * layer : 5 * layer + 5].tolist() == pytest.approx(expected, abs=1e-5)


def test_relative_sharpness_is_counted_per_slice() -> None:
    gates = torch.tensor([0.3, -1.2])
    soft = learned(relative_sharpness=True, gate_sharpness=10.0).mask(gates)
    torch.testing.assert_close(soft, learned(gate_sharpness=2.0).mask(gates))


def test_masked_copies_of_the_vector_go_to_a_and_to_b() -> None:
    allocation, w, gates = learned(), torch.arange(10.0), torch.tensor([0.0, 1.0])
    to_a, to_b = allocation.coordinates(w, gates).chunk(2)
    torch.testing.assert_close(to_a + to_b, w)
    torch.testing.assert_close(to_b, w * allocation.mask(gates))


def test_gates_have_right_gradients() -> None:
    allocation = learned(relative_sharpness=True)
    w = torch.linspace(-1, 1, 10, dtype=torch.float64)
    gates = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: allocation.coordinates(w, g), (gates,))


@pytest.mark.parametrize("mode", ["uniform", "fixed", "learned"])
def test_no_two_factors_of_any_layers_move_alike(mode: str) -> None:
    targets = [
        Target(name=f"{layer}.{f}", shape=(4, 512), factor=f, layer=layer)
        for layer in ("0", "1", "2")
        for f in "AB"
    ]
    allocation = Allocation(targets, SubspaceFields(intrinsic_dim=90, allocation_mode=mode))
    # The same numbers for all, so that equal projections would show.
    w = torch.cat([torch.linspace(-1, 1, 30)] * 3)
    inner = torch.cat([w, w]) if mode == "learned" else w
    moved = torch.stack(list(allocation.projection.apply(inner).split(2048)))
    cosines = torch.corrcoef(moved) - torch.eye(6)
    assert float(cosines.abs().max()) < 5 / math.sqrt(2048)


def test_tensors_that_are_neither_factor_are_counted_with_a() -> None:
    targets = [
        Target(name="x.A", shape=(2, 8), factor="A"),
        Target(name="x.B", shape=(8, 2), factor="B"),
        Target(name="landmarks", shape=(3, 5)),
    ]
    allocation = Allocation(targets, SubspaceFields(intrinsic_dim=8, allocation_mode="fixed"))
    assert allocation.a_size == 16 + 15


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_one_projection_for_all_is_taken_as_it_is_drawn(kind: str) -> None:
    spec = SubspaceFields(intrinsic_dim=7, projection=kind)
    found = Allocation([Target("m.A", (4, 5), "A"), Target("m.B", (5, 4), "B")], spec).projection
    drawn = build_projection(kind, 40, 7, seed=spec.projection_seed, name="all", factor="AB")
    assert found.fingerprint() == drawn.fingerprint()


def test_the_order_of_the_modules_does_not_matter() -> None:
    targets = paper_targets(False)
    spec = SubspaceFields(allocation_mode="learned")
    forwards, backwards = Allocation(targets, spec), Allocation(targets[::-1], spec)
    assert forwards.describe() == backwards.describe()
    names = ["h.10.x", "h.2.x", "h.x", "a"]
    assert sorted(names, key=natural_order) == ["a", "h.2.x", "h.10.x", "h.x"]


def test_an_unknown_mode_is_an_error_that_lists_the_modes() -> None:
    with pytest.raises(SpecError, match=r"uniform, fixed, learned; got 'learnt'; did you mean"):
        SubspaceFields(allocation_mode="learnt").check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intrinsic_dim": 0}, "intrinsic_dim must be at least 1; got 0"),
        ({"allocation_ratio": 0.0}, "B's share, strictly between 0 and 1; got 0"),
        ({"allocation_ratio": 1.0}, "B's share, strictly between 0 and 1; got 1"),
        (
            {"allocation_mode": "fixed", "intrinsic_dim": 2, "allocation_ratio": 0.1},
            "leave a coordinate to A and one to B",
        ),
        ({"gate_sharpness": 0.0}, "gate_sharpness must be positive"),
        ({"gate_sharpness_start": -1.0}, "gate_sharpness_start must be positive"),
        ({"projection_seed": -1}, "projection_seed must not be negative"),
        ({"projection": "gaussian"}, "unknown projection 'gaussian'"),
    ],
)
def test_settings_that_break_a_rule_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Allocation(paper_targets(False), SubspaceFields(**changes))


@pytest.mark.parametrize("mode", ["fixed", "learned"])
@pytest.mark.parametrize("factor", ["A", "B", ""])
def test_modes_that_divide_need_both_factors(mode: str, factor: str) -> None:
    targets = [Target(name="weight", shape=(4, 4), factor=factor)]
    with pytest.raises(SpecError, match="between factors A and B, and there are none among weight"):
        Allocation(targets, SubspaceFields(intrinsic_dim=4, allocation_mode=mode))


def test_learned_needs_both_factors_in_every_group() -> None:
    targets = [
        Target(name="0.A", shape=(4, 4), factor="A", layer="0"),
        Target(name="0.B", shape=(4, 4), factor="B", layer="0"),
        Target(name="landmarks", shape=(4, 4)),
    ]
    with pytest.raises(SpecError, match="'rest' has only A; use 'fixed' or 'uniform'"):
        Allocation(targets, SubspaceFields(intrinsic_dim=4, allocation_mode="learned"))


def test_no_tensors_are_refused() -> None:
    with pytest.raises(SpecError, match="at least one tensor to move; got none"):
        Allocation([], SubspaceFields())
