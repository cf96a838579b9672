"""Position buckets: hand-computed tables, and no bucket that a position cannot reach."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hylorada import SpecError
from hylorada.adapters.positions import bucket_table, read_bucket


def test_uniform_buckets_are_equal_parts() -> None:
    assert bucket_table("uniform", 4, 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_uniform_buckets_differ_by_one_position_at_most() -> None:
    # floor(p * 3 / 8)
    assert bucket_table("uniform", 3, 8).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_logarithmic_buckets_are_exact_and_then_grow() -> None:
    # h = 2: 0, 1, then 2 + floor(2 ln(p/2) / ln(16/2)): ln(p/2)/ln(8) reaches 1/2 at p = 5.66
    table = bucket_table("log", 4, 16)
    assert table.tolist() == [0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]


def test_the_default_landmark_table_has_its_documented_values() -> None:
    table = bucket_table("log", 32, 1024)
    assert table[:17].tolist() == list(range(17))
    # 16 + floor(16 ln(p/16) / ln(64)): p = 32 gives 16 / 6, p = 1023 just below 16
    assert table[32] == 18
    assert table[128] == 16 + 8
    assert table[1023] == 31


def test_a_context_too_short_for_the_logarithm_is_cut_evenly() -> None:
    # h = 16 exact buckets, then 16 logarithmic ones in 17 positions would leap over one.
    assert torch.equal(bucket_table("log", 32, 33), bucket_table("uniform", 32, 33))


def test_with_fewer_positions_than_buckets_each_position_has_its_own() -> None:
    assert bucket_table("log", 32, 5).tolist() == [0, 1, 2, 3, 4]
    assert bucket_table("uniform", 32, 5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("spacing", ["log", "uniform"])
def test_one_bucket_takes_every_position(spacing: str) -> None:
    assert bucket_table(spacing, 1, 9).tolist() == [0] * 9


@pytest.mark.parametrize("spacing", ["log", "uniform"])
def test_one_position_needs_one_bucket(spacing: str) -> None:
    assert bucket_table(spacing, 8, 1).tolist() == [0]


@given(st.sampled_from(["log", "uniform"]), st.integers(1, 300), st.integers(1, 5000))
def test_every_bucket_is_reached_in_order(spacing: str, buckets: int, positions: int) -> None:
    table = bucket_table(spacing, buckets, positions)
    steps = table.diff()
    assert len(table) == positions
    assert table[0] == 0
    assert ((steps == 0) | (steps == 1)).all()
    assert table[-1] == min(buckets, positions) - 1


@given(st.integers(2, 64), st.integers(1, 64))
def test_logarithmic_buckets_follow_the_formula_where_none_is_skipped(
    buckets: int, factor: int
) -> None:
    positions = buckets * 16 * factor
    exact = buckets // 2
    p = torch.arange(exact, positions, dtype=torch.float64)
    growth = (buckets - exact) * (p / exact).log() / torch.tensor(positions / exact).double().log()
    formula = (exact + growth.floor()).clamp(max=buckets - 1)
    found = bucket_table("log", buckets, positions)[exact:]
    # Rounding may move a position that lies exactly on a boundary.
    boundary = (growth - growth.round()).abs() < 1e-6
    assert ((found == formula) | boundary).all()


def test_reading_keeps_the_shape_and_clamps_beyond_the_table() -> None:
    table = bucket_table("uniform", 4, 8)
    positions = torch.tensor([[0, 3], [7, 100]])
    assert read_bucket(table, positions).tolist() == [[0, 1], [3, 3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cubic", 4, 8), r"log, uniform.*'cubic'"),
        (("log", 0, 8), "at least 1; got 0"),
        (("log", 4, 0), "max_positions must be at least 1.*got 0"),
    ],
)
def test_settings_without_a_bucket_are_refused(
    arguments: tuple[str, int, int], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        bucket_table(*arguments)
