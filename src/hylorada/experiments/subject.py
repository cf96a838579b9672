"""What can be evaluated: a model, an adapter on its base model, or a finished run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils import CONFIG_NAME
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada.errors import CheckpointError, SpecError
from hylorada.evaluation.metrics import EvaluationSpec, evaluate
from hylorada.experiments.assembly import token_store
from hylorada.experiments.config import DataSection
from hylorada.experiments.run_folder import (
    ADAPTER,
    CONFIG,
    RESULT,
    adapter_settings,
    is_run,
    model_section,
)
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
    device = chosen_device(device)
    named, adapter, context = _parts(source, base)
    try:
        loaded = load(named, device=device, context=context)
    except SpecError as error:
        if adapter is None or base is not None:
            raise
        raise SpecError(f"{error}; if the base model has moved, name it with --model") from error
    if adapter is None:
        return Subject(loaded.model, loaded.tokenizer, named, None)
    model = with_adapter(loaded.model, adapter, f"adapter {adapter}", named)
    return Subject(model, loaded.tokenizer, named, source)


def _parts(source: str, base: str | None) -> tuple[str, Path | None, ContextSpec | None]:
    """Return the base model, the adapter and the widened context that a source stands for."""
    folder = Path(source).expanduser()
    if (folder / CONFIG_NAME).is_file():
        named = base or adapter_settings(folder).get("base_model_name_or_path")
        if not named:
            raise SpecError(f"adapter {folder} does not name its base model; give it with --model")
        run = folder.parent
        return named, folder, model_section(run).context_spec() if is_run(run) else None
    if (folder / "config.json").is_file() or not (folder / CONFIG).is_file():
        return base or source, None, None
    section = model_section(folder)
    adapter = folder / ADAPTER if (folder / ADAPTER).is_dir() else None
    if adapter is None and not (folder / RESULT).is_file():
        raise SpecError(f"run {folder} is not finished; start hylorada train again to resume it")
    return base or section.full_source(), adapter, section.context_spec()


def with_adapter(model: PreTrainedModel, folder: Path, what: str, base: str) -> PeftModel:
    """Return a model with the adapter of a folder, ready to be measured.

    Raises:
        CheckpointError: `what` is damaged, or does not fit its base model.
    """
    try:
        return PeftModel.from_pretrained(model, str(folder)).eval()
    except SafetensorError as error:
        raise CheckpointError(
            f"{what} must have weights that can be read; they are damaged ({error}); copy or train "
            "it again"
        ) from error
    except (ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{what} must fit its base model, {base}; another one is named with --model "
            f"({type(error).__name__}: {reason})"
        ) from error


def chosen_device(name: str | None) -> str:
    """Return a device that this machine has; None takes CUDA where there is one."""
    count = torch.cuda.device_count()
    there = ["cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))]
    if name is None:
        return "cuda" if count else "cpu"
    if name not in there:
        raise SpecError(f"device must be one this machine has, {' or '.join(there)}; got {name!r}")
    return name


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
