"""A configuration says the same in YAML, on the command line and in Python."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from hylorada import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada.experiments.config import (
    OURS,
    AdapterSection,
    DataSection,
    ModelSection,
    TrainConfig,
    normalised,
    parse,
)
from hylorada.training.settings import TrainingSpec

SHIPPED = Path(__file__).parents[3] / "configs" / "train.yaml"


def test_an_empty_command_line_is_the_default_run() -> None:
    assert parse([]) == TrainConfig()


def test_sections_are_reached_by_dots() -> None:
    config = parse(["--data.num_train=5", "--adapter.use_dora", "true", "--out", "there"])
    assert config.data.num_train == 5
    assert config.adapter.use_dora
    assert config.out == "there"


@pytest.mark.parametrize(
    "spelling", ["--data.num_train=7", "--data.num-train=7", "--num_train=7", "--num-train=7"]
)
def test_four_spellings_are_one_option(spelling: str) -> None:
    assert parse([spelling]).data.num_train == 7


def test_values_keep_their_hyphens() -> None:
    assert normalised("--model.source=a-b/c--d") == "--model.source=a-b/c--d"
    assert normalised("a-value") == "a-value"
    assert normalised("--source=x") == "--source=x"  # two sections have a source


def test_yaml_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data:\n  length: 64\n  num_train: 3\n")
    config = parse([f"--config={file}", "--num-train=9"])
    assert (config.data.length, config.data.num_train) == (64, 9)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = parse(["--adapter.target_modules=[q_proj,v_proj]", "--report_to=[tensorboard]"])
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.as_dict()))
    assert config.adapter.target_modules == ("q_proj", "v_proj")
    assert parse([f"--config={file}"]) == config


def test_the_shipped_configuration_is_valid() -> None:
    assert parse([f"--config={SHIPPED}"]).model.source == "tiny"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--data.num_trian=3", "did you mean 'data.num_train'"),
        ("--lenght=3", "did you mean 'data.length'"),
        ("--training.precision=int8", "precision"),
        ("--training.steps=many", "steps"),
        ("--adapter.r=0", "r must be at least 1; got 0"),
        ("--adapter.landmark_design=positional", "landmark_design"),
        ("--config=/absent.yaml", "does not exist"),
        ("--xyzzy=1", "unrecognized arguments: --xyzzy=1"),
    ],
)
def test_a_bad_argument_is_one_line(argument: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse([argument])
    assert "\n" not in str(error.value)


def test_an_unknown_key_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("adapter:\n  lora_alfa: 3\n")
    with pytest.raises(SpecError, match=r"lora_alfa.*did you mean 'adapter.lora_alpha'"):
        parse([f"--config={file}"])


def test_the_adapter_section_has_the_fields_and_defaults_of_its_config() -> None:
    section, config = AdapterSection(), HyLoRADAConfig()
    names = {spec.name for spec in fields(AdapterSection)}
    assert names >= OURS
    shared = names - {"method", "train_norms", "train_embeddings"}
    assert {n: getattr(section, n) for n in shared} == {n: getattr(config, n) for n in shared}


def test_plain_lora_keeps_lora_settings_and_drops_the_rest() -> None:
    config = AdapterSection(method="lora", r=4, landmark_design="bias").peft_config()
    assert (config.r, config.landmark_enabled, config.position_bias) == (4, False, False)


def test_target_modules_reach_the_adapter() -> None:
    config = AdapterSection(target_modules=("q_proj",)).peft_config()
    assert config.target_modules == {"q_proj"}


def test_a_wider_context_becomes_a_spec() -> None:
    assert ModelSection().context_spec() is None
    spec = ModelSection(context=4096, scaling="yarn").context_spec()
    assert spec is not None
    assert (spec.length, spec.scaling) == (4096, "yarn")


@pytest.mark.parametrize(("field", "value"), [("length", 1), ("num_train", 0), ("num_val", -1)])
def test_data_settings_outside_their_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(SpecError, match=field):
        DataSection(**{field: value})


def test_the_configuration_is_frozen() -> None:
    config = TrainConfig()
    assert replace(config, training=TrainingSpec(seed=1)).training.seed == 1
    with pytest.raises(AttributeError):
        config.out = "elsewhere"
