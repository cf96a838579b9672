import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
)

from hylorada.seeds import generator
from hylorada.training.shifted_attention import use_shifted_attention
from tests.reference import shifted_attention as reference

GROUP = 4
TIME = 15
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: GPT2Config(vocab_size=40, n_embd=32, n_head=4, n_layer=2, n_positions=64),
    "llama": lambda: LlamaConfig(**SMALL, num_key_value_heads=2),
    "llama_odd": lambda: LlamaConfig(
        **(SMALL | {"hidden_size": 36, "num_attention_heads": 6}), num_key_value_heads=3
    ),
    "llama_multi_query": lambda: LlamaConfig(**SMALL, num_key_value_heads=1),
    "mistral_window": lambda: MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=3),
    "mistral_wide": lambda: MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=9),
    "qwen2": lambda: Qwen2Config(**SMALL, num_key_value_heads=2),
    "gemma": lambda: GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8),
    "gpt_neox": lambda: GPTNeoXConfig(**SMALL),
    "opt": lambda: OPTConfig(
        vocab_size=40,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    ),
}
KV_HEADS = {"llama": 2, "llama_odd": 3, "llama_multi_query": 1, "mistral_window": 2}
KV_HEADS |= {"mistral_wide": 2, "qwen2": 2, "gemma": 1}
WINDOWS = {"mistral_window": 3, "mistral_wide": 9}
# Two rows of documents that end where no group of four does; row two ends in padding.
DOCUMENTS = [[0] * 6 + [1] * 9, [0] * 3 + [1] * 4 + [2] * 5 + [3] * 3]
POSITIONS = torch.tensor(
    [[*range(6), *range(9)], [*range(3), *range(4), *range(5), *range(3)]],
)


def build(config: PreTrainedConfig) -> PreTrainedModel:
    for rate in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout", "dropout"):
        if hasattr(config, rate):
            setattr(config, rate, 0.0)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config)
        # Fresh weights are so small that attention hardly shows in the outputs.
        for weight in model.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.3)
    return model.double().train()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def llama() -> PreTrainedModel:
    return build(FAMILIES["llama"]())


def tokens(rows: int = 2, time: int = TIME) -> Tensor:
    return torch.randint(1, 40, (rows, time), generator=generator(5, "tokens"))


def dense_mask(
    config: PreTrainedConfig,
    name: str,
    documents: list[list[int]] | None,
    *,
    group_size: int = GROUP,
) -> Tensor:
    """The whole pattern, who sees whom, of shape (batch, heads, time, time)."""
    heads = config.num_attention_heads
    rows = []
    for row in range(2):
        masks = [
            reference.allowed(
                TIME,
                group_size=group_size,
                shifted=shifted,
                documents=None if documents is None else documents[row],
                window=WINDOWS.get(name),
            )
            for shifted in reference.shifted_heads(heads, KV_HEADS.get(name, heads))
        ]
        rows.append(torch.stack(masks))
    return torch.stack(rows)


def embedding_gradient(model: PreTrainedModel, logits: Tensor) -> Tensor:
    weights = torch.randn(logits.shape, dtype=logits.dtype, generator=generator(9, "weights"))
    embedding = model.get_input_embeddings().weight
    return torch.autograd.grad((logits * weights).sum(), embedding)[0]


class TestWholeModels:
    """The model's own attention, given the dense pattern as its mask, is the judge."""

    def agree(
        self, name: str, documents: list[list[int]] | None, real: Tensor, **inputs: Tensor
    ) -> None:
        model = build(FAMILIES[name]())
        mask = dense_mask(model.config, name, documents)
        # OPT reads positions off a mask unless it is told them.
        inputs.setdefault("position_ids", torch.arange(TIME).expand(2, -1))
        positions = inputs["position_ids"]
        wanted = model(tokens(), attention_mask=mask, position_ids=positions).logits
        with use_shifted_attention(model, group_size=GROUP):
            logits = model(tokens(), use_cache=False, **inputs).logits
        torch.testing.assert_close(logits[real], wanted[real], rtol=0, atol=1e-9)
        torch.testing.assert_close(
            embedding_gradient(model, logits * real[..., None]),
            embedding_gradient(model, wanted * real[..., None]),
            rtol=0,
            atol=1e-9,
        )

    def test_plain_rows(self, family: str) -> None:
        self.agree(family, None, torch.ones(2, TIME, dtype=torch.bool))

    def test_packed_documents(self, family: str) -> None:
        real = torch.ones(2, TIME, dtype=torch.bool)
        self.agree(family, DOCUMENTS, real, position_ids=POSITIONS)

    @pytest.mark.parametrize("padded", [slice(0, 6), slice(9, TIME)], ids=["left", "right"])
    def test_padding(self, family: str, padded: slice) -> None:
        mask = torch.ones(2, TIME, dtype=torch.long)
        mask[1, padded] = 0
        self.agree(family, mask.tolist(), mask.bool(), attention_mask=mask)

    def test_packed_documents_with_padding(self, family: str) -> None:
        mask = torch.ones(2, TIME, dtype=torch.long)
        mask[1, -3:] = 0
        self.agree(family, DOCUMENTS, mask.bool(), attention_mask=mask, position_ids=POSITIONS)

    @pytest.mark.parametrize("border", [GROUP * 2, GROUP * 2 + GROUP // 2])
    def test_documents_that_end_with_a_group(self, border: int) -> None:
        """Such a border cuts no group of one half of the heads, but one of the other half."""
        positions = torch.tensor([[*range(border), *range(TIME - border)]] * 2)
        documents = [[0] * border + [1] * (TIME - border)] * 2
        real = torch.ones(2, TIME, dtype=torch.bool)
        self.agree("llama", documents, real, position_ids=positions)

    def test_documents_stay_apart_under_a_mask_of_ones(self) -> None:
        real = torch.ones(2, TIME, dtype=torch.bool)
        self.agree("llama", DOCUMENTS, real, attention_mask=real.long(), position_ids=POSITIONS)

    def test_layers_with_and_without_a_window_alternate(self) -> None:
        kinds = ["sliding_attention", "full_attention"]
        config = Gemma3TextConfig(
            **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=2, layer_types=kinds
        )
        self.windowed_layer_sees_less(config)

    def test_a_window_that_reaches_attention_only_through_the_mask_is_kept(self) -> None:
        config = Qwen2MoeConfig(
            **SMALL,
            num_key_value_heads=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_experts=2,
            num_experts_per_tok=1,
            use_sliding_window=True,
            sliding_window=2,
            layer_types=["sliding_attention", "full_attention"],
        )
        self.windowed_layer_sees_less(config)

    @staticmethod
    def windowed_layer_sees_less(config: PreTrainedConfig) -> None:
        """In the first layer token 3 sees tokens 2 and 3; its group would show it token 0."""
        # Experts are computed in single precision at most.
        model = build(config).float()
        first_layer = model.model.layers[0]
        caught: list[Tensor] = []
        first_layer.register_forward_hook(lambda *call: caught.append(call[2]))
        ids = tokens(rows=1)
        changed = ids.clone()
        changed[0, 0] = 1 if ids[0, 0] != 1 else 2
        with use_shifted_attention(model, group_size=GROUP):
            model(ids, use_cache=False)
            model(changed, use_cache=False)
        same = (caught[0] == caught[1]).all(dim=-1)[0]
        assert same.tolist() == [False, False] + [True] * (TIME - 2)


class TestLeaks:
    def test_a_token_changes_nothing_before_it(self, family: str) -> None:
        model = build(FAMILIES[family]())
        ids = tokens(rows=1)
        with use_shifted_attention(model, group_size=GROUP), torch.no_grad():
            before = model(ids, use_cache=False).logits
            for token in range(1, TIME):
                changed = ids.clone()
                changed[0, token] = 1 if ids[0, token] != 1 else 2
                after = model(changed, use_cache=False).logits
                assert torch.equal(after[0, :token], before[0, :token])
                assert not torch.equal(after[0, token], before[0, token])

    def test_no_gradient_comes_from_later_tokens_or_other_documents(self, family: str) -> None:
        model = build(FAMILIES[family]())
        embedded = model.get_input_embeddings()(tokens()).detach().requires_grad_()
        with use_shifted_attention(model, group_size=GROUP):
            logits = model(inputs_embeds=embedded, position_ids=POSITIONS, use_cache=False).logits
        for row in range(2):
            for token in range(TIME):
                target = logits[row, token].sum()
                gradient = torch.autograd.grad(target, embedded, retain_graph=True)[0]
                reached = gradient.abs().sum(dim=-1) > 0
                allowed = torch.tensor(DOCUMENTS[row]) == DOCUMENTS[row][token]
                allowed[token + 1 :] = False
                assert not reached[1 - row].any()
                assert not (reached[row] & ~allowed).any()
                assert reached[row, token]

    def test_documents_stay_apart_with_an_empty_cache(self, llama: PreTrainedModel) -> None:
        with use_shifted_attention(llama, group_size=GROUP):
            cached = llama(tokens(), position_ids=POSITIONS, past_key_values=DynamicCache())
            plain = llama(tokens(), position_ids=POSITIONS, use_cache=False)
        assert torch.equal(cached.logits, plain.logits)

    def test_information_crosses_groups_from_layer_to_layer(self, llama: PreTrainedModel) -> None:
        """Token 5 sees tokens 2 to 5 in a shifted group, and token 2 saw token 0 a layer before."""
        ids = tokens(rows=1)
        changed = ids.clone()
        changed[0, 0] = 1 if ids[0, 0] != 1 else 2
        with use_shifted_attention(llama, group_size=GROUP):
            difference = llama(ids).logits - llama(changed).logits
        touched = (difference[0].abs().amax(dim=-1) > 0).tolist()
        assert touched == [True] * 6 + [False] * (TIME - 6)

    def test_positions_changed_in_place_are_noticed(self, llama: PreTrainedModel) -> None:
        # Under a mask of ones transformers itself does not look at the positions.
        ones = torch.ones(2, TIME, dtype=torch.long)
        positions = torch.arange(TIME).repeat(2, 1)
        with use_shifted_attention(llama, group_size=GROUP):
            llama(tokens(), attention_mask=ones, position_ids=positions)
            positions.copy_(POSITIONS)
            reused = llama(tokens(), attention_mask=ones, position_ids=positions).logits
            fresh = llama(tokens(), attention_mask=ones, position_ids=POSITIONS.clone()).logits
        assert torch.equal(reused, fresh)

    def test_many_batches_one_after_the_other_stay_apart(self, llama: PreTrainedModel) -> None:
        kept = [POSITIONS.clone() for _ in range(10)]
        with use_shifted_attention(llama, group_size=GROUP):
            wanted = llama(tokens(), position_ids=POSITIONS, use_cache=False).logits
            for positions in kept:
                logits = llama(tokens(), position_ids=positions, use_cache=False).logits
                assert torch.equal(logits, wanted)


class TestFullAttention:
    def test_eval_mode_is_the_models_own(self, family: str) -> None:
        model = build(FAMILIES[family]()).eval()
        mask = torch.ones(2, TIME, dtype=torch.long)
        mask[1, :4] = 0
        inputs: list[dict[str, Tensor]] = [{}, {"attention_mask": mask}]
        inputs.append({"position_ids": POSITIONS})
        for extra in inputs:
            real = extra.get("attention_mask", torch.ones(2, TIME)).bool()
            own = model(tokens(), use_cache=False, **extra).logits
            with use_shifted_attention(model, group_size=GROUP):
                logits = model(tokens(), use_cache=False, **extra).logits
            torch.testing.assert_close(logits[real], own[real], rtol=0, atol=1e-10)

    def test_generation_is_the_models_own(self, family: str) -> None:
        model = build(FAMILIES[family]()).eval()
        mask = torch.ones(2, TIME, dtype=torch.long)
        mask[1, :4] = 0
        settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
        settings |= {"pad_token_id": 0, "eos_token_id": None}
        own = model.generate(tokens(), **settings)
        with use_shifted_attention(model, group_size=GROUP):
            assert torch.equal(model.generate(tokens(), **settings), own)

    @pytest.mark.parametrize("time", [1, 5, TIME])
    def test_rows_no_longer_than_a_group_get_full_attention_while_training(
        self, llama: PreTrainedModel, time: int
    ) -> None:
        ids, positions = tokens()[:, :time], POSITIONS[:, :time]
        own = llama(ids, position_ids=positions, use_cache=False).logits
        with use_shifted_attention(llama, group_size=TIME):
            logits = llama(ids, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(logits, own, rtol=0, atol=1e-10)

    def test_rows_longer_than_a_group_do_not(self, llama: PreTrainedModel) -> None:
        own = llama(tokens()).logits
        with use_shifted_attention(llama, group_size=TIME - 1):
            assert not torch.allclose(llama(tokens()).logits, own)

    def test_the_models_own_attention_returns_even_after_an_error(
        self, llama: PreTrainedModel
    ) -> None:
        llama.set_attn_implementation("eager")

        def fail() -> None:
            with use_shifted_attention(llama, group_size=GROUP):
                assert llama.config._attn_implementation == "hylorada_shifted_4"
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert llama.config._attn_implementation == "eager"

    def test_nothing_of_it_is_saved(self, llama: PreTrainedModel) -> None:
        with use_shifted_attention(llama, group_size=GROUP):
            assert "hylorada" not in llama.config.to_json_string()


class TestCompany:
    def test_gradient_checkpointing_gives_the_same_gradients(self, family: str) -> None:
        model = build(FAMILIES[family]())
        gradients = []
        with use_shifted_attention(model, group_size=GROUP):
            for checkpointing in (False, True):
                if checkpointing:
                    model.gradient_checkpointing_enable({"use_reentrant": False})
                logits = model(tokens(), position_ids=POSITIONS, use_cache=False).logits
                gradients.append(embedding_gradient(model, logits))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-12)

    def test_adapters_train_on_top(self, llama: PreTrainedModel) -> None:
        plain = copy.deepcopy(llama)
        adapted = get_peft_model(llama, LoraConfig(target_modules=["q_proj"], r=2)).double()
        with (
            use_shifted_attention(adapted, group_size=GROUP),
            use_shifted_attention(plain, group_size=GROUP),
        ):
            logits = adapted(tokens()).logits
            assert torch.equal(logits, plain(tokens()).logits)
            logits.square().sum().backward()
        grown = [weight for name, weight in adapted.named_parameters() if "lora_B" in name]
        assert len(grown) == 2
        assert all(weight.grad.abs().sum() > 0 for weight in grown)

    def test_a_copy_keeps_its_groups_beside_a_model_with_others(
        self, llama: PreTrainedModel
    ) -> None:
        with use_shifted_attention(llama, group_size=GROUP):
            wanted = llama(tokens()).logits
            twin = copy.deepcopy(llama)
        with use_shifted_attention(llama, group_size=6):
            assert not torch.allclose(llama(tokens()).logits, wanted)
            assert torch.equal(twin(tokens()).logits, wanted)

    def test_inference_mode_in_training_mode_gives_the_same_numbers(
        self, llama: PreTrainedModel
    ) -> None:
        with use_shifted_attention(llama, group_size=GROUP):
            wanted = llama(tokens(), use_cache=False).logits
            with torch.inference_mode():
                logits = llama(tokens(), use_cache=False).logits
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-12)
