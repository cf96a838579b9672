"""Export to plain LoRA: the same logits without this package's method, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model

from hylorada import SpecError, export_lora
from tests.families import adapt, add_second, both, build, logits, perturb, tokens

PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
EXACT = [
    *both("lora", **PLAIN),
    *both("dora", use_dora=True, **PLAIN),
    *both("share_ab", share_factors="AB", **PLAIN),
    *both("dora_share_a", use_dora=True, share_factors="A", **PLAIN),
    *both("scaled_plainly", use_rslora=False, **PLAIN),
]


@pytest.mark.parametrize(("family", "changes"), EXACT)
def test_peft_alone_gives_the_same_logits(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    export_lora(model, tmp_path / "plain")
    assert type(PeftConfig.from_pretrained(tmp_path / "plain")) is LoraConfig
    loaded = PeftModel.from_pretrained(build(family), tmp_path / "plain").eval()
    torch.testing.assert_close(
        logits(loaded, tokens()), logits(model, tokens()), atol=1e-5, rtol=1e-5
    )


def test_the_file_knows_nothing_of_this_method(tmp_path: Path) -> None:
    export_lora(adapt("llama", **PLAIN), tmp_path)
    stored = json.loads((tmp_path / "adapter_config.json").read_text())
    assert stored["peft_type"] == "LORA"
    assert not any("landmark" in name or "position" in name for name in stored)


def test_an_adapter_is_chosen_by_name(tmp_path: Path) -> None:
    model = add_second(adapt("llama"), **PLAIN)
    export_lora(model, tmp_path, "second")
    model.set_adapter("second")
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path).eval()
    torch.testing.assert_close(
        logits(loaded, tokens()), logits(model, tokens()), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("combination", ["svd", "cat", "linear"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_mixture_of_adapters_is_exported(family: str, combination: str, tmp_path: Path) -> None:
    model = add_second(adapt(family, **PLAIN), **PLAIN)
    model.base_model.add_weighted_adapter(
        ["default", "second"], [0.7, 0.3], "mixture", combination_type=combination
    )
    export_lora(model, tmp_path, "mixture")
    model.set_adapter("mixture")
    loaded = PeftModel.from_pretrained(build(family), tmp_path).eval()
    torch.testing.assert_close(
        logits(loaded, tokens()), logits(model, tokens()), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    "changes", [{}, {"landmark_enabled": False}, {"position_bias": False}], ids=str
)
def test_what_acts_by_position_is_refused_and_nothing_is_written(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"'default' cannot become plain LoRA.*landmark_enabled"):
        export_lora(adapt("llama", **changes), tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_landmarks_without_scale_do_not_stop_an_export(tmp_path: Path) -> None:
    model = adapt("llama", landmark_scale=0.0, perturbed=False)
    export_lora(model, tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists()


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {"lora_bias": True}),
        ("gpt2", {"bias": "lora_only"}),
        ("llama", {"modules_to_save": ["lm_head"]}),
        ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    ],
    ids=["lora_bias", "bias", "modules_to_save", "embedding"],
)
def test_what_else_lora_can_train_is_exported_or_refused(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = adapt(family, **PLAIN, **changes)
    try:
        export_lora(model, tmp_path)
    except SpecError:
        assert not any(tmp_path.iterdir())
        return
    loaded = PeftModel.from_pretrained(build(family), tmp_path).eval()
    torch.testing.assert_close(
        logits(loaded, tokens()), logits(model, tokens()), atol=1e-5, rtol=1e-5
    )


def test_an_unknown_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown adapter 'stranger'; known are default"):
        export_lora(adapt("llama", **PLAIN), tmp_path, "stranger")


def test_another_method_is_refused(tmp_path: Path) -> None:
    model = get_peft_model(build("llama"), LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(SpecError, match="got LoraModel"):
        export_lora(model, tmp_path)


def test_the_plain_configuration_keeps_what_lora_knows(tmp_path: Path) -> None:
    model = adapt("llama", r=3, use_dora=True, target_modules=["q_proj"], **PLAIN)
    export_lora(model, tmp_path)
    config = PeftConfig.from_pretrained(tmp_path)
    assert type(config) is LoraConfig
    assert (config.r, config.use_dora, config.use_rslora) == (3, True, True)
    assert config.peft_type == "LORA"


def test_an_exported_adapter_trains_on_with_peft_alone(tmp_path: Path) -> None:
    export_lora(adapt("llama", **PLAIN), tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path, is_trainable=True).eval()
    before = logits(loaded, tokens())
    perturb(loaded)
    assert not torch.allclose(logits(loaded, tokens()), before, atol=1e-3)
