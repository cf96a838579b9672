"""What PEFT promises of saving and loading holds for every design, variant and family."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftConfig, PeftModel
from safetensors.torch import load_file

from hylorada import HyLoRADAConfig, SpecError
from tests.families import (
    EVERY_CASE,
    EVERY_FAMILY,
    VARIANTS,
    adapt,
    add_second,
    build,
    logits,
    perturb,
    settings,
    tokens,
    trainable,
)

Changes = dict[str, Any]
PLAIN: Changes = {"landmark_enabled": False, "position_bias": False}


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_a_saved_adapter_loads_with_bit_equal_logits(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(family), tmp_path).eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_loading_without_materialising_first_gives_the_same_model(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(family), tmp_path, low_cpu_mem_usage=True).eval()
    assert not any(parameter.is_meta for parameter in loaded.parameters())
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@pytest.mark.parametrize(("family", "changes"), EVERY_CASE)
def test_the_file_holds_every_trained_number_once(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert len(stored) == len(trainable(model))
    assert sum(t.numel() for t in stored.values()) == model.get_nb_trainable_parameters()[0]
    assert not any("default" in name for name in stored)


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_a_loaded_adapter_trains_only_if_asked_to(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    frozen = PeftModel.from_pretrained(build(family), tmp_path)
    assert not trainable(frozen)
    again = PeftModel.from_pretrained(build(family), tmp_path, is_trainable=True)
    assert set(trainable(again)) == set(trainable(model))


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_the_name_of_an_adapter_is_not_part_of_its_file(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    for name in ("landmarks", "lora"):
        loaded = PeftModel.from_pretrained(build(family), tmp_path, adapter_name=name).eval()
        assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@pytest.mark.parametrize(("family", "changes"), EVERY_FAMILY)
def test_the_stored_configuration_builds_the_same_adapter(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    config = PeftConfig.from_pretrained(tmp_path)
    assert isinstance(config, HyLoRADAConfig)
    assert config.inference_mode
    used = model.peft_config["default"]
    assert config.landmark_module == used.landmark_module
    assert config.max_positions == used.max_positions
    assert set(config.target_modules) == set(used.target_modules)
    loaded = PeftModel.from_pretrained(build(family), tmp_path, config=config).eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_a_configuration_survives_its_own_file(tmp_path: Path) -> None:
    config = settings(landmark_design="learnable", use_dora=True, share_factors="A")
    config.save_pretrained(tmp_path)
    assert HyLoRADAConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"] == "HYLORADA"


def test_an_unsafe_format_on_request_loads_too(tmp_path: Path) -> None:
    model = adapt("llama")
    model.save_pretrained(tmp_path, safe_serialization=False)
    assert (tmp_path / "adapter_model.bin").exists()
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path).eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_only_the_selected_adapters_are_saved(family: str, tmp_path: Path) -> None:
    model = add_second(adapt(family))
    model.save_pretrained(tmp_path, selected_adapters=["second"])
    assert not (tmp_path / "adapter_model.safetensors").exists()
    model.set_adapter("second")
    loaded = PeftModel.from_pretrained(build(family), tmp_path / "second").eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_saving_an_unknown_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stranger"):
        adapt("llama").save_pretrained(tmp_path, selected_adapters=["stranger"])


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_several_adapters_load_into_one_model(
    family: str, changes: Changes, tmp_path: Path
) -> None:
    model = add_second(adapt(family, **changes), landmark_design="original")
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(family), tmp_path, adapter_name="one").eval()
    loaded.load_adapter(tmp_path / "second", "two")
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    loaded.set_adapter("two")
    model.set_adapter("second")
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_retrained_whole_modules_travel_with_the_adapter(tmp_path: Path) -> None:
    model = adapt("llama", modules_to_save=["lm_head"])
    assert any("modules_to_save" in name for name in trainable(model))
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path).eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
    assert not torch.equal(logits(loaded, tokens()), logits(adapt("llama"), tokens()))


def test_a_named_norm_is_used_and_recorded(tmp_path: Path) -> None:
    model = adapt("llama", landmark_module="model.layers.2.input_layernorm")
    assert not torch.equal(logits(model, tokens()), logits(adapt("llama"), tokens()))
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path).eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_a_start_from_the_weights_becomes_lora_for_the_weights(tmp_path: Path) -> None:
    model = adapt("llama", init_lora_weights="pissa", perturbed=False, **PLAIN)
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(tmp_path / "start")
    model.peft_config["default"].init_lora_weights = "pissa"
    trained = logits(perturb(model), tokens())
    start = str(tmp_path / "start")
    with pytest.warns(UserWarning, match="PiSSA changes the base weights"):
        model.save_pretrained(tmp_path / "lora", path_initial_model_for_weight_conversion=start)
    assert torch.equal(logits(model, tokens()), trained)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path / "lora").eval()
    torch.testing.assert_close(logits(loaded, tokens()), trained, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("changes", [{}, PLAIN | {"use_dora": True}], ids=["whole", "dora"])
def test_what_is_more_than_factors_is_not_converted(changes: Changes, tmp_path: Path) -> None:
    model = adapt("llama", init_lora_weights="pissa", **changes)
    before = logits(model, tokens())
    model.save_pretrained(tmp_path / "start")
    start = str(tmp_path / "start")
    with pytest.raises(SpecError, match=r"converts LoRA factors only.*leave it out"):
        model.save_pretrained(tmp_path / "lora", path_initial_model_for_weight_conversion=start)
    assert torch.equal(logits(model, tokens()), before)
    assert list(model.peft_config) == ["default"]


def test_a_given_configuration_that_is_complete_is_used_itself(tmp_path: Path) -> None:
    adapt("llama").save_pretrained(tmp_path)
    config = PeftConfig.from_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path, config=config)
    assert loaded.peft_config["default"] is config
