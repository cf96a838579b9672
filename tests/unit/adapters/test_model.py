"""What the tuner refuses: ranks, foreign layers, detached injection, hot-swaps, bad checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    EvaConfig,
    PeftModel,
    get_peft_model,
    initialize_lora_eva_weights,
    inject_adapter_in_model,
)
from peft.tuners.lora.layer import LoraLayer
from peft.utils.hotswap import hotswap_adapter
from safetensors.torch import load_file, save_file

from hylorada import CheckpointError, SpecError
from tests.families import (
    CONTEXT,
    adapt,
    add_second,
    build,
    logits,
    settings,
    tokens,
    trainable,
)

PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}


def test_a_rank_above_the_smaller_side_is_refused() -> None:
    # Llama's keys have two heads of eight: the smaller side is 16.
    with pytest.raises(SpecError, match=r"smaller side, 16, of .*k_proj; got 17"):
        adapt("llama", r=17)
    adapt("llama", r=16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 17}, "smaller side"),
        ({"target_modules": ["q_proj", "input_layernorm"]}, "LlamaRMSNorm.* is not supported"),
        (
            {"landmark_module": "model.nrm"},
            "must name a module of the decoder; got 'model.nrm'; did you mean 'model.norm'?",
        ),
    ],
    ids=str,
)
def test_a_refused_adapter_leaves_the_model_as_it_was(
    changes: dict[str, Any], message: str
) -> None:
    base = build("llama")
    before = {name: type(module) for name, module in base.named_modules()}
    with pytest.raises(ValueError, match=message):
        get_peft_model(base, settings(**changes))
    assert {name: type(module) for name, module in base.named_modules()} == before
    assert all(parameter.requires_grad for parameter in base.parameters())
    assert not any(module._forward_pre_hooks for module in base.modules())
    get_peft_model(base, settings(r=4))


def test_a_refused_second_adapter_leaves_the_first_alone() -> None:
    model = adapt("llama")
    expected = logits(model, tokens())
    with pytest.raises(SpecError):
        model.add_adapter("second", settings(r=17))
    assert list(model.peft_config) == ["default"]
    assert torch.equal(logits(model, tokens()), expected)


def test_a_rank_above_the_smaller_side_in_a_pattern_is_refused() -> None:
    with pytest.raises(SpecError, match=r"smaller side, 16, of .*k_proj; got 20"):
        adapt("llama", rank_pattern={"k_proj": 20})


def test_a_position_bias_on_an_embedding_is_refused_with_a_repair() -> None:
    with pytest.raises(SpecError, match=r"embed_tokens is another kind .*position_bias=False"):
        adapt("llama", target_modules=["embed_tokens"])


def test_a_position_bias_outside_the_decoder_is_refused_with_a_repair() -> None:
    with pytest.raises(SpecError, match=r"lm_head is outside: .* or set position_bias=False"):
        adapt("llama", target_modules=["q_proj", "lm_head"])
    model = adapt("llama", target_modules=["q_proj", "lm_head"], position_bias=False)
    assert logits(model, tokens()).isfinite().all()


def test_landmarks_outside_the_decoder_are_refused() -> None:
    with pytest.raises(SpecError, match="a module of the decoder; got 'lm_head'"):
        adapt("llama", landmark_module="lm_head")


@pytest.mark.parametrize("name", ["q_proj", None])
def test_an_adapter_that_cannot_be_built_leaves_the_model_as_it_was(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("out of memory")

    base = build("llama")
    monkeypatch.setattr("hylorada.adapters.model.SharedState", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        get_peft_model(base, settings(target_modules=name and [name]))
    assert not any(isinstance(module, LoraLayer) for module in base.modules())


def test_starts_from_data_choose_the_ranks_of_plain_layers() -> None:
    model = get_peft_model(
        build("llama"),
        settings(init_lora_weights="eva", eva_config=EvaConfig(rho=2.0), **PLAIN),
        low_cpu_mem_usage=True,
    )
    data = [{"input_ids": tokens(seed=seed)} for seed in range(8)]
    initialize_lora_eva_weights(model, data, show_progress_bar=False)
    ranks = {layer.r["default"] for _, layer in model.base_model.lora_layers("default")}
    assert len(ranks) > 1
    torch.testing.assert_close(logits(model.eval(), tokens()), logits(build("llama"), tokens()))


def test_an_embedding_without_a_position_bias_is_adapted() -> None:
    model = adapt("llama", target_modules=["embed_tokens"], position_bias=False)
    assert not torch.allclose(logits(model, tokens()), logits(build("llama"), tokens()), atol=1e-3)


def test_a_bias_on_the_factors_keeps_the_layers_of_peft() -> None:
    model = adapt("gpt2", lora_bias=True, position_bias=False)
    assert any(name.endswith("lora_B.default.bias") for name in trainable(model))
    with pytest.raises(SpecError, match="position_bias=False"):
        adapt("gpt2", lora_bias=True)


def test_targets_and_context_are_recorded_in_the_configuration() -> None:
    config = adapt("llama").peft_config["default"]
    assert config.max_positions == CONTEXT
    assert config.landmark_module == "model.norm"
    assert config.target_modules == {f"self_attn.{letter}_proj" for letter in "qkvo"}


def test_the_callers_configuration_serves_another_model() -> None:
    config = settings()
    for family, norm in (("gpt2", "transformer.ln_f"), ("llama", "model.norm")):
        model = get_peft_model(build(family), config)
        assert model.peft_config["default"].landmark_module == norm
    assert (config.landmark_module, config.max_positions, config.target_modules) == (None,) * 3


@pytest.mark.parametrize(
    "changes", [{}, PLAIN | {"share_factors": "A"}, {"landmark_enabled": False}]
)
def test_injection_without_a_peft_model_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="use get_peft_model"):
        inject_adapter_in_model(settings(**changes), build("llama"))
    with pytest.raises(SpecError, match="use get_peft_model"):
        build("llama").add_adapter(settings(**changes))


def test_plain_lora_may_be_injected() -> None:
    model = inject_adapter_in_model(settings(**PLAIN), build("llama"))
    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    assert len(layers) == 12
    assert torch.equal(logits(model, tokens()), logits(build("llama"), tokens()))


def test_a_hot_swap_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    add_second(adapt("llama")).save_pretrained(tmp_path)
    model = adapt("llama")
    before = logits(model, tokens())
    with pytest.raises(ValueError, match="HYLORADA"):
        hotswap_adapter(model, str(tmp_path / "second"), "default")
    assert torch.equal(logits(model, tokens()), before)


def changed_checkpoint(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    adapt("llama", **changes).save_pretrained(folder)
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    "name", ["lora_A.weight", "landmarks.scale", "position_bias.table", "factors.B|"]
)
@pytest.mark.parametrize("lazily", [False, True], ids=["plain", "low_cpu_mem_usage"])
def test_a_checkpoint_that_lacks_a_tensor_is_refused(
    name: str, lazily: bool, tmp_path: Path
) -> None:
    tensors = changed_checkpoint(tmp_path, share_factors="B")
    lost = next(key for key in sorted(tensors) if name in key)
    del tensors[lost]
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor.*first '.*configuration"):
        PeftModel.from_pretrained(build("llama"), tmp_path, low_cpu_mem_usage=lazily)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.lora_shared.landmarks.extra",
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
        "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.mlp.up_proj.weight",
    ],
)
def test_a_checkpoint_with_an_unexpected_tensor_is_refused(name: str, tmp_path: Path) -> None:
    tensors = changed_checkpoint(tmp_path)
    save_file(tensors | {name: torch.zeros(4, 32)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="has unexpected 1 tensor"):
        PeftModel.from_pretrained(build("llama"), tmp_path)


@pytest.mark.parametrize("name", ["lora_A.weight", "landmarks.landmarks", "position_bias.table"])
@pytest.mark.parametrize("lazily", [False, True], ids=["plain", "low_cpu_mem_usage"])
def test_a_checkpoint_with_a_tensor_of_another_shape_is_refused(
    name: str, lazily: bool, tmp_path: Path
) -> None:
    tensors = changed_checkpoint(tmp_path)
    key = next(key for key in sorted(tensors) if name in key)
    tensors[key] = torch.zeros(3, *tensors[key].shape[1:])
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises((CheckpointError, RuntimeError), match=r"shape|size mismatch"):
        PeftModel.from_pretrained(build("llama"), tmp_path, low_cpu_mem_usage=lazily)


def test_a_checkpoint_of_another_design_is_refused(tmp_path: Path) -> None:
    changed_checkpoint(tmp_path, landmark_design="original")
    with pytest.raises(CheckpointError, match="position_gate"):
        PeftModel.from_pretrained(build("llama"), tmp_path, config=settings())


def test_an_adapter_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    changed_checkpoint(tmp_path)
    base = build("llama")
    del base.model.layers[2]
    with pytest.raises((CheckpointError, RuntimeError)):
        PeftModel.from_pretrained(base, tmp_path)


@pytest.mark.parametrize("share", ["A", "B", "AB"])
@pytest.mark.parametrize("lazily", [False, True], ids=["plain", "low_cpu_mem_usage"])
def test_shared_factors_stay_shared_through_casts_and_files(
    share: str, lazily: bool, tmp_path: Path
) -> None:
    model = adapt("llama", share_factors=share, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    loaded = PeftModel.from_pretrained(
        build("llama", dtype=torch.bfloat16), tmp_path, is_trainable=True, low_cpu_mem_usage=lazily
    )
    for letter in "AB":
        owned = 4 if letter in share else 12  # q, k, v, o: once, or in each of three layers
        written = [name for name in stored if f"lora_{letter}" in name or f".{letter}|" in name]
        assert len(written) == owned
        for network in (model, loaded, loaded.to(torch.bfloat16)):
            layers = dict(network.base_model.lora_layers("default")).values()
            factors = [getattr(layer, f"lora_{letter}")["default"].weight for layer in layers]
            assert len({id(factor) for factor in factors}) == owned
            assert all(factor.requires_grad for factor in factors)


def test_shared_factors_of_unequal_modules_are_not_confused() -> None:
    """The values of Llama's keys and queries differ in shape; those of q and o only in place."""
    factors = adapt("llama", share_factors="B").base_model.shared_state("default").factors
    assert len(factors) == 4
    assert {tuple(factor.shape) for factor in factors.values()} == {(32, 4), (16, 4)}


def test_a_shared_factor_sums_the_gradients_of_its_layers() -> None:
    shared = adapt("llama", share_factors="A").train()
    batch = tokens()
    shared(input_ids=batch, labels=batch).loss.backward()
    alone = adapt("llama").train()
    own = dict(alone.base_model.lora_layers("default"))
    with torch.no_grad():
        for name, layer in shared.base_model.lora_layers("default"):
            own[name].lora_A["default"].weight.copy_(layer.lora_A["default"].weight)
            own[name].lora_B["default"].weight.copy_(layer.lora_B["default"].weight)
        state, other = (m.base_model.shared_state("default") for m in (shared, alone))
        other.load_state_dict({n: t for n, t in state.state_dict().items() if "factors" not in n})
    alone(input_ids=batch, labels=batch).loss.backward()
    for name, factor in shared.base_model.shared_state("default").factors.items():
        place = name.split("|")[1].split("/")[-1]
        parts = [own[layer].lora_A["default"].weight.grad for layer in own if place in layer]
        assert len(parts) == 3
        torch.testing.assert_close(factor.grad, torch.stack(parts).sum(dim=0))


def test_adapters_of_another_kind_cannot_be_mixed_in() -> None:
    with pytest.raises(ValueError, match=r"HYLORADA.*not compatible"):
        get_peft_model(build("llama"), settings(), mixed=True)


def test_a_model_without_data_is_adapted_without_data() -> None:
    model = adapt("llama", base=build("llama").to("meta"), perturbed=False)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model(input_ids=tokens().to("meta")).logits.shape == (*tokens().shape, 97)
