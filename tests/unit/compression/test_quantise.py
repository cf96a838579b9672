"""Quantisers: symbols by hand, the published counts, and least error."""

import numpy as np
import pytest

from hylorada.compression.quantise import exact, fitted, kmeans, symmetric, uniform
from hylorada.errors import SpecError

QUANTISERS = {
    "uniform": uniform,
    "kmeans": kmeans,
    "fitted": fitted,
    "symmetric": lambda vector, levels: symmetric(vector, 0.4, levels // 2),
}


def normal(count: int = 500) -> np.ndarray:
    """Return standard normal numbers in float32."""
    return np.random.default_rng(0).normal(size=count).astype(np.float32)


def squared_error(vector: np.ndarray, values: np.ndarray) -> float:
    """Return the sum of squared differences."""
    return float(np.sum((vector.astype(np.float64) - values) ** 2))


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize("vector", [[], [0.0], [-3.0], [0.0, 0.0], [1e-3, -1e-3], [5.0] * 4])
def test_edges_give_a_symbol_for_each_coordinate(name: str, vector: list[float]) -> None:
    found = QUANTISERS[name](np.array(vector), 5)
    assert found.symbols.dtype == np.int32
    assert len(found.values) == len(vector)
    assert sum(found.counts) == len(vector)
    assert found.codebook.levels == 5


@pytest.mark.parametrize("name", QUANTISERS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    with pytest.raises(SpecError, match="must be finite"):
        QUANTISERS[name](np.array([0.0, value]), 5)


# Uniform bins


def test_the_published_counts_of_a_sine() -> None:
    counts = uniform(np.sin(np.arange(1000.0)), 11).counts
    assert counts == [194, 86, 70, 61, 59, 61, 59, 61, 68, 88, 193]


def test_a_bin_stands_for_its_mean_and_an_empty_one_for_its_left_edge() -> None:
    found = uniform(np.array([-1.0, -0.75, 1.0]), 4)
    assert found.symbols.tolist() == [0, 0, 3]
    expected = [-0.875, -(1 + 1e-6) / 2, 0.0, 1.0]
    assert found.codebook.values.tolist() == [float(np.float16(value)) for value in expected]


def test_one_level_is_the_mean() -> None:
    assert uniform(np.array([1.0, 2.0, 6.0]), 1).values.tolist() == [3.0] * 3


# k-means


def test_kmeans_finds_clusters() -> None:
    vector = np.array([-1.0, -1.25, 0.0, 0.25, 4.0])
    assert kmeans(vector, 3).values.tolist() == [-1.125, -1.125, 0.125, 0.125, 4.0]


def test_every_centre_is_the_mean_of_what_is_nearest_to_it() -> None:
    vector = normal().astype(np.float64)
    found = kmeans(vector, 7)
    distances = np.abs(vector[:, None] - found.codebook.values)
    assert np.array_equal(distances.argmin(axis=1), found.symbols)
    means = [vector[found.symbols == level].mean() for level in range(7)]
    assert found.codebook.values == pytest.approx(means, rel=1e-3, abs=1e-4)


def test_kmeans_errs_less_than_uniform_bins() -> None:
    vector = normal()
    errors = [squared_error(vector, method(vector, 11).values) for method in (kmeans, uniform)]
    assert errors[0] < 0.7 * errors[1]


# One step


def test_symbols_are_the_nearest_multiples() -> None:
    found = symmetric(np.array([0.24, 0.26, -0.74, -0.76, 9.0]), 0.5, 2)
    assert (found.symbols - 2).tolist() == [0, 1, -1, -2, 2]
    assert found.values.tolist() == [0.0, 0.5, -0.5, -1.0, 1.0]


def test_a_dead_zone_begins_every_bin_later() -> None:
    found = symmetric(np.array([0.34, 0.36, -0.84, -0.86]), 0.5, 2, dead_zone=0.2)
    assert (found.symbols - 2).tolist() == [0, 1, -1, -2]


@pytest.mark.parametrize("dead_zone", [-0.1, 0.6])
def test_a_dead_zone_is_at_most_half_a_step(dead_zone: float) -> None:
    with pytest.raises(SpecError, match="dead_zone must lie between 0 and"):
        symmetric(np.zeros(1), 1.0, 1, dead_zone)


def test_fitted_finds_the_scale_of_signs() -> None:
    found = fitted(np.array([0.5, -0.5, 0.0, 0.5]), 3)
    assert found.codebook.step == 0.5


def test_fitted_is_the_least_of_neighbouring_steps() -> None:
    vector = normal()
    found = fitted(vector, 7)
    assert found.codebook.step is not None
    for factor in (0.8, 1.25):
        other = symmetric(vector, found.codebook.step * factor, 3)
        assert squared_error(vector, found.values) < squared_error(vector, other.values)


def test_an_even_number_of_levels_has_no_middle() -> None:
    with pytest.raises(SpecError, match="odd number of levels; got 4"):
        fitted(np.zeros(1), 4)


# Exactly


@pytest.mark.parametrize("levels", [1, 3, 7, 255])
def test_multiples_of_a_step_are_recognised(levels: int) -> None:
    vector = symmetric(normal(), 0.05, levels // 2).values
    found = exact(vector)
    assert found is not None
    assert found.codebook.step is not None
    assert np.array_equal(found.values, vector)


def test_multiples_without_the_first_are_recognised() -> None:
    found = exact(np.array([1.0, 1.5, -1.0], dtype=np.float32))
    assert found is not None
    assert found.codebook.step == 0.5
    assert (found.symbols - 3).tolist() == [2, 3, -2]


def test_a_list_of_float16_numbers_is_recognised() -> None:
    vector = kmeans(normal(), 11).values
    found = exact(vector)
    assert found is not None
    assert found.codebook.step is None
    assert np.array_equal(found.values, vector)


@pytest.mark.parametrize(
    "vector", [normal(), np.array([0.1, 0.0], np.float32), np.arange(300, dtype=np.float32) / 256]
)
def test_what_no_message_holds_is_not_exact(vector: np.ndarray) -> None:
    assert exact(vector) is None


def test_an_empty_vector_is_exact() -> None:
    found = exact(np.zeros(0, dtype=np.float32))
    assert found is not None
    assert found.counts == [0]
