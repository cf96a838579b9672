"""Random bits that every machine agrees on."""

import numpy as np
import pytest

from hylorada.seeds import CHUNK, BitStream


def test_the_raw_stream_is_philox_keyed_by_a_hash_of_seed_and_names() -> None:
    assert BitStream(1, "a").raw(3).tolist() == BitStream(1, "a").raw(3).tolist()
    names = [(1, "a"), (2, "a"), (1, "b"), (1, "a", "b"), (1, "a", 1)]
    firsts = {int(BitStream(*name).raw(1)[0]) for name in names}
    assert len(firsts) == len(names)


def test_a_stream_continues() -> None:
    stream = BitStream(1, "a")
    pieces = [*stream.raw(2), *stream.raw(3)]
    assert pieces == BitStream(1, "a").raw(5).tolist()


def test_a_permutation_holds_each_number_once() -> None:
    assert sorted(BitStream(0).permutation(57).tolist()) == list(range(57))
    assert BitStream(0).permutation(0).tolist() == []


def test_integers_stay_below_their_bounds_and_reach_all_values() -> None:
    bounds = np.tile(np.array([1, 2, 5], dtype=np.int64), 200)
    drawn = BitStream(0).below(bounds).reshape(200, 3)
    assert [sorted(set(column)) for column in drawn.T.tolist()] == [[0], [0, 1], [0, 1, 2, 3, 4]]


def test_signs_are_both_signs() -> None:
    drawn = BitStream(0).signs(20, 50)
    assert drawn.shape == (20, 50)
    assert set(drawn.flatten().tolist()) == {-1, 1}
    assert abs(float(drawn.mean())) < 5 / np.sqrt(1000)


def test_uniforms_lie_in_the_unit_interval() -> None:
    drawn = BitStream(0).uniform(4000)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=5 / np.sqrt(12 * 4000))


def test_normals_have_mean_zero_and_variance_one() -> None:
    drawn = BitStream(0).normal(200, 500)
    count = drawn.size
    assert drawn.mean() == pytest.approx(0, abs=5 / np.sqrt(count))
    assert drawn.var() == pytest.approx(1, abs=5 * np.sqrt(2 / count))
    assert np.abs(drawn).max() < 6


def test_a_normal_is_the_sum_of_twelve_halfwords() -> None:
    words = BitStream(3, "x").raw(3).astype("<u8").view("<u2").astype(np.int64)
    expected = (int(words.sum()) - 6 * (2**16 - 1)) / 2**16
    assert BitStream(3, "x").normal(1).tolist() == [expected]


def test_long_draws_continue_over_chunks() -> None:
    long = BitStream(0).normal(CHUNK + 5)
    stream = BitStream(0)
    pieces = np.concatenate([stream.normal(CHUNK), stream.normal(5)])
    assert np.array_equal(long, pieces)
