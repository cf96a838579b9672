"""The method joins PEFT once, and never replaces another owner."""

import pytest
from peft import PeftType, get_peft_config
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.lora import LoraModel

from hylorada import HyLoRADAConfig, HyLoRADAModel
from hylorada.adapters.registration import adapter_keys, add_peft_type, register
from tests.families import adapt, add_second


def test_the_enum_has_a_real_member() -> None:
    member = PeftType["HYLORADA"]
    assert isinstance(member, PeftType)
    assert member is PeftType("HYLORADA") is PeftType.HYLORADA
    assert member.value == member == "HYLORADA"
    assert member in list(PeftType)


def test_adding_a_member_again_returns_the_first() -> None:
    count = len(PeftType)
    assert add_peft_type("HYLORADA") is PeftType["HYLORADA"]
    assert add_peft_type("LORA") is PeftType.LORA
    assert len(PeftType) == count


def test_peft_finds_configuration_and_tuner() -> None:
    member = PeftType["HYLORADA"]
    assert PEFT_TYPE_TO_CONFIG_MAPPING[member] is HyLoRADAConfig
    assert PEFT_TYPE_TO_TUNER_MAPPING[member] is HyLoRADAModel
    config = get_peft_config({"peft_type": "HYLORADA", "r": 3})
    assert isinstance(config, HyLoRADAConfig)
    assert config.r == 3


def test_registering_again_is_harmless() -> None:
    register(PeftType["HYLORADA"], HyLoRADAConfig, HyLoRADAModel)
    assert PEFT_TYPE_TO_TUNER_MAPPING[PeftType["HYLORADA"]] is HyLoRADAModel


def test_a_method_with_another_owner_is_not_replaced() -> None:
    with pytest.raises(ImportError, match=r"already has a method 'LORA' \(peft"):
        register(PeftType.LORA, HyLoRADAConfig, HyLoRADAModel)
    assert PEFT_TYPE_TO_TUNER_MAPPING[PeftType.LORA] is LoraModel


def test_the_keys_of_an_adapter_are_its_own() -> None:
    model = add_second(adapt("llama", share_factors="A"))
    first, second = adapter_keys(model, "default"), adapter_keys(model, "second")
    assert not first & second
    assert first | second == {name for name in model.state_dict() if "lora_" in name}
