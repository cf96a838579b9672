"""What the stages of certified_gain.py share: one folder of results, and the models loaded."""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from certificates import DEVICE
from transformers import PreTrainedTokenizerBase
from vectors import Finish, Schedule, Trainee, quicken

from hylorada.evaluation.risk import TokenRisks, countable_documents, token_risks
from hylorada.files import write_atomically
from hylorada.jobs.assembly import weights_sha256
from hylorada.jobs.certify import DTYPES, risk_spec
from hylorada.models.pretrained import LoadedModel, load, load_tokenizer
from hylorada.specs.evaluation import CertifySpec
from hylorada.specs.run import DataSection
from hylorada.subspace.config import SubLoRAConfig
from hylorada.text.corpus import documents
from hylorada.text.tokens import TokenStore, tokenise, without_end_marks
from hylorada_benches.surroundings import device_name, versions

LEVELS = ("document", "token")
PLACES = ("model", "data", "out", "work", "stages", "budget_seconds")
BEGAN = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


class Study:
    """One folder of results, and the models that are loaded for them."""

    def __init__(self, chosen: argparse.Namespace, protocol: str) -> None:
        self.chosen = chosen
        self.protocol = protocol
        chosen.out.mkdir(parents=True, exist_ok=True)
        self.file = chosen.out / "certificates.json"
        self.result: dict[str, Any] = (
            json.loads(self.file.read_text()) if self.file.is_file() else self._header()
        )
        self._writing = Lock()
        self.workers = ThreadPoolExecutor(max_workers=2)
        self.waiting: list[Future[None]] = []
        self._tokens: subprocess.Popen[bytes] | None = None
        self._loaded: LoadedModel | None = None
        self._gpt2: LoadedModel | None = None
        self._trainee: Trainee | None = None
        self._stores: dict[str, TokenStore] = {}
        self._frozen: dict[str, tuple[TokenRisks, float]] = {}
        self.base_sha256 = ""

    def _header(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "settings": {k: v for k, v in vars(self.chosen).items() if k not in PLACES},
            "device": device_name(DEVICE),
            "versions": versions(),
            "files": [],
            "seconds": {},
        }

    def write(self) -> None:
        """Write all results so far."""
        with self._writing:
            write_atomically(self.file, json.dumps(self.result, indent=1) + "\n")

    def spec(self, **changes: Any) -> CertifySpec:
        """Return what is certified, with what was compared by looking."""
        # Everything compared by looking that the message does not say; levels and step are in it.
        compared = {"dimension": len({*self.chosen.curve_dims, *self.dims().values()})}
        return CertifySpec(
            dtype=self.chosen.dtype,
            device=DEVICE,
            choices={name: count for name, count in compared.items() if count > 1},
            progress=False,
            **changes,
        )

    def dims(self) -> dict[str, int]:
        """Return the dimension that is trained for each level."""
        return dict(zip(LEVELS, (self.chosen.document_dim, self.chosen.token_dim), strict=True))

    # What is loaded once

    def start_tokenising(self) -> None:
        """Tokenise in a process of its own while the model is loaded and compiled here."""
        if DEVICE == "cuda":
            command = [sys.executable, sys.argv[0], *sys.argv[1:], "--stages", "tokens"]
            self._tokens = subprocess.Popen(command)

    def stores(self) -> dict[str, TokenStore]:
        """Return the tokens of the certified and of the held-out split, without end marks."""
        if not self._stores:
            if self._tokens is not None:
                self._tokens.wait()
            tokenizer = load_tokenizer(self.chosen.model)
            for split in ("train", "test"):
                store = self._tokenised(split, tokenizer)
                self._stores[split] = without_end_marks(store, tokenizer.eos_token_id)
            train = self._stores["train"]
            say(f"{len(train):,} documents, {len(train.tokens):,} tokens")
            self.result["documents"], self.result["tokens"] = len(train), len(train.tokens)
        return self._stores

    def _tokenised(self, split: str, tokenizer: PreTrainedTokenizerBase) -> TokenStore:
        """Return the tokens as `text_of` has them, without reading all text again to be sure."""
        folder = self.chosen.work / f"tokens-{split}"
        if not folder.is_dir():
            text = documents(self.chosen.data, split, DataSection())
            tokenise(text, tokenizer, folder, progress=False)
        return TokenStore.open(folder)

    def loaded(self) -> LoadedModel:
        """Return the frozen model under the name that other machines know it by."""
        if self._loaded is None:
            dtype = DTYPES[self.chosen.dtype]
            found = load(self.chosen.model, dtype=dtype, device=DEVICE)
            self._loaded = replace(found, source=self.chosen.base_name or self.chosen.model)
            self.base_sha256 = weights_sha256(found.model)
            if self.chosen.compile_reading:
                quicken(found.model, self.chosen.compile)
        return self._loaded

    def gpt2(self) -> LoadedModel:
        """Return GPT-2 at its random start, with the tokenizer of the pretrained model."""
        if self._gpt2 is None:
            source = f"random:{self.chosen.gpt2_shape},seed=137,tokenizer="
            dtype = DTYPES[self.chosen.dtype]
            found = load(source + self.chosen.model, dtype=dtype, device=DEVICE)
            self._gpt2 = replace(found, source=source + self.loaded().source)
        return self._gpt2

    def trainee(self) -> Trainee:
        """Return the model that trains, compiled and at the rate found before."""
        if self._trainee is None:
            base = load(self.chosen.model, dtype=DTYPES[self.chosen.dtype], device=DEVICE)
            named = replace(base, source=self.loaded().source)
            config = SubLoRAConfig(
                target_modules=self.chosen.targets,
                r=self.chosen.rank,
                lora_alpha=self.chosen.alpha,
                intrinsic_dim=self.chosen.document_dim,
                task_type="CAUSAL_LM",
            )
            self._trainee = Trainee(named, config, batch_tokens=self.chosen.batch_tokens, say=say)
            self._trainee.rate = self.result.get("rate")
            if self.chosen.compile != "none":
                self._trainee.compile(self.chosen.compile)
                self._trainee.warm()
                say("compiled")
        return self._trainee

    def schedule(self, tokens: int) -> Schedule:
        """Return how to train on so many tokens."""
        return Schedule(tokens=tokens, rates=tuple(self.chosen.rates), seed=self.chosen.seed)

    def finish(self, level: str, tokens: int) -> Finish:
        """Return how a vector is quantised while it trains: at the price of a bit in the bound."""
        return Finish(
            schedule=self.schedule(int(tokens * self.chosen.finish_share)),
            level=level,
            documents=self.chosen.price_documents,
            risk=risk_spec(self.loaded().model.config, self.spec()),
        )

    def is_late(self) -> bool:
        """Return whether no other stage should begin."""
        return time.perf_counter() - BEGAN > float(self.chosen.budget_seconds)

    # Reading

    def frozen(self) -> dict[str, tuple[TokenRisks, float]]:
        """Return what the frozen model makes of both splits, and its seconds."""
        if not self._frozen:
            model = self.loaded().model
            self._frozen = {split: self.read("frozen", model, split) for split in self.stores()}
            seconds = self._frozen["train"][1]
            self.result.setdefault("frozen_seconds", seconds)
            say(f"frozen model has read everything in {seconds:.1f} s")
        return self._frozen

    def read(self, name: str, model: torch.nn.Module, split: str) -> tuple[TokenRisks, float]:
        """Return what a model makes of a split; a second call goes on where the first stopped."""
        store = self.stores()[split]
        risk = risk_spec(self.loaded().model.config, self.spec())
        how = f"{self.chosen.dtype}/{self.chosen.compile_reading}"
        start = time.perf_counter()
        risks = token_risks(
            model,
            store,
            countable_documents(store),
            risk,
            shards=self.chosen.work / f"{name}-{split}",
            key=f"{name}/{self.loaded().source}/{self.base_sha256}/{how}",
        )
        return risks, time.perf_counter() - start

    def wait(self) -> None:
        """Wait for certificates that are being computed."""
        for future in self.waiting:
            future.result()
        self.waiting.clear()
