"""Small models of every family the adapters serve, the adapters on them, and inputs for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from hylorada import HyLoRADAConfig
from hylorada.adapters.designs import DESIGNS as DESIGNS
from hylorada.seeds import generator

Module = TypeVar("Module", bound=nn.Module)
VOCABULARY = 97
HIDDEN = 32
LAYERS = 3
CONTEXT = 128
SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    **SPECIAL_TOKENS,
}
GATED = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **SPECIAL_TOKENS,
    ),
    "llama": lambda: LlamaConfig(**GATED),
    "mistral": lambda: MistralConfig(**GATED, sliding_window=16),
    "qwen2": lambda: Qwen2Config(**GATED),
    "qwen3": lambda: Qwen3Config(**GATED, head_dim=8),
    "gemma2": lambda: Gemma2Config(**GATED, head_dim=8, sliding_window=16),
    "gemma3": lambda: Gemma3TextConfig(**GATED, head_dim=8, sliding_window=16),
    "opt": lambda: OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=HIDDEN, dropout=0.0),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES, intermediate_size=48),
    "phi": lambda: PhiConfig(**SIZES, intermediate_size=48),
    "bloom": lambda: BloomConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        n_layer=LAYERS,
        n_head=4,
        **SPECIAL_TOKENS,
    ),
}
FAMILIES = tuple(CONFIGS)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the block with torch's global generator seeded, and put the generator back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a small model in eval mode, the same one for the same seed."""
    with seeded(seed):
        model = AutoModelForCausalLM.from_config(CONFIGS[family]())
    # Freshly initialised logits are almost flat: wider weights make disagreements visible.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return model.to(dtype).eval()


def settings(**changes: Any) -> HyLoRADAConfig:
    """Return a configuration with small tables and without dropout."""
    small: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 4,
        "lora_dropout": 0.0,
        "num_landmarks": 4,
        "num_position_buckets": 8,
        "position_bias_buckets": 16,
        "task_type": "CAUSAL_LM",
    }
    return HyLoRADAConfig(**small | changes)


def adapt(
    family: str,
    *,
    perturbed: bool = True,
    dtype: torch.dtype = torch.float32,
    base: nn.Module | None = None,
    **changes: Any,
) -> PeftModel:
    """Return a small model in eval mode with a HyLoRADA adapter that visibly acts."""
    with seeded(1):
        model = get_peft_model(base or build(family, dtype=dtype), settings(**changes)).eval()
    return perturb(model) if perturbed else model


def perturb(model: Module, seed: int = 2, std: float = 0.2) -> Module:
    """Add seeded noise to every trainable tensor and return the model."""
    noise = generator(seed, "perturbation")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=noise).to(parameter) * std)
    return model


def add_second(model: PeftModel, name: str = "second", **changes: Any) -> PeftModel:
    """Add an adapter with other weights, leave the first one active, and return the model."""
    with seeded(3):
        model.add_adapter(name, settings(**changes))
    model.set_adapter(name)
    perturb(model, seed=4)
    model.set_adapter("default")
    return model


def tokens(batch: int = 2, time: int = 20, seed: int = 5) -> Tensor:
    """Return random tokens, none of them special."""
    return torch.randint(3, VOCABULARY, (batch, time), generator=generator(seed, "tokens"))


@torch.no_grad()
def logits(model: nn.Module, input_ids: Tensor, **inputs: Any) -> Tensor:
    """Return the model's logits in float32."""
    return model(input_ids=input_ids, **inputs).logits.float()


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a training run would move, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def both(name: str, **changes: Any) -> list[Any]:
    """Return one pytest parameter set (family, changes) for GPT-2's layers and one for Llama's."""
    return [pytest.param(family, changes, id=f"{family}-{name}") for family in ("gpt2", "llama")]


EVERY_FAMILY = [pytest.param(family, {}, id=family) for family in FAMILIES]
EVERY_DESIGN = [case for design in DESIGNS for case in both(design, landmark_design=design)]
VARIANTS = [
    *both("dora", use_dora=True),
    *both("dora_without_bias", use_dora=True, position_bias=False),
    *both("bias_only", landmark_enabled=False),
    *both("share_ab", share_factors="AB"),
    *both("dora_share_a", use_dora=True, share_factors="A"),
    *both("nothing_shared", landmark_enabled=False, position_bias=False),
]
EVERY_CASE = (
    EVERY_DESIGN + VARIANTS + [case for case in EVERY_FAMILY if case.id not in ("gpt2", "llama")]
)
