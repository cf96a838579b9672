"""What a process keeps between jobs, so that a model is loaded and a text tokenised once."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from hylorada.experiments.assembly import RunData, load_data, load_model
from hylorada.experiments.config import TrainConfig
from hylorada.models.pretrained import LoadedModel


@dataclass(slots=True)
class Kept:
    """What a process keeps between jobs: the frozen model and the tokens, loaded once."""

    key: str = ""
    base: LoadedModel | None = None
    data: dict[str, RunData] = field(default_factory=dict)

    def model(self, config: TrainConfig) -> LoadedModel:
        """Return the frozen model of a job, loaded only if the last job had another one."""
        key = json.dumps([asdict(config.model), config.training.precision, config.training.cpu])
        if self.base is None or self.key != key:
            self.forget()
            loaded = load_model(config)
            on_gpu = torch.cuda.is_available() and not config.training.cpu
            torch.nn.Module.to(loaded.model, "cuda" if on_gpu else "cpu")
            self.key, self.base = key, loaded
        if hasattr(self.base.model, "peft_config"):  # what unloading leaves in some versions
            del self.base.model.peft_config
        return self.base

    def run_data(self, config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> RunData:
        """Return the data of a job, tokenised by one process of this machine at a time."""
        key = json.dumps([asdict(config.data), config.model.source, config.training.seed])
        if key not in self.data:
            with tokenising():
                self.data[key] = load_data(config, tokenizer)
        return self.data[key]

    def forget(self) -> None:
        """Let go of the model, for instance because a failed job left its adapter in it."""
        self.base = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def reusable(config: TrainConfig) -> bool:
    """Return whether a model is as before once its adapter is gone."""
    whole = config.adapter.train_norms or config.adapter.train_embeddings
    return not (whole or config.training.gradient_checkpointing)


@contextmanager
def tokenising() -> Iterator[None]:
    """Let one process of this machine and user prepare tokens at a time."""
    path = Path(tempfile.gettempdir()) / f"hylorada-tokens-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
