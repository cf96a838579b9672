import math
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from hylorada.errors import SpecError
from hylorada.evaluation import risk
from hylorada.evaluation.risk import (
    RiskSpec,
    TargetReader,
    TokenRisks,
    countable_documents,
    drawn_documents,
    scored_lengths,
    token_risks,
)
from tests.unit.evaluation.models import TableModel, build, random_tokens, store, uniform

SIZES = (5, 1, 30, 2, 0, 17, 64, 9)


def corpus() -> risk.TokenStore:
    return store(*(random_tokens(size, seed=size) for size in SIZES))


def adapted(name: str = "llama") -> PeftModel:
    """Return a small model with an adapter that visibly acts."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        modules = ["c_attn"] if name == "gpt2" else ["q_proj", "v_proj"]
        settings = LoraConfig(target_modules=modules, r=4, fan_in_fan_out=name == "gpt2")
        model = get_peft_model(build(name), settings)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(std=0.5)
    return model.eval()


def one_by_one(model: torch.nn.Module, documents: risk.TokenStore) -> tuple[list, list]:
    """Return bits and ranks of each document read alone, from its whole logits."""
    bits, ranks = [], []
    for index in countable_documents(documents).tolist():
        tokens = torch.from_numpy(documents.document(index).astype(np.int64))[None]
        with torch.no_grad():
            logits = model(input_ids=tokens).logits[0, :-1].double()
        target = tokens[0, 1:, None]
        bits += (-logits.log_softmax(-1).gather(-1, target)[:, 0] / math.log(2)).tolist()
        ranks += ((logits > logits.gather(-1, target)).sum(-1)).tolist()
    return bits, ranks


def read(model: torch.nn.Module, **options: object) -> TokenRisks:
    texts = corpus()
    return token_risks(model, texts, countable_documents(texts), RiskSpec(max_length=64), **options)


# What is counted


def test_the_first_token_of_a_document_is_not_scored() -> None:
    assert scored_lengths(corpus()).tolist() == [4, 0, 29, 1, 0, 16, 63, 8]


def test_documents_without_a_target_are_not_counted() -> None:
    assert countable_documents(corpus()).tolist() == [0, 2, 3, 5, 6, 7]


def test_a_corpus_without_a_target_is_refused() -> None:
    with pytest.raises(SpecError, match="a document of at least 2 tokens; got none"):
        countable_documents(store([1], []))


def test_draws_repeat_by_their_seed_and_hit_only_countable_documents() -> None:
    documents, draws = drawn_documents(corpus(), 500, seed=3)
    again = drawn_documents(corpus(), 500, seed=3)
    other = drawn_documents(corpus(), 500, seed=4)
    assert documents.tolist() == [0, 2, 3, 5, 6, 7]
    assert draws.sum() == 500
    assert draws.tolist() == again[1].tolist() != other[1].tolist()


def test_one_draw_is_too_few() -> None:
    with pytest.raises(SpecError, match="samples must be at least 2; got 1"):
        drawn_documents(corpus(), 1, seed=0)


# What is measured


def test_a_uniform_model_needs_the_logarithm_of_its_vocabulary() -> None:
    found = token_risks(uniform(8), store([1, 2, 3], [4, 5]), np.array([0, 1]))
    np.testing.assert_allclose(found.adapted, 3.0)
    assert found.vocabulary == 8
    assert found.ranks.tolist() == [7, 7, 7]  # ties count against the model


def test_bits_and_ranks_by_hand() -> None:
    table = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 5.0], [1.0, 0.0, 0.0]])
    found = token_risks(TableModel(table), store([0, 2, 0, 1]), np.array([0]))
    first = math.exp(1) / (1 + math.exp(2) + math.exp(1))
    third = math.exp(2) / (1 + math.exp(2) + math.exp(1))
    second = math.exp(1) / (math.exp(1) + 2)
    np.testing.assert_allclose(found.adapted, -np.log2([first, second, third]), rtol=1e-6)
    assert found.ranks.tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_padding_on_the_right_without_a_mask_changes_nothing(name: str) -> None:
    model = build(name)
    found = read(model)
    bits, ranks = one_by_one(model, corpus())
    np.testing.assert_allclose(found.adapted, bits, atol=2e-5)
    assert found.ranks.tolist() == ranks


def test_small_batches_and_shards_come_back_in_the_order_of_the_corpus() -> None:
    model, texts = build("llama"), corpus()
    spec = RiskSpec(max_length=64, batch_tokens=8, shard_tokens=20)
    found = token_risks(model, texts, countable_documents(texts), spec)
    np.testing.assert_allclose(found.adapted, read(model).adapted, atol=2e-5)
    assert found.lengths.tolist() == [4, 29, 1, 16, 63, 8]


def test_a_long_document_is_read_in_windows_that_score_every_token_once() -> None:
    model, texts = build("llama"), store(random_tokens(50), random_tokens(6, seed=1))
    spec = RiskSpec(max_length=16, stride=4)
    found = token_risks(model, texts, np.array([0, 1]), spec)
    assert found.adapted.size == 49 + 5
    # The last token sees its own window's 12 tokens and more before it.
    tokens = torch.from_numpy(texts.document(0).astype(np.int64))
    window = tokens[None, 36:50]
    with torch.no_grad():
        logits = model(input_ids=window).logits[0]
    expected = -logits[-2].log_softmax(-1)[tokens[49]] / math.log(2)
    assert found.adapted[48] == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_frozen_model_is_the_adapter_switched_off(name: str) -> None:
    model = adapted(name)
    found = read(model, frozen=model)
    assert found.frozen is not None
    np.testing.assert_allclose(found.frozen, read(build(name)).adapted, atol=2e-5)
    np.testing.assert_allclose(found.adapted, one_by_one(model, corpus())[0], atol=2e-5)
    assert np.abs(found.adapted - found.frozen).max() > 0.1


def test_another_model_may_be_compared_with() -> None:
    found = read(build("llama"), frozen=uniform(96))
    np.testing.assert_allclose(found.frozen, math.log2(96), rtol=1e-6)


def test_a_model_without_an_adapter_cannot_be_compared_with_itself() -> None:
    model = build("llama")
    with pytest.raises(SpecError, match="needs an adapter to switch off; got a LlamaForCausalLM"):
        read(model, frozen=model)


def test_two_readings_are_equal_to_the_last_bit() -> None:
    model = adapted()
    first, second = read(model, frozen=model), read(model, frozen=model)
    assert first.adapted.tobytes() == second.adapted.tobytes()
    assert first.frozen.tobytes() == second.frozen.tobytes()


def test_dropout_is_off_while_reading_and_on_again_after() -> None:
    model = build("gpt2").train()
    first, second = read(model), read(model)
    assert first.adapted.tobytes() == second.adapted.tobytes()
    assert model.training


# Stopping and going on


def test_a_second_call_goes_on_from_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = build("llama"), corpus()
    spec = RiskSpec(max_length=64, shard_tokens=20)
    chosen = countable_documents(texts)
    first = token_risks(model, texts, chosen, spec, shards=tmp_path, key="a")
    kept = sorted(tmp_path.iterdir())
    kept[0].unlink()
    count = []
    plain = TargetReader.read
    monkeypatch.setattr(
        TargetReader, "read", lambda *given, **named: count.append(1) or plain(*given, **named)
    )
    second = token_risks(model, texts, chosen, spec, shards=tmp_path, key="a")
    assert second.adapted.tobytes() == first.adapted.tobytes()
    assert second.ranks.tolist() == first.ranks.tolist()
    assert len(count) == 1
    assert len(kept) > 2


def test_shards_of_another_model_are_not_taken(tmp_path: Path) -> None:
    texts = corpus()
    chosen = countable_documents(texts)
    token_risks(uniform(96), texts, chosen, shards=tmp_path, key="a")
    found = token_risks(build("opt"), texts, chosen, RiskSpec(max_length=64), shards=tmp_path)
    np.testing.assert_allclose(found.adapted, one_by_one(build("opt"), texts)[0], atol=2e-5)


# Refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_length": 1}, "max_length must be at least 2; got 1"),
        ({"stride": 2000}, r"stride must lie in 1..1024; got 2000"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1; got 0"),
        ({"shard_tokens": 0}, "shard_tokens must be at least 1; got 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        RiskSpec(**settings)


def test_more_context_than_the_model_has_is_refused() -> None:
    with pytest.raises(SpecError, match="must not exceed the model's context, 64"):
        token_risks(build("gpt2"), corpus(), np.array([0]))


def test_a_document_of_one_token_cannot_be_asked_for() -> None:
    with pytest.raises(SpecError, match="only documents of at least 2 tokens"):
        token_risks(uniform(8), store([1], [1, 2]), np.array([0]))
