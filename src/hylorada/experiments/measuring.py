"""What a certificate is measured with: the model a file decodes to, and documents to read."""

import hashlib
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase

from hylorada.bounds.certificate import Prior
from hylorada.bounds.complexity import Choice
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.levels import require_level
from hylorada.bounds.rules import require_delta
from hylorada.compression.message import Message
from hylorada.errors import SpecError
from hylorada.evaluation.risk import (
    RiskSpec,
    TokenRisks,
    countable_documents,
    drawn_documents,
    scored_lengths,
    token_risks,
)
from hylorada.experiments.assembly import token_store
from hylorada.experiments.compress import write_adapter
from hylorada.experiments.config import DataSection
from hylorada.experiments.subject import chosen_device, with_adapter
from hylorada.models.heads import device_of
from hylorada.models.initial import SOURCE
from hylorada.models.pretrained import LoadedModel, load
from hylorada.names import require_one_of
from hylorada.text.store import TokenStore

AUTOCAST = "autocast"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, AUTOCAST: torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifySpec:
    """What is certified, on which text, and how it is measured.

    Attributes:
        level: "document" for unseen documents, "token" for fresh tokens at the corpus' contexts.
        split: The split of the corpus that is certified: the one trained on.
        lines: What to do with the lines of plain text, as in training.
        samples: Documents drawn with replacement (document level) or read from the beginning
            (token level); None reads them all, which is tighter.
        delta: Probability with which any statement may be wrong.
        choices: What was picked by looking at the data and is not in the file, with the number of
            options: dimension, mode, base model, seeds …
        base: The base model; None takes the one that the file names.
        max_length: Tokens of context; None takes the model's own, at most 1024.
        stride: Tokens scored by each window of a longer document.
        dtype: float32, bfloat16, or autocast, which computes in bfloat16 from float32 weights.
        device: Where to measure; None takes CUDA where there is one.
        seed: Seed of the draws.
        progress: Whether to show progress, on standard error.
    """

    level: str = "document"
    split: str = "train"
    lines: str = "auto"
    samples: int | None = None
    delta: float = 0.05
    choices: dict[str, int] = field(default_factory=dict)
    base: str | None = None
    max_length: int | None = None
    stride: int | None = None
    dtype: str = "float32"
    device: str | None = None
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        require_delta(self.delta)
        require_level(self.level)
        require_one_of("dtype", self.dtype, DTYPES)
        if self.samples is not None and self.samples < 2:
            raise SpecError(f"samples must be at least 2; got {self.samples}")
        self.paid()

    def paid(self) -> tuple[Choice, ...]:
        """Return the choices as the ledger lists them."""
        return tuple(Choice(name=name, options=count) for name, count in self.choices.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The model that a message stands for, and how to read with it; `mixed` under autocast."""

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    prior: Prior
    risk: RiskSpec
    device_name: str
    base_sha256: str
    mixed: bool = False


def decode(message: Message, spec: CertifySpec) -> Decoded:
    """Return the model that the message stands for, on its base model."""
    base = spec.base or str(message.configuration["adapter"].get("base_model_name_or_path") or "")
    if not base:
        raise SpecError("the file does not name its base model; give it with --model")
    loaded = load(base, dtype=DTYPES[spec.dtype], device=chosen_device(spec.device))
    return attach(message, loaded, spec, weights_sha256(loaded.model))


def attach(message: Message, loaded: LoadedModel, spec: CertifySpec, sha256: str) -> Decoded:
    """Return the model that the message stands for, on a base model whose weights have this hash.

    The base model itself is changed; `unload` gives it back.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_adapter(message, Path(folder))
        model = with_adapter(loaded.model, Path(folder), "the file", loaded.source)
    kind = "random" if loaded.source.partition(":")[0] == SOURCE else "pretrained"
    device = device_of(model)
    return Decoded(
        model=model,
        tokenizer=loaded.tokenizer,
        prior=Prior(kind=kind, name=loaded.source),
        risk=risk_spec(loaded.model.config, spec),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        base_sha256=sha256,
        mixed=spec.dtype == AUTOCAST,
    )


def weights_sha256(model: nn.Module) -> str:
    """Return a hash of every weight of a model, to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def risk_spec(config: Any, spec: CertifySpec) -> RiskSpec:
    """Return how a model of this configuration reads documents."""
    own = getattr(config, "max_position_embeddings", None) or RiskSpec().max_length
    return RiskSpec(
        max_length=spec.max_length or min(own, RiskSpec().max_length),
        stride=spec.stride,
        progress=spec.progress,
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """Which documents are read, how often each was drawn, and the lengths of all in question."""

    documents: Int64[np.ndarray, " documents"]
    draws: Int64[np.ndarray, " documents"] | None
    corpus_lengths: Int64[np.ndarray, " population"]


def reading_of(store: TokenStore, spec: CertifySpec) -> Reading:
    """Return which documents to read: all, draws from all, or those at the beginning."""
    lengths = scored_lengths(store)
    everything = countable_documents(store)
    if spec.samples is None:
        return Reading(everything, None, lengths[everything])
    if spec.level == "token":  # the beginning of a text is a text
        first = everything[: spec.samples]
        return Reading(first, None, lengths[first])
    documents, draws = drawn_documents(store, spec.samples, spec.seed)
    return Reading(documents, draws, lengths[everything])


def text_of(data: str, spec: CertifySpec, tokenizer: PreTrainedTokenizerBase) -> TokenStore:
    """Return the tokens of the split that is certified, without marks between documents."""
    section = DataSection(source=data, lines=spec.lines)
    store = token_store(section, spec.split, tokenizer, spec.progress)
    return without_end_marks(store, tokenizer.eos_token_id)


def without_end_marks(store: TokenStore, mark: int | None) -> TokenStore:
    """Return the text alone where every document ends in `mark`, else the store as it is.

    A mark that the base model never saw after text is learnt in a moment and worth many bits: a
    gain must not come from there.
    """
    ends = np.asarray(store.offsets)[1:][np.diff(store.offsets) > 0] - 1
    if mark is None or not bool((np.asarray(store.tokens[ends]) == mark).all()):
        return store
    removed = np.concatenate([[0], np.cumsum(np.diff(store.offsets) > 0)])
    return replace(
        store,
        tokens=np.delete(np.asarray(store.tokens), ends),
        offsets=np.asarray(store.offsets) - removed,
        fingerprint=f"{store.fingerprint}/text",
    )


def measure(
    decoded: Decoded,
    store: TokenStore,
    reading: Reading,
    *,
    shards: Path | None = None,
    key: str = "",
) -> Evidence:
    """Return the losses of every document to read; see `token_risks` for shards and key."""
    # Random weights predict nothing, so a model grown from them is compared with a uniform guess.
    compared = decoded.prior.kind != "random"
    risks = read_risks(decoded, store, reading, compared=compared, shards=shards, key=key)
    return evidence_of(risks, store, reading)


def read_risks(
    decoded: Decoded,
    store: TokenStore,
    reading: Reading,
    *,
    compared: bool = False,
    shards: Path | None = None,
    key: str = "",
) -> TokenRisks:
    """Return bits and ranks of every token to read, `compared` with the frozen model or not."""
    device = device_of(decoded.model).type
    how = "/mixed" if decoded.mixed else ""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=decoded.mixed):
        return token_risks(
            decoded.model,
            store,
            reading.documents,
            decoded.risk,
            frozen=decoded.model if compared else None,
            shards=shards,
            key=f"{key}/{decoded.prior.name}/{decoded.model.dtype}/{decoded.device_name}{how}",
        )


def evidence_of(risks: TokenRisks, store: TokenStore, reading: Reading) -> Evidence:
    """Return measured losses in the form that bounds read."""
    return Evidence(
        adapted=risks.adapted,
        frozen=risks.frozen,
        ranks=risks.ranks,
        lengths=risks.lengths,
        corpus_lengths=reading.corpus_lengths,
        draws=reading.draws,
        vocabulary=risks.vocabulary,
        byte_count=_scored_bytes(store, reading.documents),
    )


def _scored_bytes(store: TokenStore, documents: Int64[np.ndarray, " documents"]) -> float:
    """Return the UTF-8 bytes of the scored tokens, each document's spread over its tokens."""
    tokens = np.diff(np.asarray(store.offsets))[documents]
    return float((np.asarray(store.byte_counts)[documents] * (tokens - 1) / tokens).sum())
