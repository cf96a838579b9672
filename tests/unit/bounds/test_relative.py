import math

import numpy as np
import pytest

from hylorada.bounds import (
    bet,
    betting,
    mixture_bits,
    relative_gain,
    relative_gain_of_tokens,
    saved_bits,
)
from hylorada.errors import SpecError
from hylorada.units import Nats


def documents(count: int, gain: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bits under a model and a reference, and lengths, of documents like abstracts."""
    draws = np.random.default_rng(seed)
    lengths = draws.integers(100, 300, count)
    reference = lengths * (5.0 + 0.5 * draws.standard_normal(count))
    model = reference - lengths * (gain + 0.08 * draws.standard_normal(count))
    return model, reference, lengths


def test_a_mixture_adds_probabilities() -> None:
    # 3/4 of 1/8 and 1/4 of 1/2 make 7/32.
    mixed = mixture_bits(np.array([3.0]), np.array([1.0]), 0.25)
    assert mixed[0] == pytest.approx(-math.log2(7 / 32))


def test_what_is_saved_is_the_worst_case_less_the_loss() -> None:
    model, reference = np.array([3.0, 900.0, 2.0]), np.array([1.0, 5.0, 800.0])
    for weight in (0.5, 0.03):
        worst = reference + math.log2(1 / weight)
        np.testing.assert_allclose(
            saved_bits(model, reference, weight),
            worst - mixture_bits(model, reference, weight),
            atol=1e-9,
        )


def test_a_useless_model_saves_nothing_and_costs_the_weight() -> None:
    saved = saved_bits(np.array([1e6]), np.array([1.0]), 0.5)
    assert saved[0] == 0.0


def test_a_document_mixture_predicts_by_what_was_right_so_far() -> None:
    """The mixture of documents is a causal predictor: its factors are mixtures of tokens."""
    ours, theirs, weight = np.array([0.5, 0.1, 0.9]), np.array([0.2, 0.6, 0.3]), 0.25
    total, right, wrong = 1.0, 1 - weight, weight
    for h, f in zip(ours, theirs, strict=True):
        total *= (right * h + wrong * f) / (right + wrong)
        right, wrong = right * h, wrong * f
    bits = mixture_bits(
        np.array([-np.log2(ours).sum()]), np.array([-np.log2(theirs).sum()]), weight
    )
    assert bits[0] == pytest.approx(-math.log2(total))


def test_the_gain_of_one_weight_by_hand() -> None:
    model, reference, lengths = documents(500, 0.3)
    found = relative_gain(model, reference, lengths, Nats(20.0), weights=(0.25,))
    saved = bet(saved_bits(model, reference, 0.25) / lengths, Nats(20.0 + math.log(1 / 0.0475)))
    lost = 2 * betting(1.0 / lengths, Nats(0.0), upper=1.0, delta=0.0025)
    assert found.certified == pytest.approx(saved.mean_at_least - lost)
    assert found.settings["weight"] == 0.25
    assert found.settings == {"weight": 0.25, **saved.settings}
    mixed = mixture_bits(model, reference, 0.25)
    assert found.measured == pytest.approx(((reference - mixed) / lengths).mean())


def test_the_best_weight_is_taken_and_paid_for() -> None:
    model, reference, lengths = documents(500, 0.3)
    weights = (0.5, 0.25, 0.125, 2.0**-40)
    alone = [
        relative_gain(model, reference, lengths, Nats(20 + math.log(4)), weights=(weight,))
        for weight in weights
    ]
    found = relative_gain(model, reference, lengths, Nats(20.0), weights=weights)
    assert found.certified == pytest.approx(max(gain.certified for gain in alone))


def test_abstracts_with_a_short_message_certify_most_of_their_gain() -> None:
    model, reference, lengths = documents(190_000, 0.3)
    found = relative_gain(model, reference, lengths, Nats(10_900 * math.log(2)))
    assert found.measured == pytest.approx(0.3, abs=0.01)
    assert 0.26 < found.certified < found.measured


def test_a_model_that_does_not_help_is_not_certified() -> None:
    model, reference, lengths = documents(2000, -0.1)
    assert relative_gain(model, reference, lengths, Nats(100.0)).certified <= 0


def test_draws_certify_less_than_the_corpus_but_know_its_lengths() -> None:
    model, reference, lengths = documents(3000, 0.3)
    whole = relative_gain(model, reference, lengths, Nats(20.0))
    drawn = relative_gain(model, reference, lengths, Nats(20.0), corpus_lengths=lengths)
    assert 0 < drawn.certified < whole.certified


def test_tokens_by_hand() -> None:
    model, reference = np.array([2.0, 3.0] * 500), np.array([3.0, 3.0] * 500)
    found = relative_gain_of_tokens(model, reference, Nats(5.0), weights=(0.5,))
    # Half of the tokens: log2(1 + 2), the others log2(1 + 1).
    saved = np.array([math.log2(3), 1.0] * 500)
    assert found.measured == pytest.approx((math.log2(3) + 1) / 2 - 1)
    expected = bet(saved, Nats(5.0 + math.log(20))).mean_at_least - 1
    assert found.certified == pytest.approx(expected)


def test_cheap_tokens_take_a_small_weight_and_dear_ones_a_large() -> None:
    draws = np.random.default_rng(0)
    reference = np.full(200_000, 5.0, dtype=np.float32)
    model = (reference - 0.3 + 0.5 * draws.standard_normal(200_000)).astype(np.float32)
    cheap = relative_gain_of_tokens(model, reference, Nats(10.0))
    dear = relative_gain_of_tokens(model, reference, Nats(4000.0))
    assert cheap.settings["weight"] < dear.settings["weight"]
    assert 0 < dear.certified < cheap.certified < 0.3


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_mixture_holds_some_of_both(weight: float) -> None:
    with pytest.raises(SpecError, match="weight must lie strictly between"):
        saved_bits(np.ones(1), np.ones(1), weight)


def test_a_document_has_a_scored_token() -> None:
    with pytest.raises(SpecError, match="must be at least 1; got 0"):
        relative_gain(np.ones(2), np.ones(2), np.array([0, 4]), Nats(1.0))
