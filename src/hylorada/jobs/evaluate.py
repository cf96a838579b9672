"""The station that evaluates: any model, adapter or run by name, or the runs of a study."""

import json
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np
import torch
from peft import PeftModel
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada.errors import CheckpointError, SpecError
from hylorada.evaluation.inspection import (
    GATE_WINDOWS,
    first_windows,
    future_leak,
    gates,
    learned_boundaries,
)
from hylorada.evaluation.metrics import Case, evaluate
from hylorada.evaluation.perplexity import perplexity, position_curve
from hylorada.evaluation.retrieval import evidence_position
from hylorada.jobs.assembly import Item, Workshop, token_store
from hylorada.jobs.run import ADAPTER, CONFIG, RESULT, is_run, model_section
from hylorada.models.pretrained import LoadedModel, load
from hylorada.records.evaluations import Evaluation, Subject
from hylorada.records.runs import Clusters, RunCost, RunEvaluation, RunResult, TestText
from hylorada.specs.evaluation import EvaluationSpec
from hylorada.specs.run import ContextSpec, DataSection, RunConfig
from hylorada.text.batches import IGNORED
from hylorada.text.tokens import require_disjoint

SAMPLED_SEQUENCES = 64


class Predictor(NamedTuple):
    """A model ready to be measured, and what it is made of."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: str
    adapter: str | None


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
) -> Evaluation:
    """Return the metrics of a model, adapter or run on one split of a corpus."""
    section = DataSection(source=data, lines=lines)
    loaded = load_subject(source, base=base, device=device)
    store = token_store(section, split, loaded.tokenizer, progress=spec.progress)
    found = evaluate(loaded.model, loaded.tokenizer, store, metrics, spec)
    subject = Subject(model=loaded.base, adapter=loaded.adapter, data=data, split=split)
    return msgspec.structs.replace(found, subject=subject)


def load_subject(source: str, *, base: str | None = None, device: str | None = None) -> Predictor:
    """Return a model, adapter or run: a model's source, an adapter's folder or a run's folder.

    Without `base` an adapter takes the model it was trained on.
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
        return Predictor(loaded.model, loaded.tokenizer, named, None)
    with fits(f"adapter {adapter}", named):
        model = PeftModel.from_pretrained(loaded.model, str(adapter)).eval()
    return Predictor(model, loaded.tokenizer, named, source)


def _parts(source: str, base: str | None) -> tuple[str, Path | None, ContextSpec | None]:
    """Return the base model, the adapter and the widened context that a source stands for."""
    folder = Path(source).expanduser()
    if (folder / CONFIG_NAME).is_file():
        named = base or adapter_settings(folder).get("base_model_name_or_path")
        if not named:
            raise SpecError(f"adapter {folder} does not name its base model; give it with --model")
        run = folder.parent
        return str(named), folder, model_section(run).context_spec() if is_run(run) else None
    if (folder / "config.json").is_file() or not (folder / CONFIG).is_file():
        return base or source, None, None
    section = model_section(folder)
    adapter = folder / ADAPTER if (folder / ADAPTER).is_dir() else None
    if adapter is None and not (folder / RESULT).is_file():
        raise SpecError(f"run {folder} is not finished; start hylorada train again to resume it")
    return base or section.full_source(), adapter, section.context_spec()


def adapter_settings(folder: Path) -> dict[str, object]:
    """Return what PEFT wrote of an adapter into its folder."""
    path = folder / CONFIG_NAME
    try:
        settings = json.loads(path.read_text())
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise SpecError(f"{path} must hold an adapter's configuration in JSON; it cannot be read")
    return settings


@contextmanager
def fits(what: str, base: str) -> Iterator[None]:
    """Turn what PEFT raises inside the block into one line: damaged, or not for this base."""
    try:
        yield
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


def measure_run(
    config: RunConfig, spec: EvaluationSpec, folder: Path, workshop: Workshop, result: RunResult
) -> RunEvaluation:
    """Evaluate a run's stored adapter on the test text, and look inside it."""
    base, data = workshop.model(config), workshop.run_data(config)
    store = workshop.text(config, "test")
    require_disjoint({"train": workshop.text(config, "train"), "test": store})
    adapter = folder / ADAPTER
    model: PreTrainedModel | PeftModel = base.model
    if adapter.is_dir():
        model = PeftModel.from_pretrained(base.model, str(adapter))
    case = Case(model, base.tokenizer, store, spec)
    weights = adapter / SAFETENSORS_WEIGHTS_NAME
    windows = first_windows(store, config.data.length, GATE_WINDOWS)
    with as_trained(config, base):
        nats, tokens = case.corpus.cluster_sums()
        try:
            evidence = evidence_position(case)
        except SpecError:  # a context too short for the question is no reason to stop
            evidence = None
        found = RunEvaluation(
            ppl=perplexity(case),
            position_curve=position_curve(case),
            evidence=evidence,
            clusters=Clusters(
                unit=case.corpus.cluster_unit,
                nats=nats.tolist(),
                tokens=tokens.astype(np.int64).tolist(),
            ),
            boundaries=learned_boundaries(model),
            gates=gates(model, windows),
            future_leak=future_leak(model, windows[:1]),
            test=TestText(
                fingerprint=store.fingerprint,
                documents=int(np.unique(case.corpus.documents).size),
            ),
            valid_share=valid_share(data.train),
            adapter_dtypes=stored_dtypes(weights),
            cost=_cost(config, weights, result),
        )
    if isinstance(model, PeftModel):
        model.unload()
    return found


def as_trained(config: RunConfig, base: LoadedModel) -> torch.autocast:
    """Compute in the precision of the training inside the block."""
    device = next(base.model.parameters()).device.type
    return torch.autocast(device, torch.bfloat16, config.training.precision == "autocast")


def valid_share(data: Dataset[Item]) -> float:
    """Return the share of training positions that are text, over the first sequences."""
    count = min(SAMPLED_SEQUENCES, len(cast(Sized, data)))
    rows = [torch.as_tensor(data[index]["labels"]) for index in range(count)]
    return sum(int((row != IGNORED).sum()) for row in rows) / sum(len(row) for row in rows)


def stored_dtypes(weights: Path) -> list[str]:
    """Return the kinds of numbers in a file of weights, as safetensors names them."""
    if not weights.is_file():
        return []
    with safe_open(weights, framework="pt") as file:
        names = file.keys()
        return sorted({file.get_slice(name).get_dtype() for name in names})


def _cost(config: RunConfig, weights: Path, result: RunResult) -> RunCost:
    tokens = result.steps * config.training.batch_size * config.data.length
    return RunCost(
        train_seconds=result.seconds,
        tokens_per_second=tokens / result.seconds if result.seconds else None,
        peak_memory_bytes=result.peak_memory_bytes,
        adapter_bytes=weights.stat().st_size if weights.is_file() else None,
    )
