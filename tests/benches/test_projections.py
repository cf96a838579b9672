"""What a subspace costs, measured small."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from hylorada.errors import SpecError
from hylorada_benches.projections import (
    measure,
    measure_projections,
    measure_steps,
    tables,
)
from hylorada_benches.shapes import SMALL_GPT2

TINY = replace(
    SMALL_GPT2, name="GPT-2 1x32", layers=1, width=32, heads=2, vocabulary=64, batch=1, length=8
)


def test_every_projection_is_timed_at_every_size() -> None:
    rows = measure_projections((10, 6000), rounds=1, full=7000)
    kinds = [(row["kind"], row["dim"]) for row in rows]
    fast = ["grouped", "kron_qr", "fastfood"]
    # A sparse matrix of many columns is left out.
    assert kinds == [(kind, 10) for kind in [*fast, "sparse"]] + [(kind, 6000) for kind in fast]
    assert all(row["apply_milliseconds"] > 0 for row in rows)
    assert rows[0]["isometry"] == "exact"


def test_steps_are_ratios_to_lora_of_the_same_modules() -> None:
    result = measure_steps(TINY, dtype=torch.float32, rounds=2, dims=(20, 40))
    methods = result["methods"]
    assert methods["PEFT LoRA"]["time"]["value"] == 1.0
    # r (in + out) for c_attn and for the head.
    assert methods["PEFT LoRA"]["trainable"] == 4 * (32 + 96) + 4 * (32 + 64)
    trained = {name: row["trainable"] for name, row in methods.items()}
    assert trained["SubLoRA d=20"] == trained["PEFT Uni-LoRA"] == 20
    assert trained["SubLoRA d=40"] == 40
    assert trained["SubLoRA d=20 learned"] == 22
    assert all(row["processor"]["value"] > 0 for row in methods.values())


def test_the_whole_bench_becomes_two_tables() -> None:
    result = measure(rounds=1, shape=TINY, full=99, dims=(9,), step_dims=(20, 40))
    console = Console(width=120, record=True)
    for table in tables(result):
        console.print(table)
    text = console.export_text()
    assert "exactly" in text
    assert "on average" in text
    assert "SubLoRA d=20" in text
    with pytest.raises(SpecError, match="rounds must be at least 1"):
        measure(rounds=0)
