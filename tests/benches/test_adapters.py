"""What adapters cost: the structure of the answer, what must hold of its numbers, its tables."""

import io
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada_benches.adapters import (
    REFERENCE,
    _decode,
    measure_generation,
    measure_steps,
    methods,
    tables,
)
from hylorada_benches.shapes import Shape, build

GPT2 = Shape(
    name="GPT-2 2x16", family="gpt2", layers=2, width=16, heads=2, vocabulary=50, batch=2, length=12
)
LLAMA = replace(GPT2, name="Llama 2x16", family="llama")


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    return measure_steps(GPT2, dtype=torch.float32, rounds=2)


def test_a_gpt2_has_the_shape_asked_for() -> None:
    model = build(GPT2, torch.float32, "cpu")
    assert isinstance(model, GPT2LMHeadModel)
    assert len(model.transformer.h) == 2
    assert tuple(model.transformer.wte.weight.shape) == (50, 16)
    assert model.config.n_positions == 1024


def test_a_llama_has_the_shape_asked_for() -> None:
    shape = replace(LLAMA, inner=24, key_value_heads=1, length=2000)
    model = build(shape, torch.bfloat16, "cpu")
    assert isinstance(model, LlamaForCausalLM)
    layer = model.model.layers[0]
    assert tuple(layer.mlp.up_proj.weight.shape) == (24, 16)
    assert tuple(layer.self_attn.k_proj.weight.shape) == (8, 16)
    assert model.config.max_position_embeddings == 2000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_llama_without_an_inner_width_is_four_times_as_wide_inside() -> None:
    model = build(LLAMA, torch.float32, "meta")
    assert tuple(model.model.layers[0].mlp.up_proj.weight.shape) == (64, 16)


@pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_all_methods_adapt_the_same_modules(shape: Shape) -> None:
    chosen = methods(build(shape, torch.float32, "meta"), "attention", 0.0)
    assert len({frozenset(config.target_modules) for config in chosen.values()}) == 1


def test_the_reference_is_pefts_lora_and_is_there_twice() -> None:
    chosen = methods(build(GPT2, torch.float32, "meta"), "all", 0.1)
    assert type(chosen[REFERENCE]) is type(chosen["PEFT LoRA again"]) is LoraConfig
    assert chosen[REFERENCE].target_modules == "all-linear"
    assert isinstance(chosen["rsLoRA"], HyLoRADAConfig)
    assert {c.lora_dropout for c in chosen.values() if isinstance(c, LoraConfig)} == {0.1}


def test_the_reference_costs_exactly_itself(steps: dict[str, Any]) -> None:
    reference = steps["methods"][REFERENCE]
    assert reference["time"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert reference["memory"] == 1.0


def test_every_method_is_measured_and_lies_in_its_interval(steps: dict[str, Any]) -> None:
    assert list(steps["methods"]) == list(
        methods(build(GPT2, torch.float32, "meta"), "attention", 0.0)
    )
    for row in steps["methods"].values():
        assert 0 < row["time"]["low"] <= row["time"]["value"] <= row["time"]["high"]
        assert row["memory"] > 0


def test_the_seconds_of_every_round_are_kept(steps: dict[str, Any]) -> None:
    reference = steps["methods"][REFERENCE]["seconds"]
    for row in steps["methods"].values():
        assert len(row["seconds"]) == len(row["processor_seconds"]) == 2
        quotients = [own / theirs for own, theirs in zip(row["seconds"], reference, strict=True)]
        assert row["time"]["value"] == pytest.approx(sum(quotients) / 2)


def test_two_copies_of_one_method_keep_the_same_memory(steps: dict[str, Any]) -> None:
    again = steps["methods"]["PEFT LoRA again"]
    assert again["memory"] == 1.0
    assert again["trainable"] == steps["methods"][REFERENCE]["trainable"]


def test_dora_keeps_more_than_lora(steps: dict[str, Any]) -> None:
    rows = steps["methods"]
    assert rows["PEFT DoRA"]["memory"] > 1.0
    assert rows["DoRA"]["memory"] > rows["rsLoRA"]["memory"]


def test_our_dora_keeps_less_than_pefts(steps: dict[str, Any]) -> None:
    rows = steps["methods"]
    assert rows["DoRA"]["memory"] < rows["PEFT DoRA"]["memory"]


def test_trained_numbers_are_counted(steps: dict[str, Any]) -> None:
    rows = steps["methods"]
    # In each of two layers: c_attn is 16 -> 48 and c_proj 16 -> 16, with factors of rank 8.
    lora = 2 * 8 * ((16 + 48) + (16 + 16))
    magnitudes = 2 * (48 + 16)
    assert rows[REFERENCE]["trainable"] == rows["rsLoRA"]["trainable"] == lora
    assert rows["PEFT DoRA"]["trainable"] == rows["DoRA"]["trainable"] == lora + magnitudes
    assert rows["HyLoRADA"]["trainable"] > lora


def test_megabytes_and_ratios_say_the_same(steps: dict[str, Any]) -> None:
    rows = steps["methods"]
    for row in rows.values():
        assert row["megabytes"] / rows[REFERENCE]["megabytes"] == pytest.approx(row["memory"])


def test_the_answer_says_how_it_was_measured(steps: dict[str, Any]) -> None:
    assert steps["shape"]["name"] == "GPT-2 2x16"
    assert (steps["dtype"], steps["targets"]) == ("float32", "attention")
    assert (steps["rounds"], steps["places"]) == (2, 1)
    assert steps["memory"] == "saved activations"
    assert 0 < steps["reference_milliseconds"] < math.inf


def test_methods_can_be_chosen() -> None:
    found = measure_steps(
        LLAMA, dtype=torch.float32, rounds=1, dropout=0.1, names=(REFERENCE, "HyLoRADA")
    )
    assert list(found["methods"]) == [REFERENCE, "HyLoRADA"]
    assert found["dropout"] == 0.1


def test_a_comparison_without_its_reference_is_refused() -> None:
    with pytest.raises(SpecError, match="must include 'PEFT LoRA'; got DoRA, HyLoRADA"):
        measure_steps(GPT2, dtype=torch.float32, rounds=1, names=("DoRA", "HyLoRADA"))


def test_reading_and_decoding_are_timed_for_each_method() -> None:
    found = list(measure_generation(LLAMA, dtype=torch.float32, rounds=1, tokens=2))
    assert [run["what"] for run in found] == ["reading 2 tokens", "decoding 2 tokens after 2"]
    for run in found:
        assert run["methods"][REFERENCE]["time"]["value"] == 1.0
        assert {"rsLoRA", "DoRA", "HyLoRADA", "PEFT DoRA"} < run["methods"].keys()


def test_every_round_decodes_after_the_prompt_and_never_reads_it_again() -> None:
    model = get_peft_model(build(LLAMA, torch.float32, "cpu"), HyLoRADAConfig()).eval()
    decode = _decode(model, torch.ones(1, 5, dtype=torch.long), 3)
    seen: list[tuple[int, int]] = []
    model.get_base_model().model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (kwargs["input_ids"].shape[1], kwargs["past_key_values"].get_seq_length())
        ),
        with_kwargs=True,
    )
    decode()
    decode()
    assert seen == 2 * [(1, 5), (1, 6), (1, 7)]


def test_the_answer_is_plain_json(steps: dict[str, Any]) -> None:
    assert json.loads(json.dumps(steps, allow_nan=False)) == steps


# Tables


def run(what: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    common = {"shape": {"name": "GPT-2 2x16"}, "dtype": "float32", "targets": "all"}
    return {"what": what, **common, "methods": {"DoRA": row}, **more}


TIME = {"value": 1.2345, "low": 1.1, "high": 1.4}
TIMES = {
    "time": TIME,
    "processor_time": {"value": 1.0, "low": 0.9, "high": 1.05},
    "least_processor_time": 0.98,
}
CELLS = ["DoRA", "1.234", "1.10–1.40", "1.000", "0.90–1.05", "0.980"]


def cells(row: dict[str, Any]) -> dict[str, list[str]]:
    """Return heading and row of a table, cell by cell."""
    (table,) = tables({"runs": [run("a", row)]})
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    lines = [line for line in text.getvalue().splitlines() if "DoRA" in line or "time" in line]
    heading, found = ([cell.strip() for cell in line.strip("┃│").split(line[0])] for line in lines)
    return {"heading": heading, "row": found}


def test_every_run_has_its_table() -> None:
    found = tables({"runs": [run("a", TIMES), run("b", TIMES)]})
    assert [str(table.title) for table in found] == [
        "a: GPT-2 2x16, float32, all targets",
        "b: GPT-2 2x16, float32, all targets",
    ]


def test_dropout_is_named_where_there_is_any() -> None:
    titles = [
        str(table.title)
        for dropout in (0.0, 0.1)
        for table in tables({"runs": [run("a", TIMES, dropout=dropout)]})
    ]
    assert "dropout" not in titles[0]
    assert titles[1].endswith("dropout 0.1")


def test_a_row_holds_the_ratio_its_interval_and_the_memory() -> None:
    found = cells({**TIMES, "memory": 2.0, "megabytes": 1.0, "trainable": 3})
    assert found["row"] == [*CELLS, "2.000"]
    assert found["heading"][-1] == "memory"


def test_decoding_has_no_memory() -> None:
    found = cells(TIMES)
    assert found["row"] == CELLS
    assert len(found["heading"]) == len(CELLS)
