import logging
import math

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from torch import nn

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.evaluation import likelihood as module
from hylorada.evaluation.likelihood import Likelihood, TokenLosses, require_context
from hylorada.models.heads import evaluating
from tests.unit.evaluation.models import (
    ARCHITECTURES,
    VOCABULARY,
    TableModel,
    build,
    random_tokens,
    uniform,
)
from tests.unsplittable import Wrapper


def token_losses(model: nn.Module, tokens: torch.Tensor, **inputs: torch.Tensor) -> TokenLosses:
    return Likelihood(model).token_losses(tokens, **inputs)


def batch(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(random_tokens(rows * length, seed=seed)).view(rows, length)


def test_uniform_model_loses_ln_v_at_every_target() -> None:
    result = token_losses(uniform(7), torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert result.scored.tolist() == [[False, True, True]] * 2
    torch.testing.assert_close(result.losses[:, 1:], torch.full((2, 2), math.log(7)))


def test_losses_stand_at_their_targets_with_hand_computed_values() -> None:
    table = torch.tensor([[0.0, math.log(3.0)], [math.log(9.0), 0.0]])
    result = token_losses(TableModel(table), torch.tensor([[0, 1, 1, 0]]))
    # After 0, token 1 has 3/4; after 1, token 1 has 1/10 and token 0 has 9/10.
    expected = [0.0, -math.log(0.75), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(result.losses, torch.tensor([expected]))


def test_hits_are_the_targets_that_the_model_would_have_chosen() -> None:
    table = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    engine = Likelihood(TableModel(table))
    result = engine.token_losses(torch.tensor([[0, 1, 1, 0]]), hits=True)
    assert result.hits is not None
    assert result.hits.tolist() == [[False, True, False, True]]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_mean_loss_is_the_models_own_loss(name: str) -> None:
    model, tokens = build(name), batch(3, 17)
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    result = token_losses(model, tokens)
    torch.testing.assert_close(result.losses[result.scored].mean(), own)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_makes_its_logits_in_pieces(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGITS_PER_PIECE", {"cpu": 5 * VOCABULARY})
    model, tokens = build(name), batch(2, 13)
    seen: list[int] = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda _, __, output: seen.append(output.numel()))
    engine = Likelihood(model)
    seen.clear()
    result = engine.token_losses(tokens)
    assert max(seen) == 5 * VOCABULARY
    assert sum(seen) == 2 * 12 * VOCABULARY
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(result.losses[result.scored].mean(), own)


@pytest.mark.parametrize("kind", ["itself", "none", "embeds", "tokens"])
def test_a_model_that_cannot_be_split_is_scored_through_its_whole_forward(kind: str) -> None:
    model = Wrapper(kind)
    tokens = torch.tensor([[3, 5, 1, 2]])
    expected = nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
    result = token_losses(model, tokens)
    torch.testing.assert_close(result.losses[result.scored].mean(), expected)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_loss(name: str, side: str) -> None:
    model, tokens = build(name), batch(1, 9)
    alone = token_losses(model, tokens)
    pad = torch.full((1, 4), 5)
    parts = (pad, tokens) if side == "left" else (tokens, pad)
    kept = (torch.zeros_like(pad), torch.ones_like(tokens))
    mask = torch.cat(kept if side == "left" else kept[::-1], dim=1)
    padded = token_losses(model, torch.cat(parts, dim=1), attention_mask=mask)
    assert int(padded.scored.sum()) == 8
    torch.testing.assert_close(
        padded.losses[padded.scored], alone.losses[alone.scored], atol=1e-5, rtol=1e-5
    )


def test_free_pads_do_not_make_a_perplexity_of_one() -> None:
    # A model that is sure of the pad and knows nothing else: counted over the padded row, 92 % of
    # the targets are free and its perplexity looks like 1.2; over the text it is 10.
    pad, length, real = 9, 100, 8
    table = torch.zeros(10, 10)
    table[pad, pad] = 50.0
    tokens = torch.full((1, length), pad)
    tokens[0, :real] = torch.arange(real)
    mask = (torch.arange(length) < real).long()[None]
    model = TableModel(table)
    careless = token_losses(model, tokens)
    assert math.exp(float(careless.losses[careless.scored].mean())) < 1.3
    for careful in (
        token_losses(model, tokens, attention_mask=mask),
        token_losses(model, tokens, labels=tokens.masked_fill(mask == 0, -100)),
    ):
        assert int(careful.scored.sum()) == real - 1
        assert math.exp(float(careful.losses[careful.scored].mean())) == pytest.approx(10.0)


def test_a_row_without_any_target_scores_nothing() -> None:
    tokens = torch.tensor([[1, 2, 3]])
    result = token_losses(uniform(5), tokens, labels=torch.full_like(tokens, -100))
    assert not result.scored.any()
    assert float(result.losses.sum()) == 0.0


def test_packed_documents_keep_their_own_positions() -> None:
    model, tokens = build("gpt2"), batch(1, 6)
    shifted = torch.arange(6)[None] + 10
    with torch.no_grad():
        own = model(input_ids=tokens, position_ids=shifted, labels=tokens).loss
    result = token_losses(model, tokens, position_ids=shifted)
    torch.testing.assert_close(result.losses[result.scored].mean(), own)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_packed_documents_score_as_they_do_alone(name: str) -> None:
    model, first, second = build(name), batch(1, 7, seed=1), batch(1, 5, seed=2)
    labels = torch.cat([first, second], dim=1)
    labels[0, 7] = -100
    packed = token_losses(
        model,
        torch.cat([first, second], dim=1),
        labels=labels,
        position_ids=torch.cat([torch.arange(7), torch.arange(5)])[None],
    )
    alone = [token_losses(model, document) for document in (first, second)]
    expected = torch.cat([result.losses[result.scored] for result in alone])
    torch.testing.assert_close(packed.losses[packed.scored], expected, atol=1e-5, rtol=1e-5)


def test_text_that_ends_like_padding_is_read_without_complaint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gpt2")
    model.config.pad_token_id = model.config.eos_token_id
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    token_losses(model, torch.tensor([[5, 6, model.config.eos_token_id]]))
    assert not caplog.records


def test_a_peft_adapter_counts_and_can_be_switched_off() -> None:
    tokens = batch(2, 11)
    frozen = token_losses(build("gpt2"), tokens).losses
    model = get_peft_model(
        build("gpt2"),
        LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False),
    )
    with torch.no_grad():
        own = model.eval()(input_ids=tokens, labels=tokens).loss
    engine = Likelihood(model)
    adapted = engine.token_losses(tokens)
    torch.testing.assert_close(adapted.losses[adapted.scored].mean(), own)
    assert not torch.allclose(adapted.losses, frozen)
    with model.disable_adapter():
        torch.testing.assert_close(engine.token_losses(tokens).losses, frozen)


def test_an_adapter_on_the_head_is_part_of_the_head() -> None:
    tokens = batch(2, 11)
    config = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    model = get_peft_model(build("llama"), config).eval()
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    result = token_losses(model, tokens)
    torch.testing.assert_close(result.losses[result.scored].mean(), own)


def test_prompt_learning_is_refused() -> None:
    config = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    with pytest.raises(UnsupportedModelError, match="virtual tokens"):
        Likelihood(get_peft_model(build("gpt2"), config))


def test_bfloat16_losses_are_summed_in_float32() -> None:
    model, tokens = build("llama"), batch(2, 33)
    exact = token_losses(model, tokens)
    rough = token_losses(model.to(torch.bfloat16), tokens)
    assert rough.losses.dtype == torch.float32
    assert len(rough.losses[rough.scored].unique()) > 60
    error = (rough.losses - exact.losses).abs().mean()
    assert float(error) < 0.1


def test_modes_of_single_modules_survive_evaluation() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Dropout())
    model[0].eval()
    with evaluating(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == [True, False, True]


def test_dropout_is_off_while_scoring() -> None:
    model = build("gpt2").train()
    tokens = batch(1, 12)
    first, second = token_losses(model, tokens).losses, token_losses(model, tokens).losses
    assert torch.equal(first, second)
    assert model.training


def test_scoring_leaves_the_live_model_as_it_was() -> None:
    model = build("opt")
    before = {name: id(part) for name, part in model.named_modules()}
    token_losses(model, batch(1, 5))
    assert {name: id(part) for name, part in model.named_modules()} == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_longer_text_than_the_model_has_positions_for_is_refused() -> None:
    with pytest.raises(SpecError, match=r"context, 64; got 65"):
        require_context(build("gpt2"), 65)
    require_context(build("gpt2"), 64)
    require_context(uniform(4), 10**6)
