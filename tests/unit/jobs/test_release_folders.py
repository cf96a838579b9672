"""Run folders that version 0.1 wrote are read, or refused in one line that says what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hylorada.cli.train import parse
from hylorada.errors import SpecError
from hylorada.files import read_record
from hylorada.jobs.evaluate import load_subject
from hylorada.jobs.pipeline import train_run
from hylorada.jobs.run import is_run, model_section
from hylorada.records.runs import Environment, RunResult
from hylorada.specs.adapters import HyLoRADASection, SubLoRASection
from tests.small_run import write_model, write_text

IDENTITY = {"id": "5f0c", "config": "aa11", "data": "bb22", "code": "cc33"}
RESULT = {
    "schema": 1,
    **IDENTITY,
    "seed": 42,
    "steps": 12,
    "train_loss": 5.43,
    "valid_loss": 5.25,
    "valid_perplexity": 190.6,
    "valid_tokens": 92,
    "best_step": None,
    "trainable_parameters": 1234,
    "audit": "all 21 trainable parameters are optimised, received gradients and moved",
    "peak_memory_bytes": None,
    "seconds": 0.7,
}
FROZEN = {
    "schema": 1,
    **IDENTITY,
    "seed": 42,
    "steps": 0,
    "valid_loss": 5.55,
    "valid_perplexity": 257.2,
    "valid_tokens": 92,
    "trainable_parameters": 0,
}
ENVIRONMENT = {
    "run": IDENTITY,
    "python": "3.11.7",
    "platform": "Linux-6.1-x86_64",
    "packages": {"hylorada": "0.1.0", "torch": "2.13.0"},
    "commit": None,
    "cpus": 2,
    "threads": 1,
    "accelerators": [],
    "processes": 1,
}
SUBLORA = {
    "intrinsic_dim": 1000,
    "allocation_mode": "uniform",
    "allocation_ratio": 0.5,
    "gate_sharpness": 10.0,
    "gate_sharpness_start": None,
    "relative_sharpness": False,
    "projection": "grouped",
    "projection_seed": 137,
    "fused_parts": None,
}
ADAPTER = {
    "method": "hylorada",
    "train_norms": False,
    "train_embeddings": False,
    "r": 8,
    "lora_alpha": 16.0,
    "lora_dropout": 0.05,
    "target_modules": None,
    "use_rslora": True,
    "use_dora": False,
    "landmark_enabled": True,
    "landmark_design": "position_adaptive",
    "num_landmarks": 8,
    "num_position_buckets": 32,
    "bucket_spacing": "log",
    "max_positions": None,
    "bucket_temperature": 0.1,
    "bucket_temperature_unit": "context",
    "landmark_scale": 0.1,
    "landmark_dropout": 0.0,
    "landmark_module": None,
    "position_bias": True,
    "position_bias_buckets": 64,
    "share_factors": None,
}


def configuration(folder: Path, **adapter: Any) -> dict[str, Any]:
    return {
        "model": {
            "source": str(folder / "model"),
            "shape": None,
            "initial_seed": 137,
            "tokenizer": None,
            "context": None,
            "scaling": "linear",
        },
        "data": {
            "source": str(folder / "text"),
            "length": 24,
            "packing": "blocks",
            "num_train": 24,
            "num_val": 4,
            "text_field": None,
            "lines": "auto",
            "replace": {},
            "cache": str(folder / "cache"),
        },
        "adapter": ADAPTER | adapter,
        "sublora": SUBLORA,
        "training": {"epochs": 2.0, "steps": None, "batch_size": 4, "cpu": True, "seed": 42},
        "optimisation": {"learning_rate": 0.0005, "landmark_multiplier": None},
        "out": str(folder / "run"),
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a model, a text, and a finished run of the release."""
    write_model(tmp_path / "model")
    write_text(tmp_path / "text")
    run = tmp_path / "run"
    run.mkdir()
    (run / "result.json").write_text(json.dumps(RESULT, indent=1) + "\n")
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT, indent=1) + "\n")
    settings = yaml.safe_dump(configuration(tmp_path), sort_keys=False)
    (run / "config.yaml").write_text(settings)
    return tmp_path


def test_result_and_environment_are_read(place: Path) -> None:
    result = read_record(place / "run" / "result.json", RunResult)
    assert (result.id, result.valid_perplexity, result.seconds) == ("5f0c", 190.6, 0.7)
    environment = read_record(place / "run" / "environment.json", Environment)
    assert environment.run is not None
    assert environment.run.code == "cc33"


def test_the_result_of_a_frozen_model_is_read(place: Path) -> None:
    path = place / "run" / "result.json"
    path.write_text(json.dumps(FROZEN, indent=1) + "\n")
    result = read_record(path, RunResult)
    assert (result.train_loss, result.audit, result.seconds) == (None, None, None)


def test_the_configuration_is_read_with_its_section_for_sublora(place: Path) -> None:
    config = parse([f"--config={place / 'run' / 'config.yaml'}"])
    assert isinstance(config.adapter, HyLoRADASection)
    assert (config.data.length, config.training.epochs, config.adapter.r) == (24, 2.0, 8)


def test_a_sublora_run_keeps_the_settings_it_was_trained_with(place: Path) -> None:
    """The release took rank and scaling of SubLoRA from the adapter section."""
    path = place / "run" / "config.yaml"
    path.write_text(yaml.safe_dump(configuration(place, method="sublora", max_positions=None)))
    adapter = parse([f"--config={path}"]).adapter
    assert isinstance(adapter, SubLoRASection)
    assert (adapter.r, adapter.lora_alpha, adapter.use_rslora) == (8, 16.0, True)
    assert adapter.intrinsic_dim == 1000


def test_the_folder_is_a_run_whose_model_can_be_evaluated(place: Path) -> None:
    run = place / "run"
    assert is_run(run)
    assert model_section(run).source == str(place / "model")
    assert load_subject(str(run)).base == str(place / "model")


def test_training_in_the_folder_again_is_refused_with_the_repair(place: Path) -> None:
    config = parse([f"--config={place / 'run' / 'config.yaml'}", "--progress=false"])
    with pytest.raises(SpecError, match=r"holds run 5f0c, .* choose another folder with --out$"):
        train_run(config)
    assert read_record(place / "run" / "result.json", RunResult).id == "5f0c"
