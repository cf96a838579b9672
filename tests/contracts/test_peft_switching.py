"""Adapters are added, switched, disabled, mixed and removed as PEFT promises."""

from pathlib import Path
from typing import Any

import pytest
import torch

from hylorada import HyLoRADAModel
from tests.families import (
    DESIGNS,
    EVERY_CASE,
    EVERY_DESIGN,
    VARIANTS,
    adapt,
    add_second,
    build,
    logits,
    seeded,
    settings,
    tokens,
    trainable,
)

Changes = dict[str, Any]
BOTH = EVERY_DESIGN + VARIANTS


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_disabled_adapter_leaves_the_base_model(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    active = logits(model, tokens())
    with model.disable_adapter():
        disabled = logits(model, tokens())
    assert torch.equal(disabled, logits(build(family), tokens()))
    assert not torch.allclose(active, disabled, atol=1e-3)
    assert torch.equal(logits(model, tokens()), active)


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_disabling_the_layers_is_undone_by_enabling_them(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    active = logits(model, tokens())
    model.disable_adapter_layers()
    assert torch.equal(logits(model, tokens()), logits(build(family), tokens()))
    model.enable_adapter_layers()
    assert torch.equal(logits(model, tokens()), active)


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_switching_back_gives_the_first_adapter_again(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    first = logits(model, tokens())
    add_second(model, **changes)
    assert torch.equal(logits(model, tokens()), first)
    model.set_adapter("second")
    assert not torch.allclose(logits(model, tokens()), first, atol=1e-3)


@pytest.mark.parametrize("design", DESIGNS)
def test_only_the_active_adapter_trains(design: str) -> None:
    model = add_second(adapt("llama"), landmark_design=design, share_factors="A")
    assert trainable(model)
    assert all(".default." in name for name in trainable(model))
    model.set_adapter("second")
    assert {".second." in name for name in trainable(model)} == {True}
    assert len(trainable(model)) == len([n for n, _ in model.named_parameters() if "second" in n])


def test_an_adapter_activated_for_inference_does_not_train() -> None:
    model = add_second(adapt("llama"))
    model.set_adapter("second", inference_mode=True)
    assert not trainable(model)


def test_gradients_of_one_adapter_can_be_switched_by_name() -> None:
    model = add_second(adapt("llama", share_factors="A"))
    everything = set(trainable(model))
    model.set_requires_grad("default", requires_grad=False)
    assert not trainable(model)
    model.set_requires_grad(["default"], requires_grad=True)
    assert set(trainable(model)) == everything


def test_other_adapters_come_and_go_without_freezing_or_thawing_the_first(tmp_path: Path) -> None:
    model = adapt("llama", share_factors="A")
    model.save_pretrained(tmp_path)
    names = set(trainable(model))
    model.load_adapter(tmp_path, "frozen")
    assert set(trainable(model)) == names
    model.set_requires_grad("default", requires_grad=False)
    model.add_adapter("second", settings())
    assert not trainable(model)
    model.delete_adapter("second")
    assert not trainable(model)


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_deleting_an_inactive_adapter_changes_nothing_else(family: str, changes: Changes) -> None:
    model = add_second(adapt(family, **changes), **changes)
    before = logits(model, tokens())
    model.delete_adapter("second")
    assert list(model.peft_config) == ["default"]
    assert not any("second" in name for name in model.state_dict())
    assert torch.equal(logits(model, tokens()), before)


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_deleting_the_active_adapter_activates_and_trains_another(
    family: str, changes: Changes
) -> None:
    model = add_second(adapt(family, **changes), **changes)
    model.set_adapter("second")
    expected, names = logits(model, tokens()), set(trainable(model))
    model.set_adapter("default")
    with pytest.warns(UserWarning, match="was active which is now deleted"):
        model.delete_adapter("default")
    assert model.active_adapters == ["second"]
    assert torch.equal(logits(model, tokens()), expected)
    assert set(trainable(model)) == names


def test_deleting_an_unknown_adapter_is_refused() -> None:
    with pytest.raises(ValueError, match="stranger"):
        adapt("llama").delete_adapter("stranger")


def test_deleting_the_last_adapter_leaves_the_base_model() -> None:
    model = adapt("llama", landmark_design="original")
    model.delete_adapter("default")
    assert torch.equal(logits(model.base_model.model, tokens()), logits(build("llama"), tokens()))


def test_an_adapter_with_a_deleted_name_starts_afresh() -> None:
    model = add_second(adapt("llama"))
    model.set_adapter("second")
    model.delete_adapter("default")
    with seeded(1):
        model.add_adapter("default", settings(landmark_design="learnable"))
    model.set_adapter("default")
    fresh = adapt("llama", landmark_design="learnable", perturbed=False)
    assert torch.equal(logits(model, tokens()), logits(fresh, tokens()))


@pytest.mark.parametrize(("family", "changes"), [c for c in BOTH if "dora" not in str(c.id)])
def test_a_mixed_batch_serves_each_row_its_own_adapter(family: str, changes: Changes) -> None:
    model = add_second(adapt(family, **changes), landmark_design="original")
    rows = tokens(batch=4)
    first = logits(model, rows)
    model.set_adapter("second")
    second = logits(model, rows)
    with model.disable_adapter():
        base = logits(model, rows)
    mixed = logits(model, rows, adapter_names=["second", "__base__", "default", "second"])
    expected = torch.stack([second[0], base[1], first[2], second[3]])
    torch.testing.assert_close(mixed, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(model, rows), second)


def test_a_mixed_batch_with_dora_is_refused() -> None:
    with pytest.raises(ValueError, match="DoRA"):
        logits(adapt("llama", use_dora=True), tokens(), adapter_names=["default", "__base__"])


@pytest.mark.parametrize("design", ["position_adaptive", "original", "per_layer"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_mixed_batch_generates_what_each_adapter_generates_alone(design: str, beams: int) -> None:
    model = add_second(adapt("llama", landmark_design=design), landmark_design=design)
    rows = tokens(batch=3, time=7)
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams, "eos_token_id": None}

    def continuation(rows: torch.Tensor, **extra: Any) -> torch.Tensor:
        mask = torch.ones_like(rows)
        return model.generate(input_ids=rows, attention_mask=mask, **options, **extra)

    first = continuation(rows)
    model.set_adapter("second")
    second = continuation(rows)
    mixed = continuation(rows, adapter_names=["second", "default", "second"])
    assert torch.equal(mixed, torch.stack([second[0], first[1], second[2]]))


@pytest.mark.parametrize(("family", "changes"), BOTH)
def test_two_active_adapters_act_together(family: str, changes: Changes) -> None:
    model = add_second(adapt(family, **changes), **changes)
    alone = logits(model, tokens())
    model.base_model.set_adapter(["default", "second"])
    together = logits(model, tokens())
    assert not torch.allclose(together, alone, atol=1e-3)
    model.base_model.set_adapter(["default"])
    assert torch.equal(logits(model, tokens()), alone)


def test_two_active_plain_adapters_add_their_updates() -> None:
    plain: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
    model = add_second(adapt("llama", **plain), **plain)
    model.base_model.set_adapter(["default", "second"])
    expected = logits(model, tokens())
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, tokens()), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_adapter_added_in_eval_mode_draws_no_dropout(family: str) -> None:
    model = adapt(family, lora_dropout=0.5, landmark_dropout=0.5)
    assert torch.equal(logits(model, tokens()), logits(model, tokens()))
    add_second(model, lora_dropout=0.5, landmark_dropout=0.5)
    model.set_adapter("second")
    assert torch.equal(logits(model, tokens()), logits(model, tokens()))
    model.train()
    assert not torch.equal(logits(model, tokens()), logits(model, tokens()))


def test_an_adapter_loaded_into_an_eval_model_draws_no_dropout(tmp_path: Path) -> None:
    adapt("llama", lora_dropout=0.5, landmark_dropout=0.5).save_pretrained(tmp_path)
    model = adapt("llama")
    model.load_adapter(tmp_path, "other")
    model.set_adapter("other")
    assert torch.equal(logits(model, tokens()), logits(model, tokens()))


@pytest.mark.parametrize("design", ["position_adaptive", "per_layer"])
def test_unloading_leaves_the_base_model_without_a_hook(design: str) -> None:
    base = build("llama")
    model = adapt("llama", base=base, landmark_design=design)
    plain = model.unload()
    assert plain is base
    assert torch.equal(logits(plain, tokens()), logits(build("llama"), tokens()))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in plain.modules())
    assert list(plain.state_dict()) == list(build("llama").state_dict())


@pytest.mark.parametrize(("family", "norm"), [("llama", "norm"), ("gpt2", "ln_f")])
@pytest.mark.parametrize("first", ["landmarks", "norm"])
def test_an_adapter_may_retrain_the_norm_that_another_has_landmarks_after(
    family: str, norm: str, first: str
) -> None:
    retrained: Changes = {"modules_to_save": [norm]}
    changes = ({}, retrained) if first == "landmarks" else (retrained, {})
    model = add_second(adapt(family, **changes[0]), **changes[1])
    assert torch.equal(logits(model, tokens()), logits(adapt(family, **changes[0]), tokens()))
    model.set_adapter("second")
    alone = logits(model, tokens())
    model.delete_adapter("default")
    assert torch.equal(logits(model, tokens()), alone)


def test_a_model_can_be_adapted_again_after_unloading() -> None:
    plain = adapt("llama", landmark_design="per_layer").unload()
    again = adapt("llama", base=plain)
    assert torch.equal(logits(again, tokens()), logits(adapt("llama"), tokens()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_status_names_method_and_active_adapter(family: str) -> None:
    model = add_second(adapt(family))
    status = model.get_model_status()
    assert status.adapter_model_type == "HyLoRADAModel"
    assert status.active_adapters == ["default"]
    assert status.enabled is True
    assert status.available_adapters == ["default", "second"]
    assert status.requires_grad == {"default": True, "second": False}
    assert status.trainable_params == sum(p.numel() for p in trainable(model).values())
    assert all(layer.devices["default"] == ["cpu"] for layer in model.get_layer_status())


def test_a_second_adapter_may_differ_in_everything() -> None:
    model = adapt("gpt2", share_factors="B", use_dora=True)
    add_second(model, r=2, target_modules=["c_fc"], landmark_design="low_rank", max_positions=16)
    model.set_adapter("second")
    alone = adapt("gpt2", perturbed=False)
    assert isinstance(model.base_model, HyLoRADAModel)
    assert not torch.allclose(logits(model, tokens()), logits(alone, tokens()), atol=1e-3)


def test_an_unknown_adapter_cannot_be_activated() -> None:
    with pytest.raises(ValueError, match="stranger"):
        adapt("llama").set_adapter("stranger")
