import math

import pytest

from hylorada.bounds import Choice, Ledger, prefix_free
from hylorada.errors import SpecError


def test_a_length_is_told_by_twice_its_logarithm() -> None:
    assert prefix_free(3570) == pytest.approx(3593.6034 + math.log2(3571 / 3570), abs=1e-4)


def test_the_prior_over_all_messages_sums_to_one() -> None:
    # 2^C strings of each length C, up to a tail of 1 / (C + 1).
    total = math.fsum(2.0 ** (length - prefix_free(length)) for length in range(1, 1000))
    assert total == pytest.approx(1 - 1 / 1000)


def test_no_message_costs_nothing() -> None:
    assert prefix_free(0) == 0.0
    assert Ledger(message_bits=0).complexity == 0.0


def test_choices_add_their_bits_to_those_of_the_message() -> None:
    choices = (Choice(name="dimension", options=4), Choice(name="seed", options=8))
    ledger = Ledger(message_bits=1000, choices=choices)
    assert ledger.bits == pytest.approx(prefix_free(1000) + 2 + 3)
    assert ledger.complexity == pytest.approx(ledger.bits * math.log(2))


def test_a_ledger_lists_what_it_pays() -> None:
    stored = Ledger(message_bits=8, choices=(Choice(name="mode", options=2),)).as_dict()
    assert stored["choices"] == [{"name": "mode", "options": 2, "bits": 1.0}]
    assert stored["bits"] == pytest.approx(8 + 3 + math.log2(9) + 1)


def test_a_choice_is_paid_once() -> None:
    twice = (Choice(name="mode", options=2), Choice(name="mode", options=2))
    with pytest.raises(SpecError, match="each choice is paid once; got mode, mode"):
        Ledger(message_bits=8, choices=twice)


def test_impossible_prices_are_refused() -> None:
    with pytest.raises(SpecError, match="must not be negative; got -8 bits"):
        Ledger(message_bits=-8)
    with pytest.raises(SpecError, match="the options of 'mode' must be at least 1; got 0"):
        Choice(name="mode", options=0)
