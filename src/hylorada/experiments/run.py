"""One run, one folder: started again it resumes, and once finished it only answers."""

import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import PeftModel
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hylorada.errors import SpecError
from hylorada.experiments.assembly import (
    RunData,
    add_adapter,
    load_data,
    load_model,
    training_spec,
)
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.identity import identify
from hylorada.experiments.run_folder import (
    ADAPTER,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    RESULT,
    Work,
    run_folder,
)
from hylorada.files import write_atomically, written_atomically
from hylorada.models.pretrained import LoadedModel
from hylorada.seeds import derived_seed
from hylorada.subspace.trace import subspace_callbacks
from hylorada.training.settings import TrainingSpec
from hylorada.training.trainer import train, validation_loss

SCHEMA = 1
PACKAGES = ("hylorada", "torch", "transformers", "peft", "accelerate", "numpy", "safetensors")
SEEDS_OF_TRAINER = 2**31


def run(
    config: TrainConfig,
    *,
    base: LoadedModel | None = None,
    data: RunData | None = None,
    repetition: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Carry out a training run and return its result, as `result.json` holds it.

    A finished run returns its result without running again. An unfinished one resumes from its
    last good checkpoint and ends with the numbers of a run that was never interrupted.

    Args:
        config: What is trained, on what, and where the run's folder lies.
        base: The frozen model, already loaded; it is given back without its adapter.
        data: The data of this configuration, already loaded.
        repetition: Above zero, the same data and first values in another order with other dropout.
        callbacks: Also told of every step.
    """
    processes = TrainingArguments(output_dir=os.devnull, use_cpu=config.training.cpu)
    is_main = processes.process_index == 0
    loaded = load_model(config) if base is None else base
    if data is None:
        with processes.main_process_first(desc="tokenising"):
            data = load_data(config, loaded.tokenizer)
    identity = identify(config, data.fingerprint, repetition)
    folder = Path(config.out or Path("runs") / identity["id"])
    if (finished := _finished(folder, identity)) is not None:
        return finished
    with run_folder(folder) if is_main else nullcontext(Work()) as work:
        if is_main:
            _describe(folder, config, identity, processes.world_size)
        if config.adapter.method == "none":
            outcome = _evaluate_frozen(loaded.model, config, data, folder)
        else:
            adapted = add_adapter(loaded.model, config)
            watching = [_FirstStep(work), *callbacks]
            outcome = _train(adapted, config, data, folder, repetition, watching)
            if is_main:
                with written_atomically(folder / ADAPTER) as partial:
                    adapted.save_pretrained(partial)
            adapted.unload()
        result = {"schema": SCHEMA, **identity, "seed": config.training.seed, **outcome}
        if is_main:
            write_atomically(folder / RESULT, json.dumps(result, indent=1) + "\n")
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return result


def environment(processes: int = 1) -> dict[str, Any]:
    """Return versions, commit and hardware."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": _commit(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ],
        "processes": processes,
    }


class MetricsFile(TrainerCallback):
    """Writes what is logged as JSON lines, without times, so that equal runs have equal files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start with what was logged up to the checkpoint that is continued."""
        if state.is_world_process_zero:
            write_atomically(self.path, "".join(map(_line, state.log_history)))

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Append the newest entry."""
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(_line(state.log_history[-1]))


class _FirstStep(TrainerCallback):
    """Notes that a step was made."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.work.has_begun = True


def _repeated(training: TrainingSpec, repetition: int) -> TrainingSpec:
    """Return the training of a repetition: another order, other dropout."""
    if repetition == 0:
        return training
    return replace(
        training, seed=derived_seed(training.seed, "repetition", repetition) % SEEDS_OF_TRAINER
    )


def _train(
    adapted: PeftModel,
    config: TrainConfig,
    data: RunData,
    folder: Path,
    repetition: int,
    callbacks: Sequence[TrainerCallback],
) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    resumes = (folder / CHECKPOINTS).is_dir()
    inside = subspace_callbacks(adapted, folder)
    outcome = train(
        adapted,
        data.train,
        training=_repeated(training_spec(config), repetition),
        optimisation=config.optimisation,
        folder=folder / CHECKPOINTS,
        valid_data=data.valid,
        collate=data.collate,
        callbacks=[MetricsFile(folder / METRICS), *inside, *callbacks],
    )
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    on_gpu = trained[0].device.type == "cuda"
    return {
        "steps": outcome.steps,
        "train_loss": outcome.train_loss,
        **_validation(outcome.valid_loss, outcome.valid_tokens),
        "best_step": outcome.best_step,
        "trainable_parameters": sum(parameter.numel() for parameter in trained),
        "audit": outcome.audit.verdict,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "seconds": None if resumes else outcome.seconds,  # of the last part alone they mislead
    }


def _evaluate_frozen(
    model: Any, config: TrainConfig, data: RunData, folder: Path
) -> dict[str, Any]:
    if data.valid is None:
        raise SpecError("method 'none' trains nothing, so it needs validation data; set num_val")
    loss, tokens = validation_loss(
        model,
        data.valid,
        training=config.training,
        folder=folder / CHECKPOINTS,
        collate=data.collate,
    )
    return {"steps": 0, **_validation(loss, tokens), "trainable_parameters": 0}


def _validation(loss: float | None, tokens: int) -> dict[str, Any]:
    perplexity = None if loss is None else math.exp(loss)
    return {"valid_loss": loss, "valid_perplexity": perplexity, "valid_tokens": tokens}


def _finished(folder: Path, identity: dict[str, str]) -> dict[str, Any] | None:
    """Return the result in a folder, or None; raise if the folder belongs to another run."""
    description = folder / ENVIRONMENT
    if description.is_file():
        held = json.loads(description.read_text())["run"]
        changed = [name for name in ("config", "data", "code") if held[name] != identity[name]]
        if changed:
            raise SpecError(
                f"{folder} must hold this run; it holds run {held['id']}, which differs in its "
                f"{' and '.join(changed)}; choose another folder with --out"
            )
    if not (folder / RESULT).is_file():
        return None
    result: dict[str, Any] = json.loads((folder / RESULT).read_text())
    if result.get("schema") != SCHEMA:
        raise SpecError(
            f"{folder / RESULT} must have schema {SCHEMA}; got {result.get('schema')}; "
            "choose another folder with --out"
        )
    return result


def _describe(folder: Path, config: TrainConfig, identity: dict[str, str], processes: int) -> None:
    write_atomically(folder / CONFIG, yaml.safe_dump(config.as_dict(), sort_keys=False))
    described = {"run": identity, **environment(processes)}
    write_atomically(folder / ENVIRONMENT, json.dumps(described, indent=1) + "\n")


def _line(entry: dict[str, Any]) -> str:
    timed = ("_runtime", "_per_second")
    kept = {key: value for key, value in entry.items() if not key.endswith(timed)}
    return json.dumps(kept, sort_keys=True) + "\n"


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
