"""From a run's configuration to its model, adapter and data; each is loaded once a process."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.utils.error import NoMatchingPeftModuleError
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, default_collate
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import CheckpointError, SpecError
from hylorada.identity import settings_hash, source_sha256
from hylorada.models.anatomy import is_linear
from hylorada.models.pretrained import LoadedModel, load
from hylorada.seeds import derived_seed, generator
from hylorada.specs.adapters import AdapterSection, HyLoRADASection, LoRASection, SubLoRASection
from hylorada.specs.run import DataSection, RunConfig
from hylorada.subspace.config import SubLoRAConfig
from hylorada.text.batches import PackedBlocks, PackedDocuments, PaddedDocuments, pad_documents
from hylorada.text.corpus import EMBEDDED, documents, embedded_file
from hylorada.text.tokens import (
    META,
    TokenStore,
    require_disjoint,
    tokenise,
    tokenizer_fingerprint,
    without_end_marks,
)

LONGEST_REASON = 160
TEXT_SOURCE = ("hylorada.text.corpus", "hylorada.text.tokens")
Item = dict[str, Tensor]
Pack = Callable[[TokenStore, int], PackedBlocks | PackedDocuments | PaddedDocuments]


def load_model(config: RunConfig) -> LoadedModel:
    """Return the frozen model, in the dtype that the precision asks for."""
    dtype = torch.bfloat16 if config.training.precision == "bfloat16" else torch.float32
    return load(config.model.full_source(), dtype=dtype, context=config.model.context_spec())


def adapter_config(section: AdapterSection) -> PeftConfig | None:
    """Return the PEFT configuration of a run's adapter, every field checked; None without one."""
    values = section.peft_fields() | {"task_type": "CAUSAL_LM"}
    match section:
        case SubLoRASection():
            return SubLoRAConfig(**values)
        case LoRASection():
            # Our LoRA without additions, not PEFT's own: the same targets and arithmetic.
            return HyLoRADAConfig(**values, landmark_enabled=False, position_bias=False)
        case HyLoRADASection():
            return HyLoRADAConfig(**values)
    return None


def add_adapter(model: PreTrainedModel, config: RunConfig) -> PeftModel:
    """Return the model with its adapter, whose first values depend on the seed alone.

    Position buckets cover the sequences trained on unless the configuration says otherwise.
    """
    settings = adapter_config(config.adapter)
    assert settings is not None, "a run without an adapter trains nothing"
    section = config.adapter
    settings.modules_to_save = modules_to_train(model, section) or None
    if isinstance(settings, HyLoRADAConfig):
        head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
        is_tied = head is None or head.weight is embeddings.weight
        settings.ensure_weight_tying = section.train_embeddings and is_tied
        settings.max_positions = settings.max_positions or config.data.length
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(config.training.seed, "adapter"))
        adapted = _wrapped(model, settings)
    for parameter in adapted.parameters():
        if parameter.requires_grad:  # norms and embeddings are copied in the model's own dtype
            parameter.data = parameter.data.float()
    return adapted


def modules_to_train(model: PreTrainedModel, section: AdapterSection) -> list[str]:
    """Return the names for PEFT's `modules_to_save`: norms, embeddings, both or neither.

    Training them is what lets LoRA follow a model to a longer context (LongLoRA). The head is
    named with the embeddings; where it reads their weights, PEFT's `ensure_weight_tying` keeps it
    doing so.
    """
    names: list[str] = []
    if section.train_norms:
        norms = [(n, p) for n, p in model.named_modules() if "norm" in type(p).__name__.lower()]
        names = [name for name, part in norms if list(part.parameters(recurse=False))]
        if not names:
            raise SpecError(f"{type(model).__name__} has no norm to train; set train_norms=False")
    if section.train_embeddings:
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        names += [name for name, part in model.named_modules() if part in ends]
    return sorted({name.rpartition(".")[2] for name in names})


def _wrapped(model: PreTrainedModel, settings: PeftConfig) -> PeftModel:
    """Return the model with an adapter, or say in one line why PEFT refuses it."""
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if is_linear(module)}
    linear = ", ".join(sorted(found))
    try:
        return get_peft_model(model, settings)
    except (SpecError, CheckpointError):
        raise
    except NoMatchingPeftModuleError as error:
        wanted = ", ".join(sorted(getattr(settings, "target_modules", None) or ()))
        raise SpecError(
            f"target_modules must be ends of names of the model's modules, such as {linear}; "
            f"got {wanted}"
        ) from error
    except ValueError as error:
        reason = shorten(str(error), LONGEST_REASON, placeholder=" …")  # PEFT may show a module
        raise SpecError(
            f"the adapter must fit the model; PEFT says: {reason}; linear modules are {linear}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The sequences of a run, how they become batches, and the fingerprint of their text."""

    train: Dataset[Item]
    valid: Dataset[Item] | None
    collate: Callable[[list[Item]], Item]
    fingerprint: str


def load_data(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    text: Callable[[str], TokenStore] | None = None,
) -> RunData:
    """Return the training and validation sequences.

    `text` returns the tokens of a split; without it they are read from the cache, or tokenised.
    """
    section, pad = config.data, tokenizer.pad_token_id
    if section.packing == "padded" and pad is None:
        raise SpecError("packing 'padded' needs a tokenizer with a pad token; use 'blocks'")
    shown = config.training.progress
    text = text or partial(token_store, section, tokenizer=tokenizer, progress=shown)
    stores = {split: text(split) for split in ("train", "valid")[: 1 + (section.num_val != 0)]}
    require_disjoint(stores)
    packings: dict[str, Pack] = {
        "blocks": PackedBlocks,
        "padded": PaddedDocuments,
        "packed": partial(PackedDocuments, pad_token_id=pad or 0),
    }
    pack = packings[section.packing]
    found = {split: pack(store, section.length) for split, store in stores.items()}
    train: Dataset[Item] = found["train"]
    if (count := section.num_train) is not None:
        there = len(found["train"])
        if count > there:
            raise SpecError(
                f"num_train must not exceed the {there} sequences of {section.length} tokens in "
                f"{section.source}; got {count}"
            )
        drawn = torch.randperm(there, generator=generator(config.training.seed, "blocks"))[:count]
        train = Subset(train, drawn.tolist())
    valid: Dataset[Item] | None = found.get("valid")
    if valid is not None and section.num_val is not None:
        valid = Subset(valid, range(min(section.num_val, len(found["valid"]))))
    padded = partial(pad_documents, pad_token_id=pad)
    return RunData(
        train=train,
        valid=valid,
        collate=padded if section.packing == "padded" else default_collate,
        fingerprint="/".join(store.fingerprint for store in stores.values()),
    )


def token_store(
    section: DataSection, split: str, tokenizer: PreTrainedTokenizerBase, progress: bool = False
) -> TokenStore:
    """Return the tokens of one split: prepared ones, cached ones, or tokenised now.

    Cached tokens are named by the size and time of the files they come from and by the source that
    reads them, so that a text is read and hashed once. A text without files of its own, such as
    one on the hub, is read and compared every time.
    """
    prepared = Path(section.source).expanduser() / split
    if (prepared / META).is_file():
        store = TokenStore.open(prepared)
        if store.tokenizer != tokenizer_fingerprint(tokenizer):
            raise SpecError(
                f"{prepared} holds tokens of another tokenizer than the model's; prepare the text "
                "again with --tokenizer and this model"
            )
        return store
    path = Path(section.source).expanduser()
    path = embedded_file(section.source) if section.source in EMBEDDED else path
    parts = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in parts if p.exists()]
    rules = (section.text_field, section.lines, sorted(section.replace.items()))
    place = str(Path(section.source).expanduser().absolute()) if files else section.source
    reading = (source_sha256(*TEXT_SOURCE), tokenizer_fingerprint(tokenizer))
    key = settings_hash([place, split, files, rules, reading])
    cache = section.cache or f"{os.environ.get('HYLORADA_CACHE', '~/.cache/hylorada')}/tokens"
    folder = Path(cache).expanduser() / f"{key}-{split}"
    # The processes of this user on this machine prepare tokens one after the other.
    with Path(tempfile.gettempdir(), f"hylorada-tokens-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if files and (folder / META).is_file():
            return TokenStore.open(folder)
        text = documents(section.source, split, section)
        return tokenise(text, tokenizer, folder, progress=progress)


@dataclass(slots=True)
class Workshop:
    """What a process keeps between jobs: the frozen model, its hash, and the tokens."""

    key: str = ""
    base: LoadedModel | None = None
    base_sha256: str = ""
    data: dict[str, RunData] = field(default_factory=dict)
    texts: dict[str, TokenStore] = field(default_factory=dict)

    def model(self, config: RunConfig) -> LoadedModel:
        """Return the frozen model of a job, loaded only if the last job had another one."""
        key = json.dumps([asdict(config.model), config.training.precision, config.training.cpu])
        if self.base is None or self.key != key:
            self.forget()
            loaded = load_model(config)
            on_gpu = torch.cuda.is_available() and not config.training.cpu
            nn.Module.to(loaded.model, "cuda" if on_gpu else "cpu")
            self.key, self.base = key, loaded
        if hasattr(self.base.model, "peft_config"):  # what unloading leaves in some versions
            del self.base.model.peft_config
        return self.base

    def run_data(self, config: RunConfig) -> RunData:
        """Return the sequences of a job."""
        key = json.dumps([asdict(config.data), config.model.full_source(), config.training.seed])
        if key not in self.data:
            tokenizer = self.model(config).tokenizer
            self.data[key] = load_data(config, tokenizer, partial(self.text, config))
        return self.data[key]

    def text(self, config: RunConfig, split: str, *, certified: bool = False) -> TokenStore:
        """Return the tokens of a split; without marks between documents if it is `certified`."""
        section = replace(config.data, num_train=None, num_val=None)
        key = json.dumps([asdict(section), split, config.model.full_source(), certified])
        if key not in self.texts:
            tokenizer = self.model(config).tokenizer
            store = token_store(section, split, tokenizer)
            mark = tokenizer.eos_token_id
            self.texts[key] = without_end_marks(store, mark) if certified else store
        return self.texts[key]

    def weights(self, config: RunConfig) -> str:
        """Return the hash of the frozen model's weights, computed once for each model."""
        base = self.model(config)
        if not self.base_sha256:
            self.base_sha256 = weights_sha256(base.model)
        return self.base_sha256

    def put_back(self, config: RunConfig) -> None:
        """Keep the model for the next job, unless this one may have left traces in it."""
        if config.adapter.rebuilds_modules or config.training.gradient_checkpointing:
            self.forget()

    def forget(self) -> None:
        """Let go of the model, for instance because a failed job left its adapter in it."""
        self.base = None
        self.base_sha256 = ""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def weights_sha256(model: nn.Module) -> str:
    """Return a hash of every weight of a model, to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
