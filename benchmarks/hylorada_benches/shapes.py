"""Models and batches to measure on, from one that fits a laptop to a billion parameters."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model and a batch to measure on."""

    name: str
    family: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    inner: int | None = None
    key_value_heads: int | None = None


SMALL_GPT2 = Shape(
    name="GPT-2 6x384",
    family="gpt2",
    layers=6,
    width=384,
    heads=6,
    vocabulary=4096,
    batch=2,
    length=256,
)
SMALL_LLAMA = replace(SMALL_GPT2, name="Llama 6x384", family="llama")
WIDE_LLAMA = replace(SMALL_LLAMA, name="Llama 6x1024", width=1024, heads=16, batch=1)
GPT2_SMALL = Shape(
    name="GPT-2 small",
    family="gpt2",
    layers=12,
    width=768,
    heads=12,
    vocabulary=50257,
    batch=16,
    length=1024,
)
LLAMA_1B = Shape(
    name="Llama 1B",
    family="llama",
    layers=16,
    width=2048,
    heads=32,
    vocabulary=32000,
    batch=4,
    length=2048,
    inner=8192,
    key_value_heads=8,
)


def build(shape: Shape, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """Return a randomly initialised model of this shape."""
    context = max(shape.length, 1024)
    model: PreTrainedModel
    with torch.device(device):
        if shape.family == "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=shape.vocabulary,
                    n_positions=context,
                    n_embd=shape.width,
                    n_layer=shape.layers,
                    n_head=shape.heads,
                    resid_pdrop=0.0,
                    embd_pdrop=0.0,
                    attn_pdrop=0.0,
                    bos_token_id=0,
                    eos_token_id=0,
                )
            )
            model.loss_type = "ForCausalLM"  # its name does not say so, and transformers would warn
        else:
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=shape.vocabulary,
                    hidden_size=shape.width,
                    intermediate_size=shape.inner or 4 * shape.width,
                    num_hidden_layers=shape.layers,
                    num_attention_heads=shape.heads,
                    num_key_value_heads=shape.key_value_heads or shape.heads,
                    max_position_embeddings=context,
                )
            )
    cast(nn.Module, model).to(dtype)
    return model
