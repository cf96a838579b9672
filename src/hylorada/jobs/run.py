"""One run, one folder: started again it resumes, and once finished it only answers."""

import json
import math
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
import yaml
from msgspec import structs
from peft import PeftModel
from transformers import TrainerCallback, TrainerState, TrainingArguments

from hylorada.errors import CheckpointError, SpecError
from hylorada.files import (
    LOCK,
    alone_in,
    read_record,
    write_atomically,
    write_record,
    written_atomically,
)
from hylorada.identity import settings_hash, short_hash, source_sha256
from hylorada.jobs.assembly import RunData, add_adapter
from hylorada.jobs.quantise import train_quantised
from hylorada.models.pretrained import LoadedModel
from hylorada.records.runs import Environment, Identity, RunResult
from hylorada.seeds import derived_seed
from hylorada.specs.run import ModelSection, RunConfig, TrainingSpec
from hylorada.subspace.trace import subspace_callbacks
from hylorada.training.trainer import train, validation_loss

PACKAGES = ("hylorada", "torch", "transformers", "peft", "accelerate", "numpy", "safetensors")
SEEDS_OF_TRAINER = 2**31
CONFIG, ENVIRONMENT, RESULT = "config.yaml", "environment.json", "result.json"
METRICS, ADAPTER, CHECKPOINTS = "metrics.jsonl", "adapter", "checkpoints"
QUANTISED, QUANTISED_METRICS = "quantised", "quantised.jsonl"


def run(
    config: RunConfig,
    base: LoadedModel,
    data: RunData,
    *,
    repetition: int = 0,
    callbacks: Sequence[TrainerCallback] = (),
) -> RunResult:
    """Train in the run's folder and return the result; `base` is given back without its adapter.

    A finished run returns its result without running again. An unfinished one resumes from its
    last good checkpoint and ends with the numbers of a run that was never interrupted.
    A repetition above zero has the same data and first values, another order and other dropout.
    """
    processes = TrainingArguments(output_dir=os.devnull, use_cpu=config.training.cpu)
    is_main = processes.process_index == 0
    identity = identify(config, data.fingerprint, repetition)
    folder = Path(config.out or Path("runs") / identity.id)
    if (finished := _finished(folder, identity)) is not None:
        return finished
    first_step = _FirstStep()
    with run_folder(folder, first_step) if is_main else nullcontext():
        if is_main:
            write_atomically(folder / CONFIG, yaml.safe_dump(config.as_dict(), sort_keys=False))
            write_record(folder / ENVIRONMENT, environment(processes.world_size, identity))
        result = RunResult(**structs.asdict(identity), seed=config.training.seed)
        if config.adapter.method == "none":
            if data.valid is None:
                raise SpecError(
                    "method 'none' trains nothing, so it needs validation data; set num_val"
                )
            loss, tokens = validation_loss(
                base.model,
                data.valid,
                training=config.training,
                folder=folder / CHECKPOINTS,
                collate=data.collate,
            )
            result = structs.replace(
                result, valid_loss=loss, valid_perplexity=math.exp(loss), valid_tokens=tokens
            )
        else:
            adapted = add_adapter(base.model, config)
            training = training_spec(config, repetition)
            told = [first_step, *callbacks]
            result = _trained(result, adapted, config, training, data, folder, told)
            if is_main:
                with written_atomically(folder / ADAPTER) as partial:
                    adapted.save_pretrained(partial)
            adapted.unload()
        if is_main:
            write_record(folder / RESULT, result)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return result


def _trained(
    result: RunResult,
    adapted: PeftModel,
    config: RunConfig,
    training: TrainingSpec,
    data: RunData,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
) -> RunResult:
    """Return the result with what training came to."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    resumes, inside = (folder / CHECKPOINTS).is_dir(), subspace_callbacks(adapted, folder)
    outcome = train(
        adapted,
        data.train,
        training=training,
        optimisation=config.optimisation,
        folder=folder / CHECKPOINTS,
        valid_data=data.valid,
        collate=data.collate,
        callbacks=[MetricsFile(folder / METRICS), *inside, *callbacks],
    )
    if config.quantisation.share > 0.0:
        outcome = train_quantised(
            adapted,
            data,
            outcome,
            config=config,
            training=training,
            folder=folder / CHECKPOINTS / QUANTISED,
            callbacks=[MetricsFile(folder / QUANTISED_METRICS), *callbacks],
        )
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    on_gpu = trained[0].device.type == "cuda"
    loss = outcome.valid_loss
    return structs.replace(
        result,
        steps=outcome.steps,
        train_loss=outcome.train_loss,
        valid_loss=loss,
        valid_perplexity=None if loss is None else math.exp(loss),
        valid_tokens=outcome.valid_tokens,
        best_step=outcome.best_step,
        trainable_parameters=sum(parameter.numel() for parameter in trained),
        audit=outcome.audit.verdict,
        peak_memory_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        seconds=None if resumes else outcome.seconds,  # of the last part alone they mislead
    )


def training_spec(config: RunConfig, repetition: int = 0) -> TrainingSpec:
    """Return how to train: a repetition has another order and other dropout.

    Float32 norms or embeddings in a bfloat16 model need autocast.
    """
    training = config.training
    if config.adapter.rebuilds_modules and training.precision == "bfloat16":
        training = replace(training, precision="autocast")
    if repetition:
        seed = derived_seed(training.seed, "repetition", repetition) % SEEDS_OF_TRAINER
        training = replace(training, seed=seed)
    return training


class MetricsFile(TrainerCallback):
    """Writes what is logged as JSON lines, without times, so that equal runs have equal files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        """Start with what was logged up to the checkpoint that is continued."""
        if state.is_world_process_zero:
            write_atomically(self.path, "".join(map(_line, state.log_history)))

    def on_log(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        """Append the newest entry."""
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(_line(state.log_history[-1]))


def _line(entry: dict[str, float]) -> str:
    timed = ("_runtime", "_per_second")
    kept = {key: value for key, value in entry.items() if not key.endswith(timed)}
    return json.dumps(kept, sort_keys=True) + "\n"


class _FirstStep(TrainerCallback):
    """Notes that a step was made: what lies in the folder is worth keeping from then on."""

    was_made = False

    def on_step_end(self, *_: object, **__: object) -> None:
        self.was_made = True


@contextmanager
def run_folder(folder: Path, first_step: _FirstStep) -> Iterator[None]:
    """Keep other processes out of a run's folder; a run refused before a step leaves no trace.

    Only what was not there before is removed: another run would take it for a run of its own
    that differs, and refuse the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with alone_in(folder, "a run"):
        before = {LOCK, *(path.name for path in folder.iterdir())}
        try:
            yield
        except (SpecError, CheckpointError, OSError):
            if not first_step.was_made:
                for path in [p for p in folder.iterdir() if p.name not in before]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                if before == {LOCK} and made:
                    (folder / LOCK).unlink()
                    with suppress(OSError):  # not empty: somebody else works there
                        for path in made:
                            path.rmdir()
            raise


def _finished(folder: Path, identity: Identity) -> RunResult | None:
    """Return the result in a folder, or None; raise if the folder belongs to another run."""
    elsewhere = "choose another folder with --out"
    if (folder / ENVIRONMENT).is_file():
        held = read_record(folder / ENVIRONMENT, Environment, elsewhere).run
        own, parts = held or identity, ("config", "data", "code")
        if changed := [part for part in parts if getattr(own, part) != getattr(identity, part)]:
            raise SpecError(
                f"{folder} must hold this run; it holds run {own.id}, which differs in its "
                f"{' and '.join(changed)}; {elsewhere}"
            )
    if not (folder / RESULT).is_file():
        return None
    return read_record(folder / RESULT, RunResult, elsewhere)


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, finished or not."""
    return all((folder / name).is_file() for name in (CONFIG, ENVIRONMENT))


def model_section(folder: Path) -> ModelSection:
    """Return which model a run adapted, from its configuration."""
    path = folder / CONFIG
    try:
        return ModelSection(**yaml.safe_load(path.read_text())["model"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpecError(
            f"{path} must hold the configuration of a run, and its model; it does not ({reason})"
        ) from error


def identify(config: RunConfig, data_fingerprint: str, repetition: int = 0) -> Identity:
    """Return the run's id and the hashes of configuration, data and code that it is made of."""
    settings = config.deciding_settings()
    if repetition:
        settings["repetition"] = repetition
    parts = {
        "config": settings_hash(settings),
        "data": short_hash(data_fingerprint),
        "code": source_sha256("hylorada.jobs.run")[:16],
    }
    return Identity(id=short_hash("/".join(parts.values())), **parts)


def environment(processes: int = 1, identity: Identity | None = None) -> Environment:
    """Return versions, commit and hardware."""
    devices = range(torch.cuda.device_count())
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        commit = done.stdout.strip() or None
    except FileNotFoundError:  # no git on this machine
        commit = None
    return Environment(
        run=identity,
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: version(name) for name in PACKAGES},
        commit=commit,
        cpus=os.cpu_count(),
        threads=torch.get_num_threads(),
        accelerators=[torch.cuda.get_device_name(index) for index in devices],
        processes=processes,
    )
