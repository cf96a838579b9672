"""What lies in the folder of a run and of its adapter, and by which names."""

import json
from pathlib import Path
from typing import Any

import yaml
from peft.utils import CONFIG_NAME

from hylorada.errors import SpecError
from hylorada.experiments.config import ModelSection

CONFIG, ENVIRONMENT, RESULT = "config.yaml", "environment.json", "result.json"
METRICS, ADAPTER, CHECKPOINTS = "metrics.jsonl", "adapter", "checkpoints"


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or not."""
    return all((folder / name).is_file() for name in (CONFIG, ENVIRONMENT))


def model_section(run: Path) -> ModelSection:
    """Return which model a run adapted, from its configuration."""
    path = run / CONFIG
    try:
        return ModelSection(**yaml.safe_load(path.read_text())["model"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(
            f"{path} must hold the configuration of a run, and its model; it does not ({reason})"
        ) from error


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Return what PEFT wrote of an adapter into its folder."""
    path = folder / CONFIG_NAME
    try:
        settings = json.loads(path.read_text())
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise SpecError(f"{path} must hold an adapter's configuration in JSON; it cannot be read")
    return settings
