import math

import pytest

from hylorada.bounds import payment, prefix_free
from hylorada.errors import SpecError


def test_a_length_is_told_by_twice_its_logarithm() -> None:
    assert prefix_free(3570) == pytest.approx(3593.6034 + math.log2(3571 / 3570), abs=1e-4)


def test_the_prior_over_all_messages_sums_to_one() -> None:
    # 2^C strings of each length C, up to a tail of 1 / (C + 1).
    total = math.fsum(2.0 ** (length - prefix_free(length)) for length in range(1, 1000))
    assert total == pytest.approx(1 - 1 / 1000)


def test_no_message_costs_nothing() -> None:
    assert prefix_free(0) == 0.0
    assert payment(0).nats == 0.0


def test_choices_add_their_bits_to_those_of_the_message() -> None:
    paid = payment(1000, {"dimension": 4, "seed": 8})
    assert paid.bits == pytest.approx(prefix_free(1000) + 2 + 3)
    assert paid.nats == pytest.approx(paid.bits * math.log(2))


def test_a_payment_lists_what_it_pays() -> None:
    paid = payment(8, {"mode": 2})
    assert [(one.name, one.options, one.bits) for one in paid.choices] == [("mode", 2, 1.0)]
    assert paid.prefix_free_bits == pytest.approx(8 + 3 + math.log2(9))


def test_impossible_prices_are_refused() -> None:
    with pytest.raises(SpecError, match="must not be negative; got -8 bits"):
        payment(-8)
    with pytest.raises(SpecError, match="the options of 'mode' must be at least 1; got 0"):
        payment(8, {"mode": 0})
