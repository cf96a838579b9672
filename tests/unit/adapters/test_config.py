"""Every field is checked when the configuration is built; the error names rule and value."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import LoraConfig, PeftType

from hylorada import HyLoRADAConfig, SpecError
from hylorada.specs.adapters import check_lora


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


NAN, INFINITY = float("nan"), float("inf")
WHOLE = ["r", "num_landmarks", "num_position_buckets", "position_bias_buckets", "max_positions"]
REAL = ["lora_alpha", "lora_dropout", "bucket_temperature", "landmark_scale", "landmark_dropout"]
FLAGS = ["landmark_enabled", "position_bias", "use_dora", "use_rslora"]
TEXTS = ["landmark_design", "bucket_spacing", "bucket_temperature_unit", "landmark_module"]
OPTIONAL = {"max_positions", "landmark_module"}
OF_ANOTHER_TYPE: list[tuple[list[str], str, list[object]]] = [
    (WHOLE, "a whole number of at least 1", [True, 2.5, 8.0, NAN, INFINITY, "8", None, [8]]),
    (REAL, "a number", [False, "0.5", None, NAN, 1j]),
    (FLAGS, "True or False", ["false", 0, 1, None]),
    (TEXTS, "a string", [3, True, None, ["log"]]),
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"r": 0}, "r must be at least 1; got 0"),
    ({"r": -3}, "r must be at least 1; got -3"),
    ({"lora_alpha": 0}, "lora_alpha must be positive.*; got 0"),
    ({"lora_alpha": -16}, "lora_alpha must be positive.*; got -16"),
    ({"lora_dropout": 1.5}, r"lora_dropout must be in \[0, 1\); got 1.5; 0 turns it off"),
    ({"lora_dropout": 1.0}, r"lora_dropout must be in \[0, 1\); got 1.0"),
    ({"lora_dropout": -0.1}, r"lora_dropout must be in \[0, 1\); got -0.1"),
    ({"landmark_design": "cosmic"}, "landmark_design must be one of .*; got 'cosmic'"),
    ({"landmark_design": "per_layers"}, "did you mean 'per_layer'"),
    ({"num_landmarks": 0}, "num_landmarks must be at least 2 .*got 0.*landmark_enabled=False"),
    ({"num_landmarks": 1}, "num_landmarks must be at least 2 .*got 1"),
    ({"num_landmarks": 3, "landmark_design": "per_layer"}, "at least 4 for .*'per_layer'; got 3"),
    ({"num_landmarks": 0, "landmark_design": "low_rank"}, "at least 1 for .*'low_rank'; got 0"),
    ({"num_position_buckets": 0}, "num_position_buckets must be at least 1 .*got 0"),
    (
        {"num_position_buckets": 1, "landmark_design": "learnable"},
        "num_position_buckets must be at least 2 .*'learnable'; got 1",
    ),
    ({"bucket_spacing": "cubic"}, "log, uniform; got 'cubic'"),
    ({"max_positions": 0}, "max_positions must be at least 1; got 0; None takes"),
    ({"bucket_temperature": 0.0}, "temperature must be positive.*; got 0.0"),
    ({"bucket_temperature": -1.0}, "temperature must be positive.*; got -1.0"),
    ({"bucket_temperature_unit": "token"}, "context, bucket; got 'token'"),
    ({"landmark_scale": -0.1}, "landmark_scale must .*; got -0.1; 0 starts"),
    ({"landmark_dropout": 1.0}, r"landmark_dropout must be in \[0, 1\); got 1.0; 0 turns it off"),
    ({"position_bias_buckets": 0}, "position_bias_buckets .* 1; got 0; position_bias=False"),
    ({"share_factors": "C"}, "share_factors must be None, 'A', 'B' or 'AB'; got 'C'"),
    ({"share_factors": ""}, "share_factors must be None, 'A', 'B' or 'AB'; got ''"),
    ({"rank_pattern": {"q": 0}}, r"rank_pattern\['q'\] must be at least 1; got 0"),
    ({"rank_pattern": {"q": 2.5}}, r"rank_pattern\['q'\] must be a whole number .*; got 2.5"),
    ({"rank_pattern": {"q": True}}, r"rank_pattern\['q'\] must be a whole number .*; got True"),
    ({"rank_pattern": ["q"]}, r"rank_pattern must be a dictionary; got \['q'\]"),
    ({"alpha_pattern": {"k": 8, "q": -3}}, r"alpha_pattern\['q'\] must be positive.*; got -3"),
    ({"alpha_pattern": {"q": NAN}}, r"alpha_pattern\['q'\] must be a number; got nan"),
    ({"alpha_pattern": {"q": "8"}}, r"alpha_pattern\['q'\] must be a number; got '8'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_value_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as refusal:
        HyLoRADAConfig(**changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("field", REAL)
def test_a_number_that_is_not_finite_is_refused(field: str) -> None:
    with pytest.raises(SpecError, match=f"{field.removeprefix('bucket_')}.*got inf"):
        HyLoRADAConfig(**dict[str, Any]({field: INFINITY}))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "rule", "value"),
    [
        (field, rule, value)
        for names, rule, values in OF_ANOTHER_TYPE
        for field in names
        for value in values
        if value is not None or field not in OPTIONAL
    ],
)
def test_a_value_of_another_type_is_refused_whether_used_or_not(
    field: str, rule: str, value: object
) -> None:
    unused = {"landmark_enabled": False, "position_bias": False}
    for changes in ({}, unused):
        with pytest.raises(SpecError) as refusal:
            HyLoRADAConfig(**dict[str, Any](changes | {field: value}))
        assert str(refusal.value) == f"{field} must be {rule}; got {value!r}"


@pytest.mark.parametrize("value", [2.5, True, "8", None])
def test_lora_by_itself_takes_no_value_of_another_type(value: object) -> None:
    with pytest.raises(SpecError, match="r must be a whole number of at least 1; got"):
        check_lora(value, 16, 0.0)


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_become_those_of_python_and_can_be_stored(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        **dict.fromkeys(WHOLE, np.int64(4)),
        **dict.fromkeys(REAL, np.float32(0.5)),
        **dict.fromkeys(FLAGS, np.bool_(True)),
        "bucket_spacing": np.str_("log"),
        "rank_pattern": {"q_proj": np.int32(2)},
        "alpha_pattern": {"q_proj": np.float64(3.0)},
    }
    config = HyLoRADAConfig(**given)
    assert [type(getattr(config, name)) for name in WHOLE] == [int] * len(WHOLE)
    assert [type(getattr(config, name)) for name in REAL] == [float] * len(REAL)
    assert [type(getattr(config, name)) for name in FLAGS] == [bool] * len(FLAGS)
    config.save_pretrained(tmp_path)
    stored = HyLoRADAConfig.from_pretrained(tmp_path)
    assert {name: getattr(stored, name) for name in given} == given


def test_a_whole_number_stays_whole_where_any_number_will_do() -> None:
    config = HyLoRADAConfig(lora_alpha=16, landmark_scale=0, alpha_pattern={"q_proj": np.int64(8)})
    assert [type(config.lora_alpha), type(config.landmark_scale)] == [int, int]
    assert type(config.alpha_pattern["q_proj"]) is int


def test_patterns_may_be_left_out() -> None:
    config = HyLoRADAConfig(rank_pattern=None, alpha_pattern=None)
    assert (config.rank_pattern, config.alpha_pattern) == ({}, {})


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "eva", "corda", "orthogonal"])
def test_factors_fitted_to_one_layer_are_not_shared(start: str) -> None:
    message = (
        f"share_factors='A' needs .* got init_lora_weights='{start}': set it to True, False or"
    )
    with pytest.raises(SpecError, match=message):
        HyLoRADAConfig(share_factors="A", init_lora_weights=start)


@pytest.mark.parametrize("changes", [{"position_bias": True}, {"use_dora": True}], ids=str)
def test_ranks_from_data_are_for_plain_layers(changes: dict[str, Any]) -> None:
    settings = {"position_bias": False, "init_lora_weights": "eva", **changes}
    with pytest.raises(SpecError, match="set position_bias=False and use_dora=False"):
        HyLoRADAConfig(**settings)


@pytest.mark.parametrize("start", [True, False, "gaussian"])
def test_factors_fitted_to_no_layer_are_shared(start: bool | str) -> None:
    assert HyLoRADAConfig(share_factors="AB", init_lora_weights=start).share_factors == "AB"


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
