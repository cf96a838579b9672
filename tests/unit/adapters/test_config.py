"""Every field is checked when the configuration is built; the error names rule and value."""

from dataclasses import fields
from typing import Any

import pytest
from peft import LoraConfig, PeftType

from hylorada import HyLoRADAConfig, SpecError


def test_the_defaults_are_those_of_the_method() -> None:
    config = HyLoRADAConfig()
    expected = {
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "use_rslora": True,
        "use_dora": False,
        "landmark_enabled": True,
        "landmark_design": "position_adaptive",
        "num_landmarks": 8,
        "num_position_buckets": 32,
        "bucket_spacing": "log",
        "max_positions": None,
        "bucket_temperature": 0.1,
        "landmark_scale": 0.1,
        "landmark_dropout": 0.0,
        "landmark_module": None,
        "position_bias": True,
        "position_bias_buckets": 64,
        "share_factors": None,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.peft_type is PeftType["HYLORADA"]


def test_it_is_a_lora_configuration_whose_own_fields_explain_themselves() -> None:
    assert issubclass(HyLoRADAConfig, LoraConfig)
    own = {field.name for field in fields(HyLoRADAConfig)} - {f.name for f in fields(LoraConfig)}
    for field in fields(HyLoRADAConfig):
        assert field.name not in own or field.metadata["help"].endswith("."), field.name


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"r": 0}, "r must be at least 1; got 0"),
    ({"r": -3}, "r must be at least 1; got -3"),
    ({"lora_alpha": 0}, "lora_alpha must be positive.*; got 0"),
    ({"lora_alpha": -16}, "lora_alpha must be positive.*; got -16"),
    ({"lora_dropout": 1.5}, r"lora_dropout must be in \[0, 1\); got 1.5"),
    ({"lora_dropout": 1.0}, r"lora_dropout must be in \[0, 1\); got 1.0"),
    ({"lora_dropout": -0.1}, r"lora_dropout must be in \[0, 1\); got -0.1"),
    ({"landmark_design": "cosmic"}, "landmark_design must be one of .*; got 'cosmic'"),
    ({"landmark_design": "per_layers"}, "did you mean 'per_layer'"),
    ({"num_landmarks": 0}, "num_landmarks must be at least 2 .*got 0.*landmark_enabled=False"),
    ({"num_landmarks": 1}, "num_landmarks must be at least 2 .*got 1"),
    ({"num_landmarks": 3, "landmark_design": "per_layer"}, "at least 4 for 'per_layer'; got 3"),
    ({"num_landmarks": 0, "landmark_design": "low_rank"}, "at least 1 for 'low_rank'; got 0"),
    ({"num_position_buckets": 0}, "num_position_buckets must be at least 1 .*got 0"),
    (
        {"num_position_buckets": 1, "landmark_design": "learnable"},
        "num_position_buckets must be at least 2 .*'learnable'; got 1",
    ),
    ({"bucket_spacing": "cubic"}, "log, uniform; got 'cubic'"),
    ({"max_positions": 0}, "max_positions must be at least 1 token; got 0"),
    ({"bucket_temperature": 0.0}, "temperature must be positive.*; got 0.0"),
    ({"bucket_temperature": -1.0}, "temperature must be positive.*; got -1.0"),
    ({"bucket_temperature_unit": "token"}, "context, bucket; got 'token'"),
    ({"landmark_scale": -0.1}, "landmark_scale must .*; got -0.1"),
    ({"landmark_dropout": 1.0}, r"landmark_dropout must be in \[0, 1\); got 1.0"),
    ({"position_bias_buckets": 0}, "position_bias_buckets must be at least 1; got 0"),
    ({"share_factors": "C"}, "share_factors must be None, 'A', 'B' or 'AB'; got 'C'"),
    ({"share_factors": ""}, "share_factors must be None, 'A', 'B' or 'AB'; got ''"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_value_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as refusal:
        HyLoRADAConfig(**changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "field", ["lora_alpha", "lora_dropout", "landmark_scale", "bucket_temperature"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(field: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"{field.removeprefix('bucket_')}.*got (nan|inf)"):
        HyLoRADAConfig(**dict[str, Any]({field: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"landmark_enabled": False, "num_landmarks": 0},
        {"position_bias": False, "position_bias_buckets": 0},
        {"num_landmarks": 1, "landmark_design": "static"},
        {"num_position_buckets": 1},
        {"landmark_scale": 0},
        {"max_positions": 1},
        {"share_factors": "AB", "use_dora": True},
    ],
    ids=str,
)
def test_a_value_that_is_not_used_or_at_its_edge_is_accepted(changes: dict[str, Any]) -> None:
    HyLoRADAConfig(**changes)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="landmark_count"):
        HyLoRADAConfig(landmark_count=3)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"landmark_enabled": False}, True),
        ({"landmark_enabled": False, "position_bias": False}, False),
        ({"landmark_enabled": False, "position_bias": False, "share_factors": "A"}, True),
    ],
)
def test_it_says_whether_anything_lives_outside_the_layers(
    changes: dict[str, Any], kept: bool
) -> None:
    assert HyLoRADAConfig(**changes).keeps_state_on_the_tuner() is kept
