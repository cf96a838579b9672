"""A configuration says the same in YAML, on the command line and in Python."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hylorada.cli import main
from hylorada.cli.train import normalised, parse
from hylorada.errors import SpecError
from hylorada.specs.adapters import (
    METHODS,
    AdapterSection,
    HyLoRADASection,
    LoRASection,
    SubLoRASection,
)
from hylorada.specs.run import DataSection, ModelSection, RunConfig, TrainingSpec

CONFIGS = Path(__file__).parents[3] / "configs"


def stored(folder: Path, text: str) -> str:
    (folder / "run.yaml").write_text(text)
    return f"--config={folder / 'run.yaml'}"


def test_an_empty_command_line_is_the_default_run() -> None:
    assert parse([]) == RunConfig()


def test_sections_are_reached_by_dots() -> None:
    config = parse(["--data.num_train=5", "--adapter.use_dora", "true", "--out", "there"])
    assert config.data.num_train == 5
    assert config.adapter == HyLoRADASection(use_dora=True)
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


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--data.replace={'<unk>': unk}", {"<unk>": "unk"}),
        ("--data.num_val=null", None),
        ("--data.cache=null", None),
        ("--learning_rate=5e-4", 5e-4),
        ("--epochs=2", 2.0),
        ("--report_to=[tensorboard, wandb]", ("tensorboard", "wandb")),
        ("--progress=False", False),
        ("--model.source=1e5", "1e5"),
    ],
)
def test_a_word_becomes_what_its_setting_takes(word: str, expected: object) -> None:
    section, name = normalised(word).removeprefix("--").partition("=")[0].split(".")
    assert getattr(getattr(parse([word]), section), name) == expected


def test_yaml_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    file = stored(tmp_path, "data:\n  length: 64\n  num_train: 3\nout: there\n")
    config = parse(["--num-train=9", file])
    assert (config.data.length, config.data.num_train, config.out) == (64, 9, "there")


def test_a_later_file_wins(tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("data: {length: 32}")
    file = stored(tmp_path, "data: {length: 64, num_train: 3}")
    data = parse([file, f"--config={tmp_path / 'more.yaml'}"]).data
    assert (data.length, data.num_train) == (32, 3)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_is_read_back(method: str, tmp_path: Path) -> None:
    words = [f"--adapter.method={method}", "--report_to=[tensorboard]", "--train_norms=true"]
    if method != "none":
        words.append("--adapter.target_modules=[q_proj,v_proj]")
    config = parse(words)
    assert type(config.adapter) is METHODS[method]
    assert parse([stored(tmp_path, yaml.safe_dump(config.as_dict()))]) == config


def test_print_config_shows_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--method=sublora", "--print_config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown == RunConfig(adapter=SubLoRASection()).as_dict()


@pytest.mark.parametrize(("name", "source"), [("train", "tiny"), ("sublora_train", "random")])
def test_the_shipped_configurations_are_valid(name: str, source: str) -> None:
    assert parse([f"--config={CONFIGS / name}.yaml"]).model.source == source


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--data.num_trian=3", "did you mean '--data.num_train'"),
        ("--lenght=3", "did you mean '--data.length'"),
        ("--training.precision=int8", "--training.precision must be one of float32, bfloat16"),
        ("--training.steps=many", "--training.steps must be a whole number; got 'many'"),
        ("--progress=perhaps", "--training.progress must be true or false"),
        ("--data.replace=3", "--data.replace must be a JSON object"),
        ("--adapter.r=0", "r must be at least 1; got 0"),
        ("--adapter.method=lorra", "unknown method 'lorra'; did you mean 'lora'?"),
        ("--config=/absent.yaml", "does not exist"),
        ("--xyzzy=1", "unrecognized arguments: --xyzzy=1"),
        ("--training.steps", "--training.steps: expected one argument"),
    ],
)
def test_a_bad_argument_is_one_line(argument: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse([argument])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adapter:\n  lora_alfa: 3\n", r"lora_alfa.*did you mean 'adapter.lora_alpha'"),
        ("trainig:\n  epochs: 3\n", r"section of .*: 'trainig'; did you mean 'training'"),
        ("training: 3\n", "section 'training' of .* must hold settings; got 3"),
        ("training: {epochs: many}\n", "--training.epochs must be a number; got 'many'"),
        ("training: {epochs: [\n", "--config must name a YAML file"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse([stored(tmp_path, text)])
    assert "\n" not in str(error.value)


# Methods


def test_a_method_has_its_own_settings_and_defaults() -> None:
    config = parse(["--adapter.method=sublora", "--intrinsic_dim=12"]).adapter
    assert config == SubLoRASection(intrinsic_dim=12)
    assert parse(["--adapter.method=lora"]).adapter == LoRASection()
    assert parse(["--adapter.method=none"]).adapter == AdapterSection()


@pytest.mark.parametrize(
    "words",
    [
        ["--adapter.method=lora", "--adapter.landmark_design=bias"],
        ["--adapter.intrinsic_dim=12"],
        ["--adapter.method=none", "--adapter.r=8"],
    ],
)
def test_settings_of_another_method_are_refused(words: list[str]) -> None:
    with pytest.raises(SpecError, match="is a setting of method"):
        parse(words)


def test_a_file_for_one_method_serves_another(tmp_path: Path) -> None:
    file = stored(tmp_path, "adapter: {r: 2, landmark_design: bias}")
    assert parse([file, "--adapter.method=lora"]).adapter == LoRASection(r=2)
    file = stored(tmp_path, "adapter: {method: lora, r: 2, landmark_design: bias}")
    with pytest.raises(
        SpecError, match=r"adapter\.landmark_design is a setting of method hylorada"
    ):
        parse([file])


def test_files_of_the_release_with_a_section_for_sublora_are_read(tmp_path: Path) -> None:
    text = """
adapter: {method: sublora, r: 4, use_dora: false, landmark_enabled: true, position_bias: true}
sublora: {intrinsic_dim: 12, projection: dense}
"""
    config = parse([stored(tmp_path, text), "--sublora.allocation_mode=learned"]).adapter
    assert config == SubLoRASection(
        r=4, intrinsic_dim=12, projection="dense", allocation_mode="learned"
    )


# Sections


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
    config = RunConfig()
    assert replace(config, training=TrainingSpec(seed=1)).training.seed == 1
    with pytest.raises(AttributeError):
        config.out = "elsewhere"
