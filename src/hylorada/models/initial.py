"""Models at their random start: a shape and a seed are the whole of their weights.

Weights come from a counter-based generator, so every machine and version builds the same model.
"""

import math

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
from hylorada.models.pretrained import SOURCES, Location, Source, load_tokenizer
from hylorada.seeds import BitStream
from hylorada.specs.run import RANDOM, SHAPES, ContextSpec, RandomModel

ROUND_TO = 64  # a vocabulary of whole tiles is faster to multiply with


def outline(source: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the modules of a model at its random start without any weights, on `meta`."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            initial_config(RandomModel.parse(source), tokenizer)
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


def initial_config(spec: RandomModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Return the configuration of a random model; its vocabulary holds the tokenizer's."""
    if spec.shape not in SHAPES:
        config: PreTrainedConfig = AutoConfig.from_pretrained(str(spec.config_file.parent))
    else:
        shape = SHAPES[spec.shape]
        config = GPT2Config(
            vocab_size=shape.vocabulary or -(-len(tokenizer) // ROUND_TO) * ROUND_TO,
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
    if spec.layers is not None:
        config.get_text_config().num_hidden_layers = spec.layers
    held = int(config.get_text_config().vocab_size)
    if len(tokenizer) > held:
        raise SpecError(
            f"the vocabulary of {spec.shape!r}, {held}, must hold the tokenizer's tokens; got "
            f"{len(tokenizer)} from {spec.tokenizer!r}"
        )
    return config


class _RandomStart(Location):
    """A model that is built from its name alone."""

    def load(
        self, dtype: torch.dtype, context: ContextSpec | None
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        if context is not None:
            raise SpecError("a random model has the context of its shape; leave out model.context")
        spec, tokenizer = RandomModel.parse(self.name), self.tokenizer()
        return build_initial(initial_config(spec, tokenizer), spec.seed, dtype), tokenizer

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(RandomModel.parse(self.name).tokenizer)


SOURCES.add(
    Source(
        name=RANDOM,
        words="'random' (with a shape and a seed)",
        find=lambda name: _RandomStart(name) if name.partition(":")[0] == RANDOM else None,
        by_name=True,
    )
)
