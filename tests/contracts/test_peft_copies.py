"""Copies are independent, casts keep the adapter working, and generation takes every form."""

import copy
import pickle
from typing import Any

import pytest
import torch
from peft import PeftModel, TaskType, get_peft_model
from transformers import LlamaForSequenceClassification

from tests.families import (
    CONFIGS,
    EVERY_DESIGN,
    FAMILIES,
    VARIANTS,
    adapt,
    add_second,
    build,
    logits,
    perturb,
    seeded,
    settings,
    tokens,
    trainable,
)

Changes = dict[str, Any]
BOTH = EVERY_DESIGN + VARIANTS


def through_pickle(model: PeftModel) -> PeftModel:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_a_copy_gives_the_same_logits_and_lives_its_own_life(
    family: str, changes: Changes, copied: Any
) -> None:
    model = adapt(family, **changes)
    expected = logits(model, tokens())
    twin = copied(model)
    perturb(model, seed=9)
    assert torch.equal(logits(twin, tokens()), expected)
    after = logits(model, tokens())
    assert not torch.equal(after, expected)
    perturb(twin, seed=10)
    assert torch.equal(logits(model, tokens()), after)


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_the_hooks_of_a_copy_are_its_own(copied: Any) -> None:
    model = adapt("llama", landmark_design="per_layer")
    expected = logits(model, tokens())
    twin = copied(model)
    add_second(twin, landmark_design="original")
    plain = twin.unload()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in plain.modules())
    assert torch.equal(logits(model, tokens()), expected)


def test_a_copy_of_a_checkpointed_model_trains() -> None:
    model = adapt("llama").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = tokens()
    model(input_ids=batch, labels=batch).loss.backward()
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin(input_ids=batch, labels=batch).loss.backward()
    expected = {name: parameter.grad for name, parameter in trainable(model).items()}
    for name, parameter in trainable(twin).items():
        torch.testing.assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_a_model_cast_to_bfloat16_runs_near_its_float32_self(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    expected = logits(model, tokens())
    model.to(torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    found = model(input_ids=tokens()).logits
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_casting_forth_and_back_keeps_the_parameters_trainable_and_tied(
    family: str, changes: Changes
) -> None:
    model = adapt(family, **changes)
    names = set(trainable(model))
    model.double().float().train()
    assert set(trainable(model)) == names
    batch = tokens()
    model(input_ids=batch, labels=batch).loss.backward()
    assert all(parameter.grad is not None for parameter in trainable(model).values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_half_precision_base_generates(family: str) -> None:
    model = adapt(family, dtype=torch.bfloat16)
    rows = tokens(time=6)
    found = model.generate(input_ids=rows, attention_mask=torch.ones_like(rows), max_new_tokens=4)
    assert found.shape[0] == 2
    assert 6 < found.shape[1] <= 10


def test_a_prompt_may_be_given_by_place() -> None:
    model = adapt("llama")
    rows = tokens(time=6)
    by_name = model.generate(input_ids=rows, max_new_tokens=4, do_sample=False)
    assert torch.equal(model.generate(rows, max_new_tokens=4, do_sample=False), by_name)


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_embeddings_may_stand_for_tokens(family: str) -> None:
    model = adapt(family)
    with torch.no_grad():
        embedded = model.get_input_embeddings()(tokens())
        found = model(inputs_embeds=embedded).logits
    torch.testing.assert_close(found, logits(model, tokens()), atol=1e-5, rtol=1e-5)


def test_a_model_with_another_head_is_adapted_too() -> None:
    with seeded(0):
        config = CONFIGS["llama"]()
        base = LlamaForSequenceClassification(config).eval()
        model = get_peft_model(base, settings(task_type=TaskType.SEQ_CLS)).eval()
    perturb(model)
    changed = logits(model, tokens())
    with model.disable_adapter():
        assert not torch.allclose(logits(model, tokens()), changed, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.mlp\.(c_fc|up_proj|c_proj)"},
        {"layers_to_transform": [1], "target_modules": ["q_proj", "c_attn"]},
        {"exclude_modules": ["k_proj", "c_proj"]},
        {"rank_pattern": {"(q_proj|c_attn)": 2}},
        {"bias": "lora_only"},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_settings_of_lora_work_unchanged(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    base = logits(build(family), tokens())
    assert not torch.allclose(logits(model, tokens()), base, atol=1e-3)


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_starts_that_split_the_weight_keep_the_function(start: str) -> None:
    model = adapt("llama", init_lora_weights=start, landmark_scale=0.0, perturbed=False)
    expected = logits(build("llama"), tokens())
    torch.testing.assert_close(logits(model, tokens()), expected, atol=1e-3, rtol=1e-3)
