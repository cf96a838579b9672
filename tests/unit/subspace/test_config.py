"""`SubLoRAConfig` refuses what breaks a rule."""

from pathlib import Path
from typing import Any

import pytest
from peft import PeftConfig

from hylorada import SpecError
from hylorada.subspace.config import SubLoRAConfig


def test_the_defaults_are_those_of_the_paper() -> None:
    config = SubLoRAConfig()
    assert (config.r, config.lora_alpha, config.scaling()) == (4, 32, 8.0)
    assert (config.intrinsic_dim, config.allocation_mode, config.projection) == (
        1000,
        "uniform",
        "grouped",
    )
    assert SubLoRAConfig(use_rslora=True).scaling() == 16.0


def test_the_head_is_set_apart_from_the_other_targets() -> None:
    config = SubLoRAConfig(target_modules=["q_proj", "lm_head"])
    assert config.target_modules == {"q_proj"}
    assert config.target_head
    assert not SubLoRAConfig(target_modules=["q_proj"]).target_head


def test_it_survives_its_file(tmp_path: Path) -> None:
    config = SubLoRAConfig(target_modules=["lm_head", "c_attn"], fused_parts="qv", intrinsic_dim=7)
    config.save_pretrained(str(tmp_path))
    found = PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(found, SubLoRAConfig)
    assert found.to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 0}, "r must be at least 1"),
        ({"lora_alpha": 0.0}, "lora_alpha must be positive"),
        ({"lora_dropout": 1.0}, r"lora_dropout must be in \[0, 1\)"),
        ({"fused_parts": "qx"}, "letters of 'qkv', each once; got 'qx'"),
        ({"fused_parts": "qq"}, "letters of 'qkv', each once"),
        ({"fused_parts": ""}, "letters of 'qkv', each once"),
        ({"allocation_mode": "shared"}, "uniform, fixed, learned"),
        ({"allocation_ratio": 1.5}, "B's share"),
        ({"intrinsic_dim": 0}, "intrinsic_dim must be at least 1"),
        ({"projection": "group"}, "unknown projection 'group'; did you mean 'grouped'"),
        ({"target_modules": ".*", "layers_to_transform": 1}, "write the layers into it"),
    ],
)
def test_settings_that_break_a_rule_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SubLoRAConfig(**changes)
