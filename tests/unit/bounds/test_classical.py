import math

import pytest

from hylorada.bounds import (
    finite_hypothesis,
    kl_inverse,
    kl_inverse_finite,
    loss_range,
)
from hylorada.errors import SpecError
from hylorada.units import Bits, Nats, nats_from_bits

CORPUS, DRAWN = 8_009_762, 10_000


@pytest.mark.parametrize(
    ("alpha", "bits"),
    [
        (1e-4, 28.904605),
        (1e-3, 25.581378),
        (5e-3, 23.253662),
        (0.01, 22.246394),
        (0.05, 19.864966),
        (0.1, 18.786965),
        (0.25, 17.202009),
        (0.5, 15.617066),
    ],
)
def test_smoothing_bounds_the_loss_to_its_published_range(alpha: float, bits: float) -> None:
    assert loss_range(alpha, 50257) == pytest.approx(bits, abs=1e-6)


def test_the_range_is_the_difference_of_the_extreme_losses() -> None:
    alpha, vocabulary = 0.2, 10
    worst = -math.log2(alpha / vocabulary)
    best = -math.log2(1 - alpha + alpha / vocabulary)
    assert loss_range(alpha, vocabulary) == pytest.approx(worst - best)


def test_a_finite_hypothesis_by_hand() -> None:
    # sqrt((5 + ln 20) / 200) * 2 with ln 20 = 2.995732
    assert finite_hypothesis(1.0, Nats(5.0), 100, 2.0) == pytest.approx(1.3998933, abs=1e-6)


def test_the_published_document_bound() -> None:
    complexity = nats_from_bits(Bits(128_015))
    bound = finite_hypothesis(10.6, complexity, DRAWN, loss_range(0.25, 50257), population=CORPUS)
    assert bound == pytest.approx(12.0909026, abs=1e-6)


def test_the_published_error_bound() -> None:
    bound = finite_hypothesis(0.9, nats_from_bits(Bits(1000)), DRAWN, population=CORPUS)
    assert bound == pytest.approx(0.91886498, abs=1e-8)


def test_numbers_compared_on_the_same_draws_are_paid_in_the_second_step_only() -> None:
    free = finite_hypothesis(0.0, Nats(0.0), DRAWN, population=10**12)
    paid = finite_hypothesis(0.0, Nats(0.0), DRAWN, population=10**12, compared=8)
    share = DRAWN / (DRAWN + 10**12)
    tail = -math.log((1 - share) * 0.05)
    expected = math.sqrt((tail + math.log(8)) / (2 * DRAWN)) - math.sqrt(tail / (2 * DRAWN))
    assert paid - free == pytest.approx(expected, abs=1e-12)


# The kl-inverse


def test_the_kl_inverse_inverts_the_divergence() -> None:
    p = kl_inverse(0.3, Nats(0.02))
    divergence = 0.3 * math.log(0.3 / p) + 0.7 * math.log(0.7 / (1 - p))
    assert p > 0.3
    assert divergence == pytest.approx(0.02, abs=1e-10)


@pytest.mark.parametrize(
    ("risk", "budget", "bound"),
    [(0.0, 0.5, 1 - math.exp(-0.5)), (1.0, 0.5, 1.0), (0.4, 0.0, 0.4), (0.5, 100.0, 1.0)],
)
def test_the_kl_inverse_at_its_edges(risk: float, budget: float, bound: float) -> None:
    assert kl_inverse(risk, Nats(budget)) == pytest.approx(bound, abs=1e-9)


def test_the_kl_inverse_of_the_audit() -> None:
    bound = kl_inverse_finite(0.915, nats_from_bits(Bits(30_000)), DRAWN, population=CORPUS)
    assert bound == pytest.approx(0.9395737, abs=1e-6)


@pytest.mark.parametrize("risk", [0.0, 0.03, 0.5, 0.97])
def test_the_kl_inverse_is_never_looser_than_hoeffding(risk: float) -> None:
    assert kl_inverse_finite(risk, Nats(20.0), 500) <= finite_hypothesis(risk, Nats(20.0), 500)


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"risk": math.nan}, "risk must be a finite number; got nan"),
        ({"complexity": -1.0}, "must be finite and not negative; got -1.0"),
        ({"samples": 0}, "samples must be at least 1; got 0"),
        ({"loss_range": 0.0}, "loss_range must be positive and finite; got 0.0"),
        ({"delta": 1.0}, "strictly between 0 and 1; got 1.0"),
    ],
)
def test_a_bound_refuses_what_it_has_no_meaning_for(changes: dict[str, float], words: str) -> None:
    arguments = {"risk": 1.0, "complexity": 1.0, "samples": 10} | changes
    with pytest.raises(SpecError, match=words):
        finite_hypothesis(**arguments)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_smoothing_needs_a_share_of_both(alpha: float) -> None:
    with pytest.raises(SpecError, match="alpha must lie strictly between"):
        loss_range(alpha, 10)


def test_a_kl_bound_wants_its_risk_scaled() -> None:
    with pytest.raises(SpecError, match="divide by the range"):
        kl_inverse(1.5, Nats(0.1))


def test_a_subsample_has_draws() -> None:
    with pytest.raises(SpecError, match="samples must be at least 1; got 0"):
        finite_hypothesis(0.5, Nats(1.0), 0, population=10)
    with pytest.raises(SpecError, match="population must be at least 1; got 0"):
        finite_hypothesis(0.5, Nats(1.0), 10, population=0)
