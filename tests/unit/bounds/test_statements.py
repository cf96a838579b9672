import math
from dataclasses import replace

import numpy as np
import pytest

from hylorada.bounds import (
    Losses,
    betting,
    mixture_bits,
    payment,
    relative_gain,
    relative_gain_of_tokens,
    statements,
)
from hylorada.bounds.statements import UNIFORM_WEIGHT
from hylorada.errors import SpecError
from hylorada.units import Nats
from tests.unit.bounds.losses import VOCABULARY, issued, losses

PAID = payment(200)
COMPLEXITY = Nats(PAID.nats)
SHARE = 0.05 / 8  # gain, frozen loss, loss and five errors share delta


def named(found: Losses, **settings: object) -> dict[str, float]:
    return {one.name: one.bound for one in statements(found, PAID, **settings)}


def test_documents_are_summed_in_their_order() -> None:
    found = Losses(
        adapted=np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        frozen=None,
        ranks=np.array([0, 1, 5, 0, 100]),
        lengths=np.array([2, 3]),
        corpus_lengths=np.array([2, 3]),
        draws=np.array([1, 2]),
        vocabulary=10,
        byte_count=20.0,
    )
    assert found.of_documents(found.adapted).tolist() == [3.0, 28.0, 28.0]
    assert found.lengths_of_documents().tolist() == [2, 3, 3]
    assert found.misses(1).tolist() == [0, 1, 1, 0, 1]
    assert found.misses(5).tolist() == [0, 0, 1, 0, 1]
    assert found.misses(100).tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("level", ["document", "token"])
def test_all_statements_hold_at_once_by_sharing_delta(level: str) -> None:
    measured = losses()
    found = named(measured, level=level)
    assert list(found) == [
        "gain",
        "frozen_loss",
        "loss",
        *(f"top_{top}_error" for top in (1, 5, 10, 50, 100)),
    ]
    assert measured.frozen is not None
    if level == "document":
        gain = relative_gain(
            measured.of_documents(measured.adapted),
            measured.of_documents(measured.frozen),
            measured.lengths,
            COMPLEXITY,
            delta=SHARE,
        )
        misses = measured.of_documents(measured.misses(5)) / measured.lengths
    else:
        gain = relative_gain_of_tokens(measured.adapted, measured.frozen, COMPLEXITY, delta=SHARE)
        misses = measured.misses(5)
    assert found["gain"] == gain.certified
    assert found["top_5_error"] == betting(misses, COMPLEXITY, upper=1.0, delta=SHARE)


def test_the_frozen_model_pays_for_nothing_but_its_smoothing() -> None:
    measured = losses()
    assert measured.frozen is not None
    bits = measured.of_documents(measured.frozen)
    uniform = measured.lengths * math.log2(VOCABULARY)
    gain = relative_gain(
        bits, uniform, measured.lengths, Nats(0.0), weights=(UNIFORM_WEIGHT,), delta=SHARE
    )
    assert named(measured, level="document")["frozen_loss"] == pytest.approx(10 - gain.certified)


def test_an_adapted_loss_is_the_frozen_one_less_a_certified_gain() -> None:
    measured = losses()
    assert measured.frozen is not None
    frozen = measured.of_documents(measured.frozen)
    smoothed = mixture_bits(frozen, measured.lengths * math.log2(VOCABULARY), UNIFORM_WEIGHT)
    gain = relative_gain(
        measured.of_documents(measured.adapted),
        smoothed,
        measured.lengths,
        COMPLEXITY,
        delta=SHARE,
    )
    found = named(measured, level="document")
    assert found["loss"] == pytest.approx(found["frozen_loss"] - gain.certified)
    assert found["loss"] < found["frozen_loss"]


def test_measured_numbers_stand_beside_their_bounds_and_below_them() -> None:
    for one in statements(losses(), PAID, level="document"):
        if one.name == "gain":
            assert 0 < one.bound < one.measured == pytest.approx(0.4, abs=0.05)
        else:
            assert one.measured < one.bound


def test_without_a_frozen_model_the_loss_is_the_headline() -> None:
    first, *errors = statements(losses(frozen=False), PAID, level="document")
    assert first.name == "loss"
    assert first.bound < math.log2(VOCABULARY)
    assert not first.vacuous
    assert len(errors) == 5


def test_a_code_too_long_for_its_data_is_called_vacuous() -> None:
    dear = payment(10**6)
    found = statements(losses(200), dear, level="document")
    # A mixture with the frozen model is never much worse than it, whatever the other half costs.
    assert [one.name for one in found if not one.vacuous] == ["frozen_loss", "loss"]


def test_draws_support_less_than_the_whole() -> None:
    whole, drawn = losses(), losses(draws=np.ones(3000, dtype=np.int64))
    bounds, weaker = named(whole, level="document"), named(drawn, level="document")
    assert weaker["gain"] < bounds["gain"]
    assert all(weaker[name] > bound for name, bound in bounds.items() if name != "gain")


def test_tokens_need_the_order_of_the_corpus() -> None:
    with pytest.raises(SpecError, match="the token level needs documents in the order"):
        statements(losses(draws=np.ones(3000, dtype=np.int64)), PAID, level="token")


def test_what_the_bounds_choose_themselves_is_listed() -> None:
    for frozen, inequality, options in (
        (True, "betting", [64, 8, 8]),
        (False, "betting", [64, 8, 6]),
        (True, "hoeffding", [24, 8, 8]),
    ):
        paid = issued(losses(50, frozen=frozen), inequality=inequality).ledger
        assert [one.options for one in paid.paid_inside_each_bound] == options


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(SpecError, match="level must be one of document, token; got 'word'"):
        statements(losses(), PAID, level="word")


def test_losses_and_lengths_must_agree() -> None:
    with pytest.raises(SpecError, match="need as many losses"):
        replace(losses(10), lengths=np.array([4]))


def test_losses_must_be_finite() -> None:
    measured = losses(10)
    with pytest.raises(SpecError, match="every value must be finite"):
        replace(measured, adapted=np.full_like(measured.adapted, np.inf))
