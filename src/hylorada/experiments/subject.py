"""What can be evaluated: a model, an adapter on its base model, or a finished run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada.errors import CheckpointError, SpecError
from hylorada.evaluation.metrics import EvaluationSpec, evaluate
from hylorada.experiments.assembly import token_store
from hylorada.experiments.config import DataSection, ModelSection
from hylorada.models.context import ContextSpec
from hylorada.models.pretrained import load


@dataclass(frozen=True, slots=True)
class Subject:
    """A model ready to be measured, and what it is made of."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: str
    adapter: str | None


def load_subject(source: str, *, base: str | None = None, device: str | None = None) -> Subject:
    """Return a model, adapter or run by its name or folder.

    Args:
        source: A model source, a folder with adapter_config.json, or a run's folder.
        base: The base model of an adapter; None takes the one it was trained on.
        device: Where to put it; None takes CUDA where there is one.
    """
    device = _device(device)
    adapter, context, given = None, None, base
    folder = Path(source).expanduser()
    is_model = (folder / "config.json").is_file()
    if (folder / "config.yaml").is_file() and not is_model:
        base = base or model_section(folder).full_source()
        context = _widened_context(folder)
        adapter = folder / "adapter" if (folder / "adapter").is_dir() else None
        if adapter is None and not (folder / "result.json").is_file():
            raise SpecError(
                f"run {folder} is not finished; start hylorada train again to resume it"
            )
    elif (folder / "adapter_config.json").is_file():
        adapter, context = folder, _widened_context(folder.parent)
        described = json.loads((folder / "adapter_config.json").read_text())
        base = base or described.get("base_model_name_or_path")
        if not base:
            raise SpecError(f"adapter {folder} does not name its base model; give it with --model")
    try:
        loaded = load(base or source, device=device, context=context)
    except SpecError as error:
        if adapter is None or given is not None:
            raise
        raise SpecError(f"{error}; if the base model has moved, name it with --model") from error
    model: nn.Module = loaded.model
    if adapter is not None:
        model = _with_adapter(loaded.model, adapter, base or source)
    return Subject(model, loaded.tokenizer, base or source, None if adapter is None else source)


def model_section(run: Path) -> ModelSection:
    """Return which model a run adapted, from its configuration."""
    return ModelSection(**yaml.safe_load((run / "config.yaml").read_text())["model"])


def _widened_context(run: Path) -> ContextSpec | None:
    """Return the context that a run widened its model to: its adapter was trained with it."""
    if not (run / "environment.json").is_file():
        return None
    return model_section(run).context_spec()


def _device(name: str | None) -> str:
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    known = name.partition(":")[0] in ("cpu", "cuda")
    if not known or (name.startswith("cuda") and not torch.cuda.is_available()):
        raise SpecError(f"device must be one this machine has, cpu or cuda; got {name!r}")
    return name


def _with_adapter(model: PreTrainedModel, adapter: Path, base: str) -> nn.Module:
    try:
        return PeftModel.from_pretrained(model, str(adapter)).eval()
    except (ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"adapter {adapter} must fit its base model, {base}; another one is named with --model "
            f"({type(error).__name__}: {reason})"
        ) from error


def evaluate_subject(
    source: str,
    *,
    data: str,
    split: str,
    metrics: Sequence[str],
    spec: EvaluationSpec,
    lines: str = "auto",
    base: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Return the metrics of a model, adapter or run on one split of a corpus."""
    section = DataSection(source=data, lines=lines)
    subject = load_subject(source, base=base, device=device)
    store = token_store(section, split, subject.tokenizer, progress=spec.progress)
    measured = evaluate(subject.model, subject.tokenizer, store, metrics, spec)
    origin = {"model": subject.base, "adapter": subject.adapter, "data": data, "split": split}
    return {"subject": origin, **measured}
