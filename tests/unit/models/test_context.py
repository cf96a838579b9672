from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.models.pretrained import has_rotary_positions, widened_config, with_longer_table
from hylorada.specs.run import SCALINGS, ContextSpec

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])
ORDER = torch.arange(6)[None]
# Positions with gaps mean packed documents unless a mask says otherwise.
SEEN = torch.ones_like(TOKENS)


def llama_config(**changes: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 12,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
        "initializer_range": 0.5,
    }
    return LlamaConfig(**sizes | changes)


def wider_llama(
    scaling: str, factor: float | None = None
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model and its double for 32 tokens, with the same weights."""
    model = LlamaForCausalLM(llama_config()).eval()
    spec = ContextSpec(length=32, scaling=scaling, factor=factor)
    wider = LlamaForCausalLM(widened_config(model.config, spec)).eval()
    wider.load_state_dict(model.state_dict())
    return model, wider


def gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=12, n_embd=16, n_layer=2, n_head=2, n_positions=8, initializer_range=0.5
    )
    return GPT2LMHeadModel(config).eval()


def gpt_neo() -> PreTrainedModel:
    config = GPTNeoConfig(
        vocab_size=12,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        attention_types=[[["global"], 2]],
        max_position_embeddings=8,
        initializer_range=0.5,
    )
    return GPTNeoForCausalLM(config).eval()


def opt() -> PreTrainedModel:
    config = OPTConfig(
        vocab_size=12,
        hidden_size=16,
        ffn_dim=16,
        word_embed_proj_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8,
        init_std=0.5,
    )
    return OPTForCausalLM(config).eval()


def logits(model: PreTrainedModel, positions: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS, position_ids=positions, attention_mask=SEEN).logits


def test_linear_scaling_by_two_reads_position_2p_as_p_was_read() -> None:
    model, wider = wider_llama("linear")
    torch.testing.assert_close(logits(wider, 2 * ORDER), logits(model, ORDER))
    assert not torch.allclose(logits(wider, ORDER), logits(model, ORDER), atol=1e-3)


def test_a_factor_can_differ_from_the_ratio_of_lengths() -> None:
    model, wider = wider_llama("linear", factor=4.0)
    torch.testing.assert_close(logits(wider, 4 * ORDER), logits(model, ORDER))


def test_yarn_changes_what_the_model_says() -> None:
    model, wider = wider_llama("yarn")
    assert not torch.allclose(logits(wider, ORDER), logits(model, ORDER), atol=1e-3)


def test_dynamic_scaling_is_exact_within_the_original_context_only() -> None:
    model, wider = wider_llama("dynamic")
    torch.testing.assert_close(logits(wider, ORDER), logits(model, ORDER))
    long = torch.arange(30).remainder(12)[None]
    with torch.no_grad():
        assert not torch.allclose(model(long).logits, wider(long).logits, atol=1e-3)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_wider_length_is_recorded_and_the_original_config_untouched(scaling: str) -> None:
    config = llama_config()
    widened = widened_config(config, ContextSpec(length=64, scaling=scaling))
    assert widened.widened_context == 64
    assert config.max_position_embeddings == 16
    assert config.rope_parameters["rope_type"] == "default"


def test_dynamic_scaling_keeps_the_length_its_base_is_computed_from() -> None:
    linear, dynamic = (
        widened_config(llama_config(), ContextSpec(length=64, scaling=scaling))
        for scaling in ("linear", "dynamic")
    )
    assert (linear.max_position_embeddings, dynamic.max_position_embeddings) == (64, 16)


def test_only_global_layers_are_rescaled_where_layers_differ() -> None:
    config = Gemma3TextConfig(max_position_embeddings=64)
    widened = widened_config(config, ContextSpec(length=128))
    assert widened.rope_parameters["full_attention"]["rope_type"] == "linear"
    assert widened.rope_parameters["sliding_attention"]["rope_type"] == "default"


def test_layers_without_global_ones_are_refused() -> None:
    config = Gemma3TextConfig(max_position_embeddings=64)
    del config.rope_parameters["full_attention"]
    with pytest.raises(UnsupportedModelError, match="none is 'full_attention'"):
        widened_config(config, ContextSpec(length=128))


def test_positions_that_are_scaled_already_are_refused() -> None:
    scaled = widened_config(llama_config(), ContextSpec(length=32))
    with pytest.raises(UnsupportedModelError, match=r"already scaled \(linear\)"):
        widened_config(scaled, ContextSpec(length=64))


def test_a_config_without_rotary_positions_is_refused() -> None:
    assert not has_rotary_positions(gpt2().config)
    with pytest.raises(UnsupportedModelError, match="gpt2 has no rotary positions"):
        widened_config(gpt2().config, ContextSpec(length=32))


@pytest.mark.parametrize("build", [gpt2, gpt_neo, opt])
def test_a_stretched_table_reads_position_2p_as_p_was_read(build: Any) -> None:
    model = build()
    wider = with_longer_table(model, ContextSpec(length=16))
    torch.testing.assert_close(logits(wider, 2 * ORDER), logits(model, ORDER))
    assert not torch.allclose(logits(wider, ORDER), logits(model, ORDER), atol=1e-3)


@pytest.mark.parametrize("build", [gpt2, gpt_neo, opt])
def test_a_longer_table_accepts_longer_texts(build: Any) -> None:
    model = build()
    long = torch.arange(20).remainder(12)[None]
    with torch.no_grad(), pytest.raises(IndexError):
        model(long)
    wider = with_longer_table(model, ContextSpec(length=20))
    assert wider(long).logits.shape == (1, 20, 12)
    assert wider.config.max_position_embeddings == wider.config.widened_context == 20


def test_positions_between_two_rows_are_their_mean() -> None:
    model = gpt2()
    wider = with_longer_table(model, ContextSpec(length=16))
    old, new = model.transformer.wpe.weight, wider.transformer.wpe.weight
    torch.testing.assert_close(new[3], (old[1] + old[2]) / 2)
    torch.testing.assert_close(new[15], old[7])


def test_a_rebuilt_model_keeps_its_weights_and_its_tied_head() -> None:
    model = gpt2()
    wider = with_longer_table(model, ContextSpec(length=16))
    assert wider.lm_head.weight is wider.transformer.wte.weight
    torch.testing.assert_close(wider.lm_head.weight, model.lm_head.weight)
    assert not wider.training


@pytest.mark.parametrize("scaling", ["dynamic", "yarn"])
def test_learned_positions_know_only_linear_scaling(scaling: str) -> None:
    with pytest.raises(SpecError, match=f"{scaling}.* needs rotary positions, gpt2.*use 'linear'"):
        with_longer_table(gpt2(), ContextSpec(length=16, scaling=scaling))


def test_a_model_without_positions_to_widen_is_refused() -> None:
    model = BloomForCausalLM(BloomConfig(vocab_size=12, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(UnsupportedModelError, match="neither rotary nor learned positions"):
        with_longer_table(model, ContextSpec(length=16))


def test_a_context_that_is_not_wider_is_refused() -> None:
    with pytest.raises(SpecError, match="must exceed the model's own, 16; got 16"):
        widened_config(llama_config(), ContextSpec(length=16))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "at least 2; got 1"),
        ({"length": 8, "scaling": "ntk"}, "linear, dynamic, yarn; got 'ntk'"),
        ({"length": 8, "factor": 0.5}, "at least 1; got 0.5"),
        ({"length": 8, "factor": float("nan")}, "at least 1; got nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ContextSpec(**settings)
