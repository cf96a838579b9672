import json
from pathlib import Path
from typing import Any, cast

import pytest
from peft import LoraConfig, get_peft_model

from hylorada.errors import SpecError
from hylorada.evaluation.cost import cost
from hylorada.evaluation.metrics import METRICS, Metric, evaluate, require_metrics
from hylorada.files import record_json
from hylorada.records.evaluations import Evaluation, Perplexity, Quantity
from hylorada.specs.evaluation import EvaluationSpec
from tests.unit.evaluation.models import byte_tokenizer, gpt2, random_tokens, store, uniform
from tests.unit.evaluation.models import case as build_case

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
def result() -> Evaluation:
    model = gpt2(context=128, vocabulary=BYTES)
    corpus = store(random_tokens(500, BYTES), random_tokens(300, BYTES, 1))
    return evaluate(model, byte_tokenizer(), corpus, list(METRICS), SMALL)


def test_every_number_reaches_the_json_as_it_is(result: Evaluation) -> None:
    found = json.loads(record_json(result))
    assert found["metrics"]["ppl"]["value"] == measured(result, "ppl").value
    assert found["metrics"]["cost"]["batch"] == [32, 128]
    assert found["settings"]["retrieval_lengths"] == [128]


def test_every_metric_is_there_and_timed(result: Evaluation) -> None:
    assert list(result.metrics) == list(METRICS) == list(result.seconds)


def test_every_metric_says_what_it_is() -> None:
    assert all(metric.words.endswith(".") for metric in METRICS.values())


@pytest.mark.parametrize("name", ["ppl", "mid_ppl", "lim_ppl", "lim_ppl_seed"])
def test_numbers_carry_units_counts_and_intervals(result: Evaluation, name: str) -> None:
    metric = measured(result, name)
    assert metric.interval is not None
    low, high = metric.interval
    assert low <= metric.value <= high
    assert metric.unit.startswith("perplexity")
    assert metric.clusters > 1


def measured(result: Evaluation, name: str) -> Quantity:
    found = result.metrics[name]
    assert isinstance(found, Quantity)
    return found


def test_the_result_says_what_was_read(result: Evaluation) -> None:
    assert result.data == {"fingerprint": "test", "documents": 2, "tokens": 800}
    ppl = result.metrics["ppl"]
    assert isinstance(ppl, Perplexity)
    assert ppl.tokens == 4 * 127 + 87
    assert result.settings["max_tokens"] == 600


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, corpus = gpt2(context=128, vocabulary=BYTES), store(random_tokens(300, BYTES))
    names = ("ppl", "lim_ppl", "retrieval", "context_gain")
    first, second = (
        evaluate(model, byte_tokenizer(), corpus, names, SMALL).metrics for _ in range(2)
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


@pytest.mark.parametrize("field", ["max_tokens", "evidence_items", "stride", "batch_tokens"])
def test_settings_below_one_are_refused(field: str) -> None:
    with pytest.raises(SpecError, match=f"{field} must be at least 1; got 0"):
        EvaluationSpec(**{field: 0})


def test_a_length_of_one_is_refused() -> None:
    with pytest.raises(SpecError, match="max_length must be at least 2"):
        EvaluationSpec(max_length=1)


def test_cost_counts_parameters_of_a_frozen_adapter() -> None:
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, inference_mode=True)
    model = get_peft_model(gpt2(), config)
    result = cost(build_case(model, store([1, 2, 3]), max_length=8, batch_tokens=16), repeats=1)
    # Two layers, each with A of 2x16 and B of 48x2.
    assert result.adapter_parameters == 2 * (2 * 16 + 48 * 2)
    assert result.adapter_bytes == 4 * 2 * (2 * 16 + 48 * 2)
    assert result.trainable_parameters == 0
    assert result.tokens_per_second == pytest.approx(16 / result.forward_seconds)
    assert result.peak_memory_bytes > 10**6


def test_cost_of_a_bare_model_names_no_adapter() -> None:
    result = cost(build_case(uniform(4), store([1, 2, 3]), max_length=8, batch_tokens=8), repeats=1)
    assert "adapter_parameters" not in json.loads(record_json(result))
    assert result.parameters == result.trainable_parameters == 16


PLUGIN = """
from hylorada.evaluation.metrics import METRICS, Metric
from hylorada.records.evaluations import Quantity

METRICS.add(Metric("documents", "How many.", lambda case: Quantity(value=2.0, unit="documents")))
"""


def test_a_metric_of_another_package_joins_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted_documents.py").write_text(PLUGIN)
    about = tmp_path / "counted_documents-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: counted-documents\nVersion: 1.0\n"
    )
    (about / "entry_points.txt").write_text("[hylorada.metrics]\ncounted = counted_documents\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    known, METRICS._loaded = dict(METRICS), False
    try:
        model = gpt2(vocabulary=BYTES)
        spec = EvaluationSpec(max_length=64, progress=False)
        found = evaluate(model, byte_tokenizer(), store([1, 2, 3]), ["documents"], spec)
    finally:
        METRICS._entries = known
    quoted = found.metrics["documents"].quoted("documents")
    assert [(row.label, row.unit) for row in quoted] == [("documents", "documents")]
    assert json.loads(record_json(found))["metrics"]["documents"]["value"] == 2.0


def test_a_metric_that_returns_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Metric("wrong", "A number.", cast(Any, lambda case: 3.0))
    monkeypatch.setitem(METRICS._entries, "wrong", wrong)
    with pytest.raises(SpecError, match=r"'wrong' must return a Measurement .* got a float"):
        evaluate(uniform(8), byte_tokenizer(), store([1, 2, 3]), ["wrong"], SMALL)
