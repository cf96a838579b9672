"""What some documents say about the whole corpus, and what a bit is worth (benchmarks/)."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hylorada.bounds import Losses, payment, relative_gain
from hylorada.compression import candidates
from hylorada.units import Nats

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def projection() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("projected_gain")


def losses(documents: int, population: int, gain: float = 0.4) -> Losses:
    """Return documents of 100 tokens on which the model is better by `gain` bits a token."""
    draws = np.random.default_rng(0)
    frozen = (3.0 + draws.exponential(5.0, 100 * documents)).astype(np.float32)
    adapted = (frozen - draws.normal(gain, 0.5, frozen.size)).clip(0.01).astype(np.float32)
    return Losses(
        adapted=adapted,
        frozen=frozen,
        ranks=np.zeros(frozen.size, dtype=np.int32),
        lengths=np.full(documents, 100),
        corpus_lengths=np.full(population, 100),
        draws=None,
        vocabulary=50_000,
        byte_count=1.0,
    )


@pytest.mark.parametrize("level", ["document", "token"])
def test_a_tenth_of_the_corpus_pays_a_tenth_of_the_message(projection: Any, level: str) -> None:
    assert projection.share_read(losses(50, 500), level) == 0.1


def test_a_whole_corpus_is_projected_to_its_own_bound(projection: Any) -> None:
    read = losses(3000, 3000)
    paid = payment(400)
    assert read.frozen is not None
    expected = relative_gain(
        read.of_documents(read.adapted),
        read.of_documents(read.frozen),
        read.lengths,
        Nats(paid.nats),
        delta=0.05 / 8,
    )
    assert projection.projected_gain(read, paid, "document")["bound"] == expected.certified


@pytest.mark.parametrize("level", ["document", "token"])
def test_a_projection_is_close_to_the_bound_of_the_whole_and_below_it(
    projection: Any, level: str
) -> None:
    paid = payment(800)
    whole = projection.projected_gain(losses(8_000, 8_000), paid, level)["bound"]
    part = projection.projected_gain(losses(2_000, 8_000), paid, level)["bound"]
    assert whole - 0.02 < part < whole


def test_inequalities_are_projected_alike(projection: Any) -> None:
    free = projection.projected_inequalities(losses(500, 500_000), payment(100))
    paid = projection.projected_inequalities(losses(500, 500), payment(100))
    assert free["bet"] > paid["bet"]
    assert free["measured, mixture of tokens"] == paid["measured, mixture of tokens"]


def test_a_bit_costs_the_slope_of_the_bound(projection: Any) -> None:
    # A gain G after a message of L nats over N documents is about G exp(-L/N).
    read = losses(2_000, 40_000)
    found = candidates(np.random.default_rng(1).normal(size=2_000), steps=(0.5, 1.0), prices=(0.0,))
    gain, price = projection.price_of_a_bit(read, "document", found)
    assert gain == pytest.approx(0.4, abs=0.02)
    spent = min(found, key=lambda one: abs(one.distortion - 0.05)).bits * np.log(2) / 40_000
    expected = gain * np.exp(-spent) * np.log(2) / 40_000
    assert price == pytest.approx(expected, rel=0.15)


def test_a_message_that_nothing_can_pay_costs_nothing_more(projection: Any) -> None:
    read = losses(10, 10)
    found = candidates(np.random.default_rng(1).normal(size=5_000), steps=(0.5,), prices=(0.0,))
    assert projection.price_of_a_bit(read, "document", found)[1] == 0.0
