"""From the sections of a configuration to a model, its adapter and its data."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.utils.error import NoMatchingPeftModuleError
from torch import Tensor
from torch.utils.data import Dataset, Subset, default_collate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import CheckpointError, SpecError
from hylorada.experiments.config import DataSection, TrainConfig
from hylorada.models.anatomy import is_linear
from hylorada.models.pretrained import LoadedModel, load
from hylorada.seeds import derived_seed, generator
from hylorada.text.batches import PackedBlocks, PackedDocuments, PaddedDocuments, pad_documents
from hylorada.text.corpus import documents
from hylorada.text.store import META, TokenStore, require_disjoint
from hylorada.text.tokens import tokenise, tokenizer_fingerprint
from hylorada.training.settings import TrainingSpec
from hylorada.training.trainable import has_tied_head, modules_to_train

LONGEST_REASON = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The sequences of a run, how they become batches, and the fingerprint of their text."""

    train: Dataset[Any]
    valid: Dataset[Any] | None
    collate: Callable[[list[Any]], dict[str, Tensor]]
    fingerprint: str


def load_model(config: TrainConfig) -> LoadedModel:
    """Return the frozen model, in the dtype that the precision asks for."""
    dtype = torch.bfloat16 if config.training.precision == "bfloat16" else torch.float32
    return load(config.model.full_source(), dtype=dtype, context=config.model.context_spec())


def add_adapter(model: PreTrainedModel, config: TrainConfig) -> PeftModel:
    """Return the model with its adapter, whose first values depend on the seed alone.

    Position buckets cover the sequences trained on unless the configuration says otherwise.
    """
    section = config.adapter
    extra = modules_to_train(model, norms=section.train_norms, embeddings=section.train_embeddings)
    more: dict[str, Any] = {"modules_to_save": extra or None}
    if section.method != "sublora":
        more["ensure_weight_tying"] = section.train_embeddings and has_tied_head(model)
    settings = config.peft_config(**more)
    if isinstance(settings, HyLoRADAConfig) and settings.max_positions is None:
        settings.max_positions = config.data.length
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(config.training.seed, "adapter"))
        adapted = _wrapped(model, settings)
    for parameter in adapted.parameters():
        if parameter.requires_grad:  # norms and embeddings are copied in the model's own dtype
            parameter.data = parameter.data.float()
    return adapted


def _wrapped(model: PreTrainedModel, settings: PeftConfig) -> PeftModel:
    """Return the model with an adapter, or say in one line why PEFT refuses it."""
    try:
        return get_peft_model(model, settings)
    except (SpecError, CheckpointError):
        raise
    except NoMatchingPeftModuleError as error:
        wanted = ", ".join(sorted(getattr(settings, "target_modules", None) or ()))
        raise SpecError(
            f"target_modules must be ends of names of the model's modules, such as "
            f"{', '.join(_linear_names(model))}; got {wanted}"
        ) from error
    except ValueError as error:
        reason = shorten(str(error), LONGEST_REASON, placeholder=" …")  # PEFT may show a module
        raise SpecError(
            f"the adapter must fit the model; PEFT says: {reason}; linear modules are "
            f"{', '.join(_linear_names(model))}"
        ) from error


def _linear_names(model: PreTrainedModel) -> list[str]:
    """Return the last parts of the names of all modules that LoRA can adapt."""
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if is_linear(module)}
    return sorted(found)


def training_spec(config: TrainConfig) -> TrainingSpec:
    """Return how to train; float32 norms or embeddings in a bfloat16 model need autocast."""
    mixed = config.adapter.train_norms or config.adapter.train_embeddings
    if mixed and config.training.precision == "bfloat16":
        return replace(config.training, precision="autocast")
    return config.training


def load_data(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> RunData:
    """Return the training and validation sequences, tokenising what is not in the cache yet."""
    section, progress = config.data, config.training.progress
    splits = ("train",) if section.num_val == 0 else ("train", "valid")
    stores = {split: token_store(section, split, tokenizer, progress) for split in splits}
    require_disjoint(stores)
    pad = tokenizer.pad_token_id
    if section.packing == "padded" and pad is None:
        raise SpecError("packing 'padded' needs a tokenizer with a pad token; use 'blocks'")
    found = {split: _packed(store, section, pad or 0) for split, store in stores.items()}
    padded = partial(pad_documents, pad_token_id=pad)
    return RunData(
        train=_drawn(found["train"], section, config.training.seed),
        valid=_first(found["valid"], section.num_val) if "valid" in found else None,
        collate=padded if section.packing == "padded" else default_collate,
        fingerprint="/".join(store.fingerprint for store in stores.values()),
    )


def _packed(store: TokenStore, section: DataSection, pad: int) -> Any:
    if section.packing == "blocks":
        return PackedBlocks(store, section.length)
    if section.packing == "padded":
        return PaddedDocuments(store, section.length)
    return PackedDocuments(store, section.length, pad_token_id=pad)


def _drawn(found: Any, section: DataSection, seed: int) -> Dataset[Any]:
    """Return as many sequences as asked for, drawn by the seed; all of them in their order."""
    count = section.num_train
    if count is None:
        return found
    if count > len(found):
        raise SpecError(
            f"num_train must not exceed the {len(found)} sequences of {section.length} tokens in "
            f"{section.source}; got {count}"
        )
    drawn = torch.randperm(len(found), generator=generator(seed, "blocks"))[:count]
    return Subset(found, drawn.tolist())


def _first(found: Any, count: int | None) -> Dataset[Any]:
    """Return the first sequences, as many as there are."""
    return found if count is None else Subset(found, range(min(count, len(found))))


def token_store(
    section: DataSection, split: str, tokenizer: PreTrainedTokenizerBase, progress: bool
) -> TokenStore:
    """Return the tokens of one split: prepared ones, cached ones, or tokenised now."""
    prepared = Path(section.source).expanduser() / split
    if (prepared / META).is_file():
        store = TokenStore.open(prepared)
        if store.tokenizer != tokenizer_fingerprint(tokenizer):
            raise SpecError(
                f"{prepared} holds tokens of another tokenizer than the model's; prepare the text "
                "again with --tokenizer and this model"
            )
        return store
    text = documents(section.source, split, section.text_spec())
    folder = _cache(section) / f"{_cache_key(section, split, tokenizer)}-{split}"
    return tokenise(text, tokenizer, folder, progress=progress)


def _cache(section: DataSection) -> Path:
    if section.cache is not None:
        return Path(section.cache).expanduser()
    home = os.environ.get("HYLORADA_CACHE", "~/.cache/hylorada")
    return Path(home).expanduser() / "tokens"


def _cache_key(section: DataSection, split: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a name for these tokens that changes with the files they come from."""
    path = Path(section.source).expanduser()
    parts = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [
        (part.name, part.stat().st_size, part.stat().st_mtime_ns) for part in parts if part.exists()
    ]
    rules = (section.text_field, section.lines, sorted(section.replace.items()))
    name = (str(path.absolute()) if files else section.source, split, files, rules)
    described = json.dumps([*name, tokenizer_fingerprint(tokenizer)])
    return hashlib.sha256(described.encode()).hexdigest()[:16]
