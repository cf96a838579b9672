"""What every projection must satisfy; a new kind joins by registering itself."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.subspace.projections import (
    PROJECTIONS,
    Projection,
    RandomProjection,
    build_projection,
)

KINDS = tuple(PROJECTIONS)
EXPECTED = tuple(kind for kind in KINDS if PROJECTIONS[kind].isometry == "expected")
UNIT_COLUMNS = ("sparse", "kron_qr", "fastfood", "grouped")
# One of each, both equal, just above a power of two, primes, one coordinate, more rows than √.
SIZES = [(1, 1), (64, 64), (97, 50), (130, 129), (1000, 1), (101, 7), (4099, 33)]


def drawn(
    kind: str, full: int, dim: int, name: str = "layer", factor: str = "A"
) -> RandomProjection:
    return build_projection(kind, full, dim, seed=5, name=name, factor=factor)


def matrix(projection: Projection) -> Tensor:
    """Return the dense matrix in float64, column by column."""
    unit = torch.eye(projection.dim, dtype=torch.float64)
    return torch.stack([projection.apply(column) for column in unit], dim=1)


@pytest.fixture(params=[(kind, *size) for kind in KINDS for size in SIZES], ids=str)
def projection(request: pytest.FixtureRequest) -> RandomProjection:
    return drawn(*request.param)


def test_apply_is_the_matrix_product(projection: Projection) -> None:
    w = torch.linspace(-1, 1, projection.dim, dtype=torch.float64)
    expected = matrix(projection) @ w
    assert expected.shape == (projection.full,)
    torch.testing.assert_close(projection.apply(w), expected)
    low = projection.apply(w.float())
    torch.testing.assert_close(low, expected.float(), atol=1e-5, rtol=1e-4)


def test_the_adjoint_is_the_transpose(projection: Projection) -> None:
    theta = torch.linspace(0, 2, projection.full, dtype=torch.float64)
    torch.testing.assert_close(projection.adjoint(theta), matrix(projection).t() @ theta)


def test_columns_are_orthonormal_where_that_is_claimed(projection: RandomProjection) -> None:
    columns = matrix(projection)
    if projection.isometry == "exact":
        gram = columns.t() @ columns
        assert float((gram - torch.eye(projection.dim)).abs().max()) < 1e-5
    if projection.name in UNIT_COLUMNS:
        assert float((columns.norm(dim=0) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", EXPECTED)
def test_columns_are_orthonormal_on_average_elsewhere(kind: str) -> None:
    draws = 100
    grams = torch.zeros(4, 4, dtype=torch.float64)
    for seed in range(draws):
        columns = matrix(build_projection(kind, 37, 4, seed=seed, name="x", factor="A"))
        grams += columns.t() @ columns / draws
    # An entry of one draw has variance of about 1/37.
    assert float((grams - torch.eye(4)).abs().max()) < 5 * math.sqrt(2 / 37 / draws)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_first_and_second_order_are_right(kind: str) -> None:
    projection = drawn(kind, 23, 6)
    w = torch.linspace(-1, 1, 6, dtype=torch.float64, requires_grad=True)
    theta = torch.linspace(-1, 2, 23, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(projection.apply, (w,))
    assert torch.autograd.gradcheck(projection.adjoint, (theta,))
    assert torch.autograd.gradgradcheck(projection.apply, (w,))


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_factors_and_seeds_give_unrelated_matrices(kind: str) -> None:
    full, w = 6144, torch.linspace(-1, 1, 35)
    variants = [
        build_projection(kind, full, 35, seed=seed, name=name, factor=factor).apply(w)
        for seed, name, factor in [(1, "0", "A"), (1, "0", "B"), (1, "1", "A"), (2, "0", "A")]
    ]
    cosines = torch.corrcoef(torch.stack(variants)) - torch.eye(4)
    assert float(cosines.abs().max()) < 5 / math.sqrt(full)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_names_give_the_same_bits(kind: str) -> None:
    first, second = drawn(kind, 300, 20), drawn(kind, 300, 20)
    w = torch.linspace(-1, 1, 20)
    assert torch.equal(first.apply(w), second.apply(w))
    assert first.fingerprint() == second.fingerprint()
    others = [drawn(kind, 301, 20), drawn(kind, 300, 21), drawn(kind, 300, 20, factor="B")]
    assert first.fingerprint() not in [other.fingerprint() for other in others]


@pytest.mark.parametrize("kind", KINDS)
def test_more_coordinates_than_parameters_are_refused(kind: str) -> None:
    with pytest.raises(SpecError, match="must not exceed the 9 parameters they move; got 10"):
        drawn(kind, 9, 10)
    with pytest.raises(SpecError, match="at least one coordinate; got 0"):
        drawn(kind, 9, 0)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"dense"}))
def test_only_dense_stores_a_matrix(kind: str) -> None:
    full, dim = 20_000, 500
    stored = drawn(kind, full, dim).stored_values()
    # sparse holds a row and a sign for each of √full entries a column.
    assert stored <= (2 * dim * math.isqrt(full) if kind == "sparse" else 6 * full)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_share_the_matrix_and_pickles_rebuild_it(kind: str) -> None:
    projection = drawn(kind, 60, 9)
    w = torch.linspace(-1, 1, 9)
    projection.apply(w)
    assert copy.deepcopy(projection) is projection
    assert torch.equal(pickle.loads(pickle.dumps(projection)).apply(w), projection.apply(w))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_side_by_side_are_block_diagonal(kind: str) -> None:
    blocks = [drawn(kind, 40, 7, name=name) for name in "abc"] + [drawn(kind, 11, 11)]
    joined = PROJECTIONS[kind].joined(blocks)
    expected = torch.block_diag(*(matrix(block) for block in blocks))
    torch.testing.assert_close(matrix(joined), expected)
    theta = torch.linspace(-1, 1, joined.full, dtype=torch.float64)
    torch.testing.assert_close(joined.adjoint(theta), expected.t() @ theta)
    assert joined.isometry == blocks[0].isometry
    other = PROJECTIONS[kind].joined([*blocks[:2], drawn(kind, 40, 7, name="d"), blocks[3]])
    assert joined.fingerprint() != other.fingerprint()


def test_an_unknown_kind_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown projection 'group'; did you mean 'grouped'"):
        build_projection("group", 10, 2, seed=0, name="x", factor="A")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_registered_with_what_lists_say_of_it(kind: str) -> None:
    registered = PROJECTIONS[kind]
    assert registered.name == kind
    assert registered.words
    assert registered.isometry in ("exact", "expected")
    assert isinstance(drawn(kind, 5, 2), registered)


def test_a_dense_matrix_that_fills_the_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="use projection='grouped'"):
        drawn("dense", 351_744, 50_000)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_holds_the_same_matrix(kind: str) -> None:
    projection = drawn(kind, 1000, 37)
    moved = projection.at(torch.device("cuda"))
    assert all(torch.equal(moved[n].cpu(), tensor) for n, tensor in projection.tensors.items())
