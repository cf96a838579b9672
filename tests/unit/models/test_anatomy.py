"""Decoder, final norm, attention projections and context are found from the module tree."""

from collections.abc import Mapping

import pytest
from peft import IA3Config, LNTuningConfig, LoraConfig, PeftConfig, get_peft_model
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.pytorch_utils import Conv1D

from hylorada import UnsupportedModelError
from hylorada.models.anatomy import (
    ENDLESS_CONTEXT,
    attention_projections,
    context_length,
    find_decoder,
    find_final_norm,
    hidden_size,
    is_linear,
)
from tests.families import CONTEXT, FAMILIES, GATED, HIDDEN, LAYERS, adapt, add_second, build

FINAL_NORMS = {
    "gpt2": "transformer.ln_f",
    "llama": "model.norm",
    "mistral": "model.norm",
    "qwen2": "model.norm",
    "qwen3": "model.norm",
    "gemma2": "model.norm",
    "gemma3": "model.norm",
    "opt": "model.decoder.final_layer_norm",
    "gpt_neox": "gpt_neox.final_layer_norm",
    "phi": "model.final_layernorm",
    "bloom": "transformer.ln_f",
}
SEPARATE = {f"self_attn.{name}_proj" for name in "qkvo"}
PROJECTIONS = {
    "gpt2": {"attn.c_attn", "attn.c_proj"},
    "opt": {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"},
    "gpt_neox": {"attention.query_key_value", "attention.dense"},
    "phi": {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.dense"},
    "bloom": {"self_attention.query_key_value", "self_attention.dense"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_its_stack_norm_and_projections(family: str) -> None:
    model = build(family)
    decoder = find_decoder(model)
    assert len(decoder.layers) == LAYERS
    assert model.get_submodule(decoder.block_name(1)) is decoder.layers[1]
    assert find_final_norm(model) == FINAL_NORMS[family]
    assert attention_projections(model) == PROJECTIONS.get(family, SEPARATE)
    assert hidden_size(model) == HIDDEN


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules=["q_proj", "o_proj"], use_dora=True),
        LoraConfig(target_modules=["v_proj"], modules_to_save=["q_proj"]),
        IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
    ],
    ids=["dora", "saved", "ia3"],
)
def test_a_layer_that_peft_has_wrapped_counts_as_what_it_wraps(config: PeftConfig) -> None:
    model = build("llama")
    get_peft_model(model, config)
    assert attention_projections(model) == SEPARATE


@pytest.mark.parametrize(
    ("family", "expected"), [("llama", SEPARATE), ("gpt2", PROJECTIONS["gpt2"])]
)
def test_a_second_adapter_finds_the_projections_of_the_first(
    family: str, expected: set[str]
) -> None:
    model = add_second(adapt(family, use_dora=True, share_factors="A"))
    assert model.peft_config["second"].target_modules == expected


@pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning")
@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(target_modules=["q_proj"], modules_to_save=["norm"]),
        LNTuningConfig(target_modules=["norm"]),
    ],
    ids=["saved", "tuned"],
)
def test_a_final_norm_that_peft_has_wrapped_is_found(config: PeftConfig) -> None:
    model = build("llama")
    get_peft_model(model, config)
    assert find_final_norm(model) == "model.norm"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bloom"])
def test_the_context_is_the_one_the_model_was_built_for(family: str) -> None:
    assert context_length(build(family)) == CONTEXT


def test_a_model_without_a_context_length_gets_the_documented_one() -> None:
    assert context_length(build("bloom")) == ENDLESS_CONTEXT == 2048


def test_a_module_knows_its_block() -> None:
    decoder = find_decoder(build("gpt2"))
    assert decoder.layer_of("transformer.h.2.attn.c_attn") == 2
    assert decoder.layer_of("transformer.wte") is None
    assert decoder.layer_of("lm_head") is None


def test_experts_are_not_taken_for_layers() -> None:
    config = MixtralConfig(**GATED | {"num_hidden_layers": 2}, num_local_experts=6)
    decoder = find_decoder(MixtralForCausalLM(config))
    assert len(decoder.layers) == 2
    assert decoder.block_name(0) == "model.layers.0"


class Stack(nn.Module):
    """A decoder made by hand: `first` before, `last` after the blocks."""

    def __init__(self, first: Mapping[str, nn.Module], last: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in first.items():
            self.add_module(name, module)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
        for name, module in last.items():
            self.add_module(name, module)


def test_a_stack_at_the_root_has_short_names() -> None:
    decoder = find_decoder(Stack({}, {}))
    assert decoder.name == ""
    assert decoder.block_name(1) == "layers.1"
    assert decoder.layer_of("layers.1.0") == 1


def test_the_norm_behind_the_blocks_wins() -> None:
    first, last = {"norm_in": nn.LayerNorm(2)}, {"norm_out": nn.LayerNorm(2)}
    assert find_final_norm(Stack(first, last)) == "norm_out"


def test_a_norm_declared_before_the_blocks_is_found_unless_it_follows_the_embedding() -> None:
    first = {"final": nn.LayerNorm(2), "embedding_norm": nn.LayerNorm(2)}
    assert find_final_norm(Stack(first, {})) == "final"


def test_a_model_without_a_final_norm_is_refused_with_a_repair() -> None:
    with pytest.raises(UnsupportedModelError, match="landmark_module"):
        find_final_norm(Stack({}, {}))


def test_a_model_without_a_stack_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Linear has none"):
        find_decoder(nn.Linear(2, 2))


def test_the_longer_of_two_stacks_is_the_decoder() -> None:
    text = Stack({}, {})
    text.layers.append(nn.Sequential(nn.Linear(2, 2)))
    model = nn.ModuleDict({"vision": Stack({}, {}), "text": text})
    assert find_decoder(model).name == "text"


def test_a_model_without_a_config_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="transformers config"):
        context_length(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("module", "linear"),
    [
        (nn.Linear(2, 3), True),
        (Conv1D(3, 2), True),
        (nn.Bilinear(2, 2, 2), False),
        (nn.Embedding(2, 3), False),
        (nn.LayerNorm(2), False),
    ],
)
def test_linear_layers_are_told_from_others(module: nn.Module, linear: bool) -> None:
    assert is_linear(module) is linear
