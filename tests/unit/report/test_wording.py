"""Numbers as a reader meets them."""

import math

import pytest

from hylorada.report import wording


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 2, "–"),
        (math.inf, 2, "not finite"),
        (math.nan, 2, "not finite"),
        (0.0, 2, "0.00"),
        (-0.001, 2, "0.00"),
        (-1.5, 1, "−1.5"),
        (1234567.0, 0, "1,234,567"),
    ],
)
def test_a_number_has_fixed_digits_and_a_true_minus(
    value: float | None, digits: int, text: str
) -> None:
    assert wording.number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (10.53, "10.5"),
        (0.0003, "0.000300"),
        (3e-5, "3.00e−05"),
        (2e6, "2.00e+06"),
        (12345.0, "12,345"),
    ],
)
def test_significant_digits_count_from_the_first_that_is_not_zero(
    value: float | None, text: str
) -> None:
    assert wording.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "+0.40\u00a0%"), (-0.4, "−0.40\u00a0%"), (0.001, "0.00\u00a0%"), (None, "–")],
)
def test_a_percentage_shows_its_sign_but_for_zero(value: float | None, text: str) -> None:
    assert wording.percent(value) == text


def test_an_interval_names_both_ends() -> None:
    assert wording.interval((-0.25, 0.5)) == "[−0.25, 0.50]"
    assert wording.interval(None) == ""


@pytest.mark.parametrize(("amount", "text"), [(0, "0 seeds"), (1, "1 seed"), (2000, "2,000 seeds")])
def test_a_count_has_its_noun_in_the_right_number(amount: int, text: str) -> None:
    assert wording.count(amount, "seed") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.31, "0.31 s"),
        (7.52, "7.5 s"),
        (42.0, "42.0 s"),
        (125.4, "2 min 05 s"),
        (3780.0, "1 h 03 min"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "–"),
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (5 * 2**50, "5,120.0 TiB"),
    ],
)
def test_a_size_has_the_largest_binary_unit(amount: int | None, text: str) -> None:
    assert wording.size(amount).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("label", "meaning", "text"),
    [
        (None, None, ""),
        ("B", None, "B moderate"),
        ("B", "middling", "B middling"),
        ("inconclusive", "inconclusive", "inconclusive"),
        ("Z", None, "Z"),
    ],
)
def test_a_label_is_shown_with_its_word(label: str | None, meaning: str | None, text: str) -> None:
    assert wording.verdict(label, meaning).replace("\u00a0", " ") == text


def test_a_stretch_names_its_first_and_last_token() -> None:
    assert [wording.stretch(4, 8), wording.stretch(3, 4)] == ["4–7", "3"]


def test_long_text_loses_its_middle() -> None:
    assert wording.shortened("abcdef", 6) == "abcdef"
    assert wording.shortened("abcdefgh", 6) == "ab…fgh"
    assert wording.shortened("ab cd efgh", 8) == "ab…efgh"


@pytest.mark.parametrize(
    ("parts", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c")],
)
def test_parts_are_listed_with_an_and(parts: list[str], text: str) -> None:
    assert wording.listed(parts) == text
