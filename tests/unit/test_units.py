"""Bits and nats measure the same thing."""

import math

import pytest

from hylorada.units import Bits, Nats, bits_from_nats, nats_from_bits


def test_a_fair_coin_is_one_bit() -> None:
    assert bits_from_nats(Nats(math.log(2))) == 1.0


def test_a_byte_is_eight_times_the_logarithm_of_two() -> None:
    assert nats_from_bits(Bits(8.0)) == pytest.approx(5.545177444479562, rel=1e-15)


def test_nothing_is_nothing_in_both_units() -> None:
    assert bits_from_nats(Nats(0.0)) == nats_from_bits(Bits(0.0)) == 0.0


def test_there_and_back_is_where_it_began() -> None:
    assert nats_from_bits(bits_from_nats(Nats(-3.7))) == pytest.approx(-3.7, rel=1e-15)
