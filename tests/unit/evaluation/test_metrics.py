import json
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from hylorada.errors import SpecError
from hylorada.evaluation.cost import cost
from hylorada.evaluation.metrics import METRICS, EvaluationSpec, evaluate, require_metrics
from tests.unit.evaluation.models import byte_tokenizer, gpt2, random_tokens, store, uniform

BYTES = 257
SMALL = EvaluationSpec(
    max_length=128,
    max_tokens=600,
    evidence_items=2,
    retrieval_items=2,
    retrieval_lengths=(128,),
    context_windows=2,
    progress=False,
)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    model = gpt2(context=128, vocabulary=BYTES)
    corpus = store(random_tokens(500, BYTES), random_tokens(300, BYTES, 1))
    return evaluate(model, byte_tokenizer(), corpus, list(METRICS), SMALL)


def test_every_metric_is_plain_json_without_nan(result: dict[str, Any]) -> None:
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text) == result


def test_every_metric_is_there_and_timed(result: dict[str, Any]) -> None:
    assert list(result["metrics"]) == list(METRICS) == list(result["seconds"])


def test_numbers_carry_units_counts_and_intervals(result: dict[str, Any]) -> None:
    for name in ("ppl", "mid_ppl", "lim_ppl", "lim_ppl_seed"):
        metric = result["metrics"][name]
        low, high = metric["interval"]
        assert low <= metric["value"] <= high
        assert metric["unit"].startswith("perplexity")
        assert metric["tokens"] > 0
        assert metric["clusters"] > 1


def test_the_result_says_what_was_read(result: dict[str, Any]) -> None:
    assert result["data"] == {"fingerprint": "test", "documents": 2, "tokens": 800}
    assert result["metrics"]["ppl"]["tokens"] == 4 * 127 + 87
    assert result["settings"]["max_tokens"] == 600


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, corpus = gpt2(context=128, vocabulary=BYTES), store(random_tokens(300, BYTES))
    names = ("ppl", "lim_ppl", "retrieval", "context_gain")
    first, second = (
        evaluate(model, byte_tokenizer(), corpus, names, SMALL)["metrics"] for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize(
    ("name", "near"), [("lim_pl", "lim_ppl"), ("perplexity", "known are"), ("contextgain", "gain")]
)
def test_an_unknown_metric_gets_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(SpecError, match=near):
        require_metrics(["ppl", name])


def test_no_metric_at_all_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one"):
        require_metrics([])


def test_a_length_beyond_the_models_context_is_refused_before_anything_runs() -> None:
    model = gpt2(context=64, vocabulary=BYTES)
    with pytest.raises(SpecError, match="context, 64; got 128"):
        evaluate(model, byte_tokenizer(), store([1, 2, 3]), ["ppl"], SMALL)


@pytest.mark.parametrize("field", ["max_length", "max_tokens", "evidence_items", "stride"])
def test_settings_below_one_are_refused(field: str) -> None:
    with pytest.raises(SpecError, match=f"{field} must be at least 1; got 0"):
        EvaluationSpec(**{field: 0})


def test_a_length_of_one_is_refused() -> None:
    with pytest.raises(SpecError, match="max_length must be at least 2"):
        EvaluationSpec(max_length=1)


def test_cost_counts_parameters_of_a_frozen_adapter() -> None:
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, inference_mode=True)
    model = get_peft_model(gpt2(), config)
    result: dict[str, Any] = cost(model, length=8, rows=2, repeats=1)
    # Two layers, each with A of 2x16 and B of 48x2.
    assert result["adapter_parameters"] == 2 * (2 * 16 + 48 * 2)
    assert result["adapter_bytes"] == 4 * result["adapter_parameters"]
    assert result["trainable_parameters"] == 0
    assert result["tokens_per_second"] == pytest.approx(16 / result["forward_seconds"])
    assert result["peak_memory_bytes"] > 10**6


def test_cost_of_a_bare_model_names_no_adapter() -> None:
    result = cost(uniform(4), length=8, rows=1, repeats=1)
    assert "adapter_parameters" not in result
    assert result["parameters"] == result["trainable_parameters"] == 16
