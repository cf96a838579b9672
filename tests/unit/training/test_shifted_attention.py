import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.seeds import generator
from hylorada.training.shifted_attention import shifted_attention, use_shifted_attention

GROUP = 4
TIME = 15
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SMALL)).train()


def tokens() -> Tensor:
    return torch.arange(2 * TIME).reshape(2, TIME)


def states() -> list[Tensor]:
    """Return queries of four heads, and keys and values of two."""
    draws = generator(7, "states")
    return [torch.randn(2, heads, TIME, 8, generator=draws) for heads in (4, 2, 2)]


class TestTheInterface:
    def test_a_model_that_tells_no_positions_gets_plain_groups(
        self, llama: PreTrainedModel
    ) -> None:
        given = states()
        with use_shifted_attention(llama, group_size=GROUP):
            attend = AttentionInterface()[llama.config._attn_implementation]
        attended, weights = attend(llama.model.layers[0].self_attn, *given, None)
        assert torch.equal(attended, shifted_attention(*given, group_size=GROUP))
        assert weights is None


class TestCost:
    def test_training_never_holds_a_square_of_the_length(self) -> None:
        """The largest tensor of a padded, packed pass stays far under 512 × 512 numbers."""
        model = LlamaForCausalLM(LlamaConfig(**SMALL, max_position_embeddings=512)).train()
        mask = torch.ones(1, 512, dtype=torch.long)
        mask[0, -5:] = 0
        ids, positions = torch.arange(512)[None] % 40, torch.arange(512)[None] % 100
        with use_shifted_attention(model, group_size=16), _LargestTensor() as watch:
            model(ids, attention_mask=mask, position_ids=positions)
        assert 512 * 40 <= watch.numbers < 512 * 512 / 8

    def test_a_compiled_model_is_one_graph_with_the_same_numbers(self) -> None:
        """Run outside this process, where no type checker stands between the graph and the code."""
        script = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from hylorada.training.shifted_attention import use_shifted_attention
model = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48,
    num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)).train()
compiled = torch.compile(model, backend="eager", fullgraph=True)
ids, packed = torch.arange(30).reshape(2, 15), torch.tensor([[*range(6), *range(9)]] * 2)
with use_shifted_attention(model, group_size=4):
    wanted = model(ids, use_cache=False, position_ids=packed).logits
    torch.testing.assert_close(compiled(ids, use_cache=False, position_ids=packed).logits, wanted)
"""
        subprocess.run([sys.executable, "-c", script], check=True)


class _LargestTensor(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


class TestRefusals:
    @pytest.mark.parametrize("group_size", [1, 0, -4])
    def test_a_group_needs_two_tokens(self, group_size: int) -> None:
        with (
            pytest.raises(SpecError, match=f"at least 2 tokens; got {group_size}"),
            use_shifted_attention(nn.Identity(), group_size=group_size),
        ):
            pass

    def test_a_module_without_a_transformers_model(self) -> None:
        with pytest.raises(UnsupportedModelError, match="a transformers model; got Linear"):
            self.enter(nn.Linear(2, 2))

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            (BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=2), "ALiBi.*Bloom"),
            (Gemma2Config(**SMALL, head_dim=8), "soft-capping.*Gemma2"),
            (GPT2Config(vocab_size=8, n_embd=8, n_head=1, n_layer=1), "at least 2 heads"),
            (
                GPT2Config(vocab_size=8, n_embd=8, n_head=2, n_layer=1, add_cross_attention=True),
                "causal self-attention and no other",
            ),
        ],
    )
    def test_models_that_cannot_be_switched(self, config: PreTrainedConfig, reason: str) -> None:
        with pytest.raises(UnsupportedModelError, match=reason):
            self.enter(AutoModelForCausalLM.from_config(config))

    def test_models_of_several_parts(self) -> None:
        config = T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        with pytest.raises(UnsupportedModelError, match="a decoder alone"):
            self.enter(T5ForConditionalGeneration(config))

    def test_a_filled_cache_while_training(self, llama: PreTrainedModel) -> None:
        with use_shifted_attention(llama, group_size=GROUP):
            cache = llama(tokens(), use_cache=True).past_key_values
            with pytest.raises(SpecError, match="16 keys for 1 queries"):
                llama(tokens()[:, :1], past_key_values=cache)

    def test_a_square_mask_while_training(self, llama: PreTrainedModel) -> None:
        mask = torch.ones(2, 1, TIME, TIME, dtype=torch.bool).tril()
        with (
            use_shifted_attention(llama, group_size=GROUP),
            pytest.raises(SpecError, match=r"got one of shape \(2, 1, 15, 15\)"),
        ):
            llama(tokens(), attention_mask=mask)

    def test_attention_that_looks_ahead(self, llama: PreTrainedModel) -> None:
        llama.model.layers[0].self_attn.is_causal = False
        with (
            use_shifted_attention(llama, group_size=GROUP),
            pytest.raises(UnsupportedModelError, match="LlamaAttention looks ahead"),
        ):
            llama(tokens())

    def test_attention_with_sinks(self, llama: PreTrainedModel) -> None:
        with (
            use_shifted_attention(llama, group_size=GROUP),
            pytest.raises(UnsupportedModelError, match="lacks 's_aux'"),
        ):
            llama(tokens(), s_aux=torch.zeros(4))

    def test_positions_of_another_shape(self, llama: PreTrainedModel) -> None:
        attention = llama.model.layers[0].self_attn
        positions = torch.arange(TIME).expand(3, 2, -1)
        with use_shifted_attention(llama, group_size=GROUP):
            attend = AttentionInterface()[llama.config._attn_implementation]
        with pytest.raises(UnsupportedModelError, match=r"got \(3, 2, 15\) for 15 tokens"):
            attend(attention, *states(), None, position_ids=positions)

    @staticmethod
    def enter(model: nn.Module) -> None:
        with use_shifted_attention(model, group_size=GROUP):
            pass
