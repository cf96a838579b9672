"""Times become ratios to a reference; the order of the contestants is drawn anew each round."""

import time
from collections.abc import Callable
from functools import partial

import pytest

from hylorada.errors import SpecError
from hylorada_benches.timing import (
    interleave,
    least_ratios,
    places_for,
    race,
    race_in_places,
    ratios,
)


def test_every_contestant_runs_once_a_round_and_warmups_are_not_counted() -> None:
    calls: list[str] = []
    contestants = {name: partial(calls.append, name) for name in "abc"}
    times = race(contestants, rounds=4, warmups=2, seed=0)
    assert {name: len(each.wall) for name, each in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert {name: len(each.processor) for name, each in times.items()} == {"a": 4, "b": 4, "c": 4}
    rounds = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert len(rounds) == 6
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)


def test_the_order_changes_between_rounds_and_repeats_with_the_seed() -> None:
    def order(seed: int) -> list[str]:
        calls: list[str] = []
        contestants = {name: partial(calls.append, name) for name in "abcd"}
        interleave(contestants, rounds=5, warmups=0, seed=seed)
        return calls

    first = order(3)
    assert len({tuple(first[start : start + 4]) for start in range(0, 20, 4)}) > 1
    assert order(3) == first
    assert order(4) != first


def test_a_contestant_that_waits_is_timed_in_seconds() -> None:
    contestants = {"waits": partial(time.sleep, 0.02), "idle": lambda: None}
    times = race(contestants, rounds=2, warmups=0, seed=0)
    assert min(times["waits"].wall) >= 0.02
    assert min(times["idle"].wall) < 0.02


def test_interleaved_seconds_are_those_of_the_clock() -> None:
    seconds = interleave({"waits": partial(time.sleep, 0.02)}, rounds=2, warmups=0, seed=0)
    assert min(seconds["waits"]) >= 0.02


def test_waiting_takes_no_processor_time_and_counting_does() -> None:
    contestants = {"waits": partial(time.sleep, 0.05), "counts": lambda: sum(range(10**6)) and None}
    times = race(contestants, rounds=2, warmups=0, seed=0)
    assert max(times["waits"].processor) < 0.05
    assert min(times["counts"].processor) > 0


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds_are_refused_before_anything_runs(rounds: int) -> None:
    calls: list[str] = []
    with pytest.raises(SpecError, match=f"rounds must be at least 1; got {rounds}"):
        interleave({"a": partial(calls.append, "a")}, rounds=rounds, warmups=3, seed=0)
    assert calls == []


def test_contestants_are_built_anew_for_each_part_of_the_rounds() -> None:
    calls: list[int] = []
    built: list[int] = []

    def build() -> dict[str, Callable[[], None]]:
        built.append(len(calls))
        return {"a": partial(calls.append, len(built)), "b": lambda: None}

    times = race_in_places(build, rounds=7, places=3, warmups=1, seed=0)
    assert built == [0, 4, 7]  # after warm-ups and 3, 2 and 2 rounds
    assert calls == [1] * 4 + [2] * 3 + [3] * 3
    assert {name: len(each.wall) for name, each in times.items()} == {"a": 7, "b": 7}
    assert {name: len(each.processor) for name, each in times.items()} == {"a": 7, "b": 7}


def test_no_rounds_are_refused_before_anything_is_built() -> None:
    built: list[str] = []

    def build() -> dict[str, Callable[[], None]]:
        built.append("once")
        return {}

    with pytest.raises(SpecError, match="rounds must be at least 1; got 0"):
        race_in_places(build, rounds=0, places=1, warmups=1, seed=0)
    assert built == []


@pytest.mark.parametrize(
    ("rounds", "device", "places"),
    [(1, "cpu", 1), (9, "cpu", 1), (15, "cpu", 3), (161, "cpu", 32), (161, "cuda", 1)],
)
def test_a_cpu_measures_in_a_place_for_every_five_rounds(
    rounds: int, device: str, places: int
) -> None:
    assert places_for(rounds, device) == places


def test_a_ratio_is_the_median_of_the_quotients_of_single_rounds() -> None:
    seconds = {"reference": [2.0, 9.0, 4.0], "other": [6.0, 1.0, 8.0], "even": [1.0, 3.0, 3.0]}
    found = ratios(seconds, "reference", seed=0)
    assert found["other"].value == 8.0 / 4.0  # of 3, 1/9 and 2
    assert found["even"].value == 1.0 / 2.0  # of 1/2, 1/3 and 3/4


def test_the_reference_is_one_without_any_doubt() -> None:
    reference = ratios({"reference": [2.0, 9.0, 4.0], "other": [1.0] * 3}, "reference", 0)[
        "reference"
    ]
    assert (reference.value, reference.low, reference.high) == (1.0, 1.0, 1.0)


def test_rounds_are_resampled_together() -> None:
    # Each round of the other takes three times the reference's, whatever slowed the round down.
    slow = [1.0, 5.0, 2.0, 30.0, 4.0]
    found = ratios({"reference": slow, "other": [3 * each for each in slow]}, "reference", 0)
    assert (found["other"].low, found["other"].high) == pytest.approx((3.0, 3.0))


def test_an_interval_spans_what_single_rounds_say() -> None:
    found = ratios({"reference": [1.0] * 4, "other": [1.0, 2.0, 3.0, 4.0]}, "reference", 0)["other"]
    assert 1.0 <= found.low < found.value == 2.5 < found.high <= 4.0


def test_what_a_place_does_to_all_its_rounds_widens_the_interval() -> None:
    # Three places, in each of which the other is equally fast in every round.
    seconds = {"reference": [1.0] * 120, "other": [1.0] * 40 + [1.1] * 40 + [0.9] * 40}
    alone = ratios(seconds, "reference", 0)["other"]
    found = ratios(seconds, "reference", 0, places=3)["other"]
    assert found.value == alone.value == 1.0
    assert (found.low, found.high) == pytest.approx((0.9, 1.1))
    assert alone.high - alone.low < found.high - found.low


def test_places_of_unequal_length_weigh_the_same() -> None:
    seconds = {"reference": [1.0] * 3, "other": [2.0, 2.0, 5.0]}
    found = ratios(seconds, "reference", 0, places=2)["other"]
    assert (found.low, found.high) == (2.0, 5.0)


def test_one_round_has_an_interval_of_no_width() -> None:
    found = ratios({"reference": [2.0], "other": [3.0]}, "reference", seed=0)["other"]
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)


def test_the_interval_depends_on_the_seed_alone() -> None:
    seconds = {"reference": [1.0, 2.0, 3.0, 4.0, 5.0], "other": [5.0, 3.0, 4.0, 1.0, 2.0]}
    assert ratios(seconds, "reference", seed=1) == ratios(seconds, "reference", seed=1)


def test_the_least_ratio_compares_the_shortest_times_of_any_round() -> None:
    seconds = {"reference": [2.0, 9.0, 4.0], "other": [6.0, 8.0, 3.0]}
    assert least_ratios(seconds, "reference") == {"reference": 1.0, "other": 1.5}
