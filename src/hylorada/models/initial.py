"""Models at their random start: a shape and a seed are the whole of their weights.

Weights come from a counter-based generator, so every machine and version builds the same model.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hylorada.errors import SpecError
from hylorada.models.bits import BitStream

SOURCE = "random"
DEFAULT_SEED = 137
ROUND_TO = 64  # a vocabulary of whole tiles is faster to multiply with


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a GPT-2; without a vocabulary it takes its tokenizer's, rounded up."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int | None = None


SHAPES = {
    "gpt2-small": Shape(layers=12, width=768, heads=12, context=1024, vocabulary=50304),
    "gpt2-mini": Shape(layers=4, width=256, heads=4, context=1024),
    "gpt2-micro": Shape(layers=2, width=32, heads=2, context=128),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialSpec:
    """A model at its random start.

    Attributes:
        shape: A name of `SHAPES`, or a folder with config.json.
        seed: The seed of all weights.
        tokenizer: tiny, another model source, or a folder with a tokenizer's files.
        layers: Blocks; None takes as many as the shape has.
    """

    shape: str = "gpt2-small"
    seed: int = DEFAULT_SEED
    tokenizer: str = "tiny"
    layers: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.shape not in SHAPES and not self._config_file().is_file():
            raise SpecError(
                f"shape must be one of {', '.join(SHAPES)} or a folder with config.json; "
                f"got {self.shape!r}"
            )
        if self.seed < 0:
            raise SpecError(f"initial_seed must not be negative; got {self.seed}")
        if self.layers is not None and self.layers < 1:
            raise SpecError(f"layers must be at least 1; got {self.layers}")

    def source(self) -> str:
        """Return the model source that `load` understands."""
        layers = "" if self.layers is None else f",layers={self.layers}"
        return f"{SOURCE}:{self.shape}{layers},seed={self.seed},tokenizer={self.tokenizer}"

    def config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """Return the configuration of the model; its vocabulary holds the tokenizer's."""
        if self.shape not in SHAPES:
            config: PreTrainedConfig = AutoConfig.from_pretrained(str(self._config_file().parent))
        else:
            config = _gpt2_config(SHAPES[self.shape], tokenizer)
        if self.layers is not None:
            config.get_text_config().num_hidden_layers = self.layers
        held = int(config.get_text_config().vocab_size)
        if len(tokenizer) > held:
            raise SpecError(
                f"the vocabulary of {self.shape!r}, {held}, must hold the tokenizer's tokens; got "
                f"{len(tokenizer)} from {self.tokenizer!r}"
            )
        return config

    def _config_file(self) -> Path:
        return Path(self.shape).expanduser() / "config.json"


def parse_source(source: str) -> InitialSpec:
    """Return the specification in a source such as `random:gpt2-small,seed=3,tokenizer=tiny`.

    `layers=6` among the options takes another number of blocks than the shape has.
    """
    shape, *options = source.removeprefix(SOURCE).removeprefix(":").split(",")
    values = dict(option.partition("=")[::2] for option in options)
    unknown = values.keys() - {"seed", "tokenizer", "layers"}
    numbers = (values.get(name, "0") for name in ("seed", "layers"))
    if unknown or not all(number.isdecimal() for number in numbers):
        raise SpecError(f"a random model is written {InitialSpec().source()!r}; got {source!r}")
    defaults = InitialSpec()
    return InitialSpec(
        shape=shape or defaults.shape,
        seed=int(values.get("seed", defaults.seed)),
        tokenizer=values.get("tokenizer", defaults.tokenizer),
        layers=int(values["layers"]) if "layers" in values else None,
    )


def outline(source: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the modules of a model at its random start without any weights, on `meta`."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            parse_source(source).config(tokenizer)
        )
    return model


def build_initial(config: PreTrainedConfig, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    """Return a model of this configuration with the weights of the seed, in evaluation mode.

    Matrices are drawn with the configuration's `initializer_range`, GPT-2's residual projections
    narrower by √(2 layers); vectors keep the ones and zeros they are built with.
    """
    with torch.random.fork_rng(devices=[]):  # the library's own draws are thrown away
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    wide = float(getattr(config.get_text_config(), "initializer_range", 0.02))
    narrow = wide / math.sqrt(2 * int(config.get_text_config().num_hidden_layers))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                is_residual = config.model_type == "gpt2" and name.endswith("c_proj.weight")
                draws = BitStream(seed, "weights", name).normal(*parameter.shape)
                drawn = torch.from_numpy(draws) * (narrow if is_residual else wide)
                parameter.copy_(drawn)
    torch.nn.Module.to(model, dtype)  # in place, and typed, unlike the model's own wrapper
    return model.eval()


def _gpt2_config(shape: Shape, tokenizer: PreTrainedTokenizerBase) -> GPT2Config:
    rounded = -(-len(tokenizer) // ROUND_TO) * ROUND_TO
    return GPT2Config(
        vocab_size=shape.vocabulary or rounded,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
