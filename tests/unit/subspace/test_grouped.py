"""Every parameter reads one coordinate; groups are balanced."""

import numpy as np
import pytest
import torch

from hylorada.seeds import BitStream
from hylorada.subspace.projections import PROJECTIONS

Grouped = PROJECTIONS["grouped"]


def test_each_parameter_reads_its_coordinate_over_the_root_of_the_group() -> None:
    projection = Grouped(np.array([2, 0, 2, 1, 2, 2]), 3)
    w = torch.tensor([10.0, 20.0, 30.0])
    assert projection.apply(w).tolist() == [15.0, 10.0, 15.0, 20.0, 15.0, 15.0]
    theta = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert projection.adjoint(theta).tolist() == [2.0, 4.0, (1 + 3 + 5 + 6) / 2]


@pytest.mark.parametrize(("full", "dim"), [(10, 3), (12, 4), (7, 7), (1, 1)])
def test_groups_differ_in_size_by_at_most_one_and_none_is_empty(full: int, dim: int) -> None:
    drawn = Grouped.draw(full, dim, BitStream(0, "groups"))
    sizes = torch.bincount(drawn.tensors["index"], minlength=dim)
    assert int(sizes.sum()) == full
    assert int(sizes.min()) == full // dim
    assert int(sizes.max()) == -(-full // dim)


def test_the_adjoint_sums_in_one_order() -> None:
    drawn = Grouped.draw(10_000, 13, BitStream(0, "groups"))
    theta = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn.adjoint(theta), drawn.adjoint(theta))
