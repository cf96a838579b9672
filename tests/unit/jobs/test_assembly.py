"""A run's adapter section is the configuration of its method, field by field."""

from dataclasses import fields

import pytest
from peft import PeftConfig

from hylorada import HyLoRADAConfig, SubLoRAConfig
from hylorada.cli.train import parse
from hylorada.jobs.assembly import adapter_config
from hylorada.specs.adapters import AdapterSection, HyLoRADASection, LoRASection, SubLoRASection

OF_A_RUN = {"train_norms", "train_embeddings"}


@pytest.mark.parametrize(
    ("method", "own"), [("hylorada", HyLoRADAConfig()), ("sublora", SubLoRAConfig())]
)
def test_a_run_trains_what_the_methods_own_configuration_says(method: str, own: PeftConfig) -> None:
    of_run = adapter_config(parse([f"--adapter.method={method}"]).adapter)
    assert of_run is not None
    names = {spec.name for spec in fields(own)} - {"task_type"}
    assert {n: getattr(of_run, n) for n in names} == {n: getattr(own, n) for n in names}


@pytest.mark.parametrize(
    ("section", "own"),
    [(HyLoRADASection(), HyLoRADAConfig()), (SubLoRASection(), SubLoRAConfig())],
    ids=["hylorada", "sublora"],
)
def test_every_setting_of_a_section_is_a_field_of_the_configuration(
    section: AdapterSection, own: PeftConfig
) -> None:
    names = {spec.name for spec in fields(section)} - OF_A_RUN
    assert names == section.peft_fields().keys()
    assert {n: getattr(section, n) for n in names} == {n: getattr(own, n) for n in names}


def test_plain_lora_keeps_lora_settings_and_drops_the_rest() -> None:
    config = adapter_config(LoRASection(r=4))
    assert isinstance(config, HyLoRADAConfig)
    assert (config.r, config.landmark_enabled, config.position_bias) == (4, False, False)


def test_target_modules_reach_the_adapter() -> None:
    config = adapter_config(HyLoRADASection(target_modules=["q_proj"]))
    assert isinstance(config, HyLoRADAConfig)
    assert config.target_modules == {"q_proj"}


def test_no_adapter_has_no_configuration() -> None:
    assert adapter_config(AdapterSection()) is None
