"""What a process keeps between jobs, so that a model is loaded and a text tokenised once."""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from hylorada.experiments.assembly import RunData, load_data, load_model, token_store
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.measuring import CertifySpec, text_of, weights_sha256
from hylorada.models.pretrained import LoadedModel
from hylorada.text.store import TokenStore


@dataclass(slots=True)
class Kept:
    """What a process keeps between jobs: the frozen model, its hash and the tokens."""

    key: str = ""
    base: LoadedModel | None = None
    base_sha256: str = ""
    data: dict[str, RunData] = field(default_factory=dict)
    texts: dict[str, TokenStore] = field(default_factory=dict)

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
        key = json.dumps([asdict(config.data), config.model.full_source(), config.training.seed])
        if key not in self.data:
            with tokenising():
                self.data[key] = load_data(config, tokenizer)
        return self.data[key]

    def store(
        self, config: TrainConfig, split: str, tokenizer: PreTrainedTokenizerBase
    ) -> TokenStore:
        """Return the tokens of a split; even those in the cache are compared with their text."""
        section = replace(config.data, num_train=None, num_val=None)
        key = json.dumps([asdict(section), split, config.model.full_source()])
        if key not in self.texts:
            with tokenising():
                self.texts[key] = token_store(section, split, tokenizer, progress=False)
        return self.texts[key]

    def certified_text(
        self, config: TrainConfig, spec: CertifySpec, tokenizer: PreTrainedTokenizerBase
    ) -> TokenStore:
        """Return the tokens that a certificate of a job is about."""
        key = json.dumps([config.data.source, spec.split, spec.lines, config.model.full_source()])
        if key not in self.texts:
            with tokenising():
                self.texts[key] = text_of(config.data.source, spec, tokenizer)
        return self.texts[key]

    def weights(self, config: TrainConfig) -> str:
        """Return the hash of the frozen model's weights, computed once for each model."""
        base = self.model(config)
        if not self.base_sha256:
            self.base_sha256 = weights_sha256(base.model)
        return self.base_sha256

    def forget(self) -> None:
        """Let go of the model, for instance because a failed job left its adapter in it."""
        self.base = None
        self.base_sha256 = ""
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
