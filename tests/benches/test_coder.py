"""The coder's bench measures what it says, and its tables show it."""

import io

import pytest
from rich.console import Console

from hylorada.errors import SpecError
from hylorada_benches.coder import measure, tables


def test_speeds_and_lengths_are_measured_and_shown() -> None:
    result = measure(rounds=1, counts=(50, 2000), dimensions=(100,))
    for row in result["speeds"]:
        assert row["encoded_per_second"] > 0
        assert row["decoded_per_second"] > 0
        assert row["ideal_bits"] <= row["bits"] <= 1.01 * row["ideal_bits"] + 64
        assert row["entropy_bits"] < row["ideal_bits"]
    (lengths,) = result["lengths"]
    assert lengths["same_error_bits"] < lengths["same_values_bits"] < lengths["published_bits"]
    text = io.StringIO()
    for table in tables(result):
        Console(file=text, width=120).print(table)
    shown = text.getvalue()
    assert "Coder: 11 levels, adaptive" in shown
    assert f"{lengths['same_error_bits']:,}" in shown


def test_a_bench_needs_rounds() -> None:
    with pytest.raises(SpecError, match="rounds must be at least 1"):
        measure(rounds=0)
