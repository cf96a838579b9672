"""Every trainable parameter steps in one group, at the rate of its component."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from hylorada import HyLoRADAConfig, LearnableBucketLandmark
from hylorada.errors import SpecError
from hylorada.specs.run import OptimisationSpec
from hylorada.training.optimisation import (
    build_optimizer,
    build_schedule,
    component_of,
    diversity_loss,
    parameter_groups,
)

LLAMA = LlamaConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)


def adapted(**settings: Any) -> PeftModel:
    return get_peft_model(AutoModelForCausalLM.from_config(LLAMA), HyLoRADAConfig(**settings))


def rates(model: nn.Module, spec: OptimisationSpec, design: str = "") -> dict[str, float]:
    return {group["component"]: group["lr"] for group in parameter_groups(model, spec, design)}


@pytest.mark.parametrize("design", ["learnable", "per_layer", "shared", "bias", "norm_gain"])
def test_each_trainable_parameter_is_in_exactly_one_group(design: str) -> None:
    model = adapted(landmark_design=design, modules_to_save=["norm", "embed_tokens", "lm_head"])
    grouped = [id(p) for g in parameter_groups(model, OptimisationSpec()) for p in g["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_components_have_their_own_rates() -> None:
    model = adapted(landmark_design="learnable", modules_to_save=["norm", "embed_tokens"])
    spec = OptimisationSpec(
        learning_rate=1e-3,
        position_bias_multiplier=2.0,
        norm_multiplier=0.5,
        embedding_multiplier=0.1,
        boundary_learning_rate=5e-3,
    )
    assert rates(model, spec) == pytest.approx(
        {
            "factors": 1e-3,
            "landmarks": 3e-2,
            "boundaries": 5e-3,
            "position_bias": 2e-3,
            "norms": 5e-4,
            "embeddings": 1e-4,
        }
    )


def test_boundaries_step_like_landmarks_unless_told_otherwise() -> None:
    found = rates(adapted(landmark_design="learnable"), OptimisationSpec(landmark_multiplier=3.0))
    assert found["boundaries"] == found["landmarks"] == pytest.approx(1.5e-3)


def test_the_low_rank_control_takes_its_measured_multiplier() -> None:
    found = rates(adapted(landmark_design="low_rank"), OptimisationSpec(), "low_rank")
    assert found["landmarks"] == pytest.approx(5e-3)


def test_shared_factors_step_with_the_factors() -> None:
    model = adapted(share_factors="AB", landmark_enabled=False, position_bias=False)
    assert set(rates(model, OptimisationSpec())) == {"factors"}


def test_only_matrices_that_may_shrink_are_decayed() -> None:
    model = adapted(landmark_design="learnable", use_dora=True, modules_to_save=["norm"])
    names = {id(p): n for n, p in model.named_parameters()}
    decayed = {
        names[id(p)].replace(".weight", "").replace(".default", "").rpartition(".")[2]
        for group in parameter_groups(model, OptimisationSpec())
        if group["weight_decay"] > 0
        for p in group["params"]
    }
    assert decayed == {"lora_A", "lora_B", "landmarks"}


def test_the_first_group_is_that_of_the_factors() -> None:
    model = adapted(modules_to_save=["embed_tokens"])
    assert parameter_groups(model, OptimisationSpec())[0]["component"] == "factors"


def test_a_parameter_of_no_component_is_refused() -> None:
    with pytest.raises(SpecError, match=r"must belong to a component .* got '0.weight'"):
        parameter_groups(nn.Sequential(nn.Linear(2, 2)), OptimisationSpec())


def test_an_unknown_part_of_the_adapter_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown component 'clock'"):
        component_of("base_model.lora_shared.default.clock.hand", nn.Identity())


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one trainable parameter"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), OptimisationSpec())


def schedule(spec: OptimisationSpec, steps: int) -> list[dict[str, float]]:
    model = adapted(landmark_design="learnable", landmark_scale=0.1)
    optimizer = build_optimizer(model, spec)
    scheduler = build_schedule(optimizer, spec, steps)
    seen = []
    for _ in range(steps):
        seen.append({g["component"]: g["lr"] for g in optimizer.param_groups})
        optimizer.step()
        scheduler.step()
    return seen


def test_rates_rise_then_fall_and_no_step_is_wasted() -> None:
    seen = [rate["factors"] for rate in schedule(OptimisationSpec(warmup_share=0.25), 8)]
    shares = [1 / 3, 2 / 3, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    assert seen == pytest.approx([5e-4 * share for share in shares])


def test_a_single_step_has_the_full_rate() -> None:
    spec = OptimisationSpec(warmup_share=0.0)
    assert schedule(spec, 1)[0]["factors"] == pytest.approx(5e-4)


def test_boundaries_are_held_for_the_first_steps() -> None:
    seen = schedule(OptimisationSpec(boundary_frozen_steps=2, warmup_share=0.0), 4)
    assert [rate["boundaries"] > 0 for rate in seen] == [False, False, True, True]
    assert all(rate["landmarks"] > 0 for rate in seen)


def test_even_boundaries_cost_nothing() -> None:
    bank = LearnableBucketLandmark(hidden_size=4, num_buckets=5)
    torch.testing.assert_close(diversity_loss(bank), torch.tensor(0.0), atol=1e-6, rtol=0)


def test_the_diversity_loss_of_two_buckets_is_known() -> None:
    bank = LearnableBucketLandmark(hidden_size=4, num_buckets=2)
    with torch.no_grad():
        bank.boundaries.fill_(torch.tensor(3.0).log())  # widths 3/4 and 1/4
    expected = -(torch.tensor([1.5, 0.5]).log().mean())
    torch.testing.assert_close(diversity_loss(bank), expected)


def test_descending_the_diversity_loss_spreads_clustered_boundaries() -> None:
    bank = LearnableBucketLandmark(hidden_size=4, num_buckets=4)
    with torch.no_grad():
        bank.boundaries.copy_(torch.tensor([3.0, 0.0, 0.0]))
    optimizer = torch.optim.SGD([bank.boundaries], lr=1.0)
    for _ in range(200):
        optimizer.zero_grad()
        diversity_loss(bank).backward()
        optimizer.step()
    torch.testing.assert_close(
        bank.relative_boundaries(), torch.tensor([0.25, 0.5, 0.75]), atol=0.02, rtol=0
    )


def test_a_diversity_loss_without_boundaries_is_refused() -> None:
    with pytest.raises(SpecError, match="needs learnable boundaries"):
        diversity_loss(nn.Linear(2, 2))


def test_plain_peft_adapters_are_grouped_too() -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_config(LLAMA), LoraConfig(target_modules=["q_proj"])
    )
    assert rates(model, OptimisationSpec()) == {"factors": 5e-4}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("landmark_multiplier", -1.0),
        ("boundary_learning_rate", 0.0),
        ("weight_decay", -0.1),
        ("boundary_frozen_steps", -1),
        ("diversity_weight", -1.0),
        ("max_gradient_norm", -1.0),
        ("warmup_share", 1.0),
    ],
)
def test_a_setting_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=field):
        OptimisationSpec(**{field: value})
