import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
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

from hylorada.adapters.shifted_attention import (
    ShiftedAttentionSpec,
    shifted_attention,
    use_shifted_attention,
)
from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.seeds import generator
from tests.reference import shifted_attention as reference

GROUP = 4
TIME = 15
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
# Two rows of documents that end where no group of four does.
DOCUMENTS = [[0] * 6 + [1] * 9, [0] * 3 + [1] * 4 + [2] * 5 + [3] * 3]


@pytest.fixture
def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SMALL)).train()


def tokens() -> Tensor:
    return torch.arange(2 * TIME).reshape(2, TIME)


def states(heads: int, kv_heads: int, time: int, batch: int = 2) -> list[Tensor]:
    draws = generator(7, "states")
    return [
        torch.randn(batch, time, count, 8, dtype=torch.float64, generator=draws)
        .transpose(1, 2)
        .requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


def earliest_of(documents: list[list[int]]) -> Tensor:
    return torch.tensor([[row.index(document) for document in row] for row in documents])


class TestTheFastPath:
    def test_a_row_of_six_tokens_in_groups_of_four_sees_what_the_drawing_says(self) -> None:
        """Equal scores make each output the mean of the visible values, here one-hot vectors."""
        query = key = torch.zeros(1, 2, 6, 6)
        value = torch.eye(6).expand(1, 2, 6, 6)
        attended = shifted_attention(query, key, value, group_size=4)
        straight = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [4], [4, 5]]
        shifted = [[0], [0, 1], [2], [2, 3], [2, 3, 4], [2, 3, 4, 5]]
        for head, drawing in enumerate((straight, shifted)):
            for token, seen in enumerate(drawing):
                expected = torch.zeros(6)
                expected[seen] = 1 / len(seen)
                torch.testing.assert_close(attended[0, token, head], expected)

    @pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 12, 17])
    @pytest.mark.parametrize("group_size", [2, 4, 5, 32])
    def test_any_length_and_group_size_equal_the_dense_mask(
        self, time: int, group_size: int
    ) -> None:
        self.compare(states(4, 4, time), group_size=group_size)

    @pytest.mark.parametrize(
        ("heads", "kv_heads"), [(2, 2), (3, 3), (4, 2), (9, 3), (5, 1), (2, 1)]
    )
    @pytest.mark.parametrize("documents", [None, DOCUMENTS])
    def test_shared_key_heads_equal_the_dense_mask(
        self, heads: int, kv_heads: int, documents: list[list[int]] | None
    ) -> None:
        self.compare(states(heads, kv_heads, TIME), group_size=GROUP, documents=documents)

    def test_a_given_scaling_is_used(self) -> None:
        self.compare(states(2, 2, TIME), group_size=GROUP, scaling=1.7)

    def test_float32_errs_at_most_twice_as_much_as_the_dense_form(self) -> None:
        exact = [tensor.detach() for tensor in states(4, 2, 67)]
        rounded = [tensor.float() for tensor in exact]
        truth = reference.attention(*exact, group_size=16)
        plain = (reference.attention(*rounded, group_size=16) - truth).abs().max()
        fast = (shifted_attention(*rounded, group_size=16) - truth).abs().max()
        assert fast <= 2 * plain

    def test_dropout_drops_attention_weights(self) -> None:
        given = states(2, 2, TIME)
        dropped = shifted_attention(*given, group_size=GROUP, dropout=0.5)
        assert not torch.equal(dropped, shifted_attention(*given, group_size=GROUP))

    def test_operations_fall_with_the_group_size(self) -> None:
        """4096 tokens in 8 groups: an eighth of the pairs, less what short end groups save."""

        def operations(attend: Callable[[], Tensor]) -> int:
            with FlopCounterMode(display=False) as counter:
                attend().sum().backward()
            return counter.get_total_flops()

        given = [torch.empty(1, 4, 4096, 16, device="meta", requires_grad=True) for _ in range(3)]
        query, key, value = given
        full = operations(
            lambda: nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        )
        grouped = operations(lambda: shifted_attention(*given, group_size=512))
        assert grouped / full == pytest.approx((8 + 7.5) / 2 / 64, rel=1e-6)

    @staticmethod
    def compare(
        given: list[Tensor],
        *,
        group_size: int,
        documents: list[list[int]] | None = None,
        scaling: float | None = None,
    ) -> None:
        fast = shifted_attention(
            *given,
            group_size=group_size,
            earliest=None if documents is None else earliest_of(documents),
            scaling=scaling,
        )
        slow = reference.attention(
            *given, group_size=group_size, documents=documents, scaling=scaling
        )
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
        upstream = torch.randn(fast.shape, dtype=fast.dtype, generator=generator(1, "upstream"))
        gradients = torch.autograd.grad(fast, given, upstream)
        expected = torch.autograd.grad(slow, given, upstream)
        for gradient, wanted in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)


class TestTheInterface:
    def test_a_model_that_tells_no_positions_gets_plain_groups(
        self, llama: PreTrainedModel
    ) -> None:
        given = states(4, 2, TIME)
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
from hylorada.adapters.shifted_attention import use_shifted_attention
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
        with pytest.raises(SpecError, match=f"at least 2 tokens; got {group_size}"):
            ShiftedAttentionSpec(group_size=group_size)

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
            attend(attention, *states(4, 2, TIME), None, position_ids=positions)

    @staticmethod
    def enter(model: nn.Module) -> None:
        with use_shifted_attention(model, group_size=GROUP):
            pass
