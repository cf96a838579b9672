"""The chunked loss is the plain loss: same value, same gradients, less memory."""

import weakref
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from hylorada.errors import UnsupportedModelError
from hylorada.training.loss import chunked_cross_entropy, chunked_loss

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "gemma2, capped": Gemma2Config(**SIZES, final_logit_softcapping=0.5),
    "granite, divided": GraniteConfig(**SIZES, logits_scaling=4.0),
    "cohere, scaled": CohereConfig(**SIZES, logit_scale=0.25),
    "gpt2, tied": GPT2Config(vocab_size=61, n_positions=32, n_embd=16, n_layer=2, n_head=2),
    "neox": GPTNeoXConfig(**SIZES),
    "opt": OPTConfig(
        vocab_size=61,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
    ),
}


def plain(states: Tensor, labels: Tensor, head: nn.Module) -> Tensor:
    logits = head(states[:, :-1]).flatten(0, 1)
    return nn.functional.cross_entropy(logits, labels[:, 1:].flatten())


def small(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float64)
    return model.eval()


def batch() -> dict[str, Tensor]:
    tokens = torch.randint(3, 61, (2, 13), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, 9:] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


@pytest.mark.parametrize("chunk", [1, 5, 12, 1000])
def test_the_loss_and_both_gradients_equal_the_plain_ones(chunk: int) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 11, dtype=torch.float64)
    states = torch.randn(2, 7, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (2, 7))
    labels[0, 3:5] = -100
    expected = plain(states, labels, head)
    wanted = torch.autograd.grad(expected, [states, head.weight, head.bias])
    loss = chunked_cross_entropy(
        states, labels, head, weights=tuple(head.parameters()), chunk_tokens=chunk
    )
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)
    got = torch.autograd.grad(loss, [states, head.weight, head.bias])
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-14)


def test_two_equal_logits_cost_ln_two() -> None:
    loss = chunked_cross_entropy(torch.zeros(1, 2, 2), torch.tensor([[0, 1]]), nn.Identity())
    torch.testing.assert_close(loss, torch.tensor(2.0).log())


def test_the_sum_is_divided_by_the_items_given() -> None:
    states, labels = torch.zeros(1, 3, 2), torch.tensor([[0, 1, 0]])
    loss = chunked_cross_entropy(states, labels, nn.Identity(), items=torch.tensor(8))
    torch.testing.assert_close(loss, torch.tensor(2.0).log() * 2 / 8)


def test_a_frozen_head_gives_gradients_to_the_states_only() -> None:
    head = nn.Linear(4, 5).requires_grad_(False)
    states = torch.randn(1, 3, 4, requires_grad=True)
    chunked_cross_entropy(states, torch.tensor([[0, 1, 2]]), head).backward()
    assert states.grad is not None
    assert head.weight.grad is None


def test_a_trainable_head_on_frozen_states_still_learns() -> None:
    head = nn.Linear(4, 5)
    loss = chunked_cross_entropy(
        torch.randn(1, 3, 4), torch.tensor([[0, 1, 2]]), head, weights=(head.weight, head.bias)
    )
    loss.backward()
    assert head.weight.grad is not None
    assert head.weight.grad.abs().sum() > 0


def test_bfloat16_states_keep_a_float32_loss_and_a_bfloat16_gradient() -> None:
    states = torch.randn(1, 4, 3, dtype=torch.bfloat16, requires_grad=True)
    loss = chunked_cross_entropy(states, torch.tensor([[0, 1, 2, 0]]), nn.Identity())
    loss.backward()
    assert loss.dtype == torch.float32
    assert states.grad is not None
    assert states.grad.dtype == torch.bfloat16


def test_no_more_than_one_chunk_of_logits_is_alive() -> None:
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def head(rows: Tensor) -> Tensor:
        nonlocal most
        logits = rows @ weight
        alive.add(logits)
        most = max(most, sum(tensor.numel() for tensor in alive))
        return logits

    weight = torch.randn(4, 100)
    states = torch.randn(1, 64, 4, requires_grad=True)
    loss = chunked_cross_entropy(states, torch.zeros(1, 64).long(), head, chunk_tokens=8)
    assert most == 8 * 100
    assert len(alive) == 0
    loss.backward()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_inside_the_block_has_its_own_loss_and_gradients(name: str) -> None:
    model = small(name)
    inputs = batch()
    expected = model(**inputs).loss
    expected.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with chunked_loss(model, chunk_tokens=5):
        loss = model(**inputs).loss
        loss.backward()
    # Transformers takes the logits through float32 on its way.
    torch.testing.assert_close(loss, expected.to(loss.dtype), rtol=1e-6, atol=0)
    got = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)


def test_a_peft_model_with_an_adapted_head_trains_every_adapter() -> None:
    model = get_peft_model(
        small("llama"), LoraConfig(target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    )
    inputs = batch()
    trainable = [p for p in model.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(model(**inputs).loss, trainable)
    with chunked_loss(model, chunk_tokens=4):
        got = torch.autograd.grad(model(**inputs).loss, trainable)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-6)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = small("llama").train()
    inputs = batch()
    with chunked_loss(model):
        model(**inputs).loss.backward()
        wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model(**inputs).loss.backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    torch.testing.assert_close(got, wanted)


def test_without_labels_the_model_still_returns_logits() -> None:
    model = small("llama")
    tokens = batch()["input_ids"]
    with chunked_loss(model):
        inside = model(tokens).logits
    torch.testing.assert_close(inside, model(tokens).logits)


def test_a_caller_may_say_that_it_wants_no_cache() -> None:
    model = small("llama")
    with chunked_loss(model):
        said, unsaid = model(**batch(), use_cache=False).loss, model(**batch()).loss
    assert torch.equal(said, unsaid)


def test_the_model_is_as_before_after_the_block() -> None:
    model = small("llama")
    with chunked_loss(model):
        pass
    assert "forward" not in model.__dict__
    assert model(**batch()).logits is not None


def test_a_forward_set_by_someone_else_returns_after_the_block() -> None:
    model = small("llama")
    theirs = model.forward
    model.forward = theirs
    with chunked_loss(model):
        assert model.forward is not theirs
    assert model.__dict__["forward"] is theirs


def test_training_modes_survive_the_probe() -> None:
    model = small("llama").train()
    model.model.norm.eval()
    with chunked_loss(model):
        assert model.training
        assert not model.model.norm.training


class Outside(nn.Module):
    """A causal language model that does to its logits what its head alone does not know."""

    def __init__(self, inner: PreTrainedModel, names_its_decoder: bool) -> None:
        super().__init__()
        self.inner = inner
        if names_its_decoder:
            self.get_decoder = lambda: inner.model

    def get_output_embeddings(self) -> nn.Module:
        return self.inner.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        output = self.inner(input_ids=input_ids)
        output.logits = -output.logits
        return output


def test_what_a_model_does_to_its_logits_after_the_head_is_done_in_pieces_too() -> None:
    model = Outside(small("llama"), names_its_decoder=True)
    inputs = batch()
    tokens, labels = inputs["input_ids"], inputs["labels"]
    expected = nn.functional.cross_entropy(
        model(tokens).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    with chunked_loss(model, chunk_tokens=5):
        loss = model(input_ids=tokens, labels=labels).loss
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("model", [Outside(small("llama"), False), small("llama").model])
def test_a_model_without_decoder_or_head_is_refused(model: nn.Module) -> None:
    with (
        pytest.raises(UnsupportedModelError, match=f"got {type(model).__name__}; set chunk_tokens"),
        chunked_loss(model),
    ):
        pass
