"""LoRA merges exactly; what depends on position refuses to merge and touches nothing."""

from typing import Any

import pytest
import torch
from peft import convert_to_lora, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora.layer import LoraLayer

from hylorada import SpecError
from tests.families import (
    DESIGNS,
    FAMILIES,
    adapt,
    add_second,
    both,
    build,
    logits,
    tokens,
)

Changes = dict[str, Any]
PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
MERGEABLE = [
    *[pytest.param(family, PLAIN, id=family) for family in FAMILIES],
    *both("dora", use_dora=True, **PLAIN),
    *both("share_ab", share_factors="AB", **PLAIN),
    *both("dora_share_b", use_dora=True, share_factors="B", **PLAIN),
]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("family", "changes"), MERGEABLE)
@pytest.mark.parametrize("safe", [False, True], ids=["fast", "safe"])
def test_merging_keeps_the_logits_and_leaves_a_plain_model(
    family: str, changes: Changes, safe: bool
) -> None:
    model = adapt(family, **changes)
    expected = logits(model, tokens())
    plain = model.merge_and_unload(safe_merge=safe)
    assert not any(isinstance(module, LoraLayer) for module in plain.modules())
    close(logits(plain, tokens()), expected)
    assert list(plain.state_dict()) == list(build(family).state_dict())


@pytest.mark.parametrize(("family", "changes"), MERGEABLE)
def test_unmerging_restores_adapter_and_base(family: str, changes: Changes) -> None:
    model = adapt(family, **changes)
    expected = logits(model, tokens())
    model.merge_adapter()
    close(logits(model, tokens()), expected)
    model.unmerge_adapter()
    close(logits(model, tokens()), expected)
    with model.disable_adapter():
        close(logits(model, tokens()), logits(build(family), tokens()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_disabling_a_merged_adapter_unmerges_it(family: str, dora: bool) -> None:
    model = adapt(family, use_dora=dora, **PLAIN)
    model.merge_adapter()
    with model.disable_adapter():
        close(logits(model, tokens()), logits(build(family), tokens()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_safe_merge_refuses_broken_weights(family: str) -> None:
    model = adapt(family, **PLAIN)
    layer = next(m for m in model.modules() if isinstance(m, LoraLayer))
    with torch.no_grad():
        layer.lora_A["default"].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaNs"):
        model.merge_and_unload(safe_merge=True)


ACTING = [
    *[
        case
        for design in DESIGNS
        for case in both(design, landmark_design=design, position_bias=False)
    ],
    *both("position_bias", landmark_enabled=False),
    *both("dora", use_dora=True),
]


@pytest.mark.parametrize(("family", "changes"), ACTING)
def test_what_depends_on_position_refuses_to_merge_and_touches_nothing(
    family: str, changes: Changes
) -> None:
    model = adapt(family, **changes)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = logits(model, tokens())
    for merge in (model.merge_and_unload, model.merge_adapter):
        with pytest.raises(SpecError, match="'default' cannot be merged"):
            merge()
    assert {n: t for n, t in model.state_dict().items() if not torch.equal(t, before[n])} == {}
    assert torch.equal(logits(model, tokens()), expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("design", ["bias", "low_rank", "norm_gain"])
def test_a_module_that_still_does_nothing_does_not_stop_a_merge(family: str, design: str) -> None:
    model = adapt(family, landmark_design=design, perturbed=False)
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    with torch.no_grad():
        for layer in layers:
            layer.lora_B["default"].weight.add_(0.1)
    expected = logits(model, tokens())
    close(logits(model.merge_and_unload(), tokens()), expected)


def test_merging_judges_the_adapters_that_are_merged() -> None:
    model = add_second(adapt("llama", **PLAIN))
    expected = logits(model, tokens())
    with pytest.raises(SpecError, match="'second' cannot be merged"):
        model.merge_adapter(adapter_names=["second"])
    with pytest.raises(SpecError, match="'second' cannot be merged"):
        model.merge_and_unload(adapter_names=["second"])
    assert torch.equal(logits(model, tokens()), expected)
    model.set_adapter("second")
    close(logits(model.merge_and_unload(adapter_names=["default"]), tokens()), expected)


def test_plain_adapters_combine_by_weight() -> None:
    model = add_second(adapt("llama", **PLAIN), **PLAIN)
    model.add_weighted_adapter(["default", "second"], [0.75, 0.25], "mix", combination_type="cat")
    model.set_adapter("mix")
    layer = next(m for m in model.modules() if isinstance(m, LoraLayer))
    expected = 0.75 * layer.get_delta_weight("default") + 0.25 * layer.get_delta_weight("second")
    torch.testing.assert_close(layer.get_delta_weight("mix"), expected)
    combined = logits(model, tokens())
    close(logits(model.merge_and_unload(), tokens()), combined)


@pytest.mark.parametrize("kind", ["linear", "svd"])
def test_other_ways_of_combining_work_too(kind: str) -> None:
    model = add_second(adapt("llama", **PLAIN), **PLAIN)
    model.add_weighted_adapter(["default", "second"], [1.0, 0.0], "mix", combination_type=kind)
    before = logits(model, tokens())
    model.set_adapter("mix")
    close(logits(model, tokens()), before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"landmark_enabled": False},
        PLAIN | {"share_factors": "A"},
        PLAIN | {"use_dora": True},
    ],
)
def test_other_adapters_refuse_to_be_combined(changes: Changes) -> None:
    model = add_second(adapt("llama", **PLAIN), **changes)
    with pytest.raises(SpecError, match="'second' also has"):
        model.add_weighted_adapter(["default", "second"], [1.0, 1.0], "mix")
    assert list(model.peft_config) == ["default", "second"]


@pytest.mark.parametrize("design", DESIGNS)
def test_peft_does_not_convert_what_lora_cannot_say(design: str) -> None:
    model = adapt("llama", landmark_design=design, position_bias=False)
    assert not model.supports_lora_conversion()
    with pytest.raises(TypeError, match="do not support LoRA conversion"):
        convert_to_lora(model, rank=4)


def test_peft_converts_factors_exactly() -> None:
    model = adapt("llama", share_factors="A", **PLAIN)
    assert model.supports_lora_conversion()
    config, tensors = convert_to_lora(model, rank=4)
    converted = get_peft_model(build("llama"), config).eval()
    set_peft_model_state_dict(converted, tensors)
    close(logits(converted, tokens()), logits(model, tokens()))
