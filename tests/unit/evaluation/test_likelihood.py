import logging
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, TaskType, get_peft_model
from torch import nn

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.evaluation import likelihood as module
from hylorada.evaluation.likelihood import Likelihood, Row, require_context, score_rows
from hylorada.models.anatomy import evaluating
from tests.unit.evaluation.models import (
    ARCHITECTURES,
    VOCABULARY,
    TableModel,
    build,
    random_tokens,
    uniform,
)
from tests.unsplittable import Wrapper


def losses_of(scorer: nn.Module | Likelihood, tokens: torch.Tensor) -> torch.Tensor:
    """Return the loss of every token but the first of its row."""
    likelihood = scorer if isinstance(scorer, Likelihood) else Likelihood(scorer)
    scores = score_rows(likelihood, [Row(row.numpy(), 1) for row in tokens])
    return torch.from_numpy(np.stack([score.losses for score in scores]))


def batch(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.tensor(random_tokens(rows * length, seed=seed)).view(rows, length)


def test_uniform_model_loses_ln_v_at_every_target() -> None:
    losses = losses_of(uniform(7), torch.tensor([[1, 2, 3], [4, 5, 6]]))
    torch.testing.assert_close(losses, torch.full((2, 2), math.log(7)))


def test_losses_have_hand_computed_values() -> None:
    table = torch.tensor([[0.0, math.log(3.0)], [math.log(9.0), 0.0]])
    losses = losses_of(TableModel(table), torch.tensor([[0, 1, 1, 0]]))
    # After 0, token 1 has 3/4; after 1, token 1 has 1/10 and token 0 has 9/10.
    expected = [-math.log(0.75), -math.log(0.1), -math.log(0.9)]
    torch.testing.assert_close(losses, torch.tensor([expected]))


def test_hits_are_the_targets_that_the_model_would_have_chosen() -> None:
    engine = Likelihood(TableModel(torch.tensor([[0.0, 1.0], [1.0, 0.0]])))
    _, hits = engine.target_losses(torch.tensor([[0, 1, 1, 0]]), torch.tensor([1, 2, 3]), hits=True)
    assert hits is not None
    assert hits.tolist() == [True, False, True]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_mean_loss_is_the_models_own_loss(name: str) -> None:
    model, tokens = build(name), batch(3, 17)
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(losses_of(model, tokens).mean(), own)


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
    losses = losses_of(engine, tokens)
    assert max(seen) == 5 * VOCABULARY
    assert sum(seen) == 2 * 12 * VOCABULARY
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(losses.mean(), own)


@pytest.mark.parametrize("kind", ["itself", "none", "embeds", "tokens"])
def test_a_model_that_cannot_be_split_is_scored_through_its_whole_forward(kind: str) -> None:
    model = Wrapper(kind)
    tokens = torch.tensor([[3, 5, 1, 2]])
    expected = nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
    torch.testing.assert_close(losses_of(model, tokens).mean(), expected)


def test_free_pads_do_not_make_a_perplexity_of_one() -> None:
    # A model that is sure of the token a short row is filled up with and knows nothing else:
    # counted over the padded row its perplexity would look like 1.2; over the text it is 10.
    last, length, real = 9, 100, 8
    table = torch.zeros(10, 10)
    table[last, last] = 50.0
    short, long = np.arange(2, 2 + real), np.zeros(length, dtype=np.int64)
    scores = score_rows(Likelihood(TableModel(table)), [Row(long, 1), Row(short, 1)])
    assert scores[1].losses.size == real - 1
    assert math.exp(float(scores[1].losses.mean())) == pytest.approx(10.0)


def test_text_that_ends_like_padding_is_read_without_complaint(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("gpt2")
    model.config.pad_token_id = model.config.eos_token_id
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    losses_of(model, torch.tensor([[5, 6, model.config.eos_token_id]]))
    assert not caplog.records


def test_a_peft_adapter_counts_and_can_be_switched_off() -> None:
    tokens = batch(2, 11)
    frozen = losses_of(build("gpt2"), tokens)
    model = get_peft_model(
        build("gpt2"),
        LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False),
    )
    with torch.no_grad():
        own = model.eval()(input_ids=tokens, labels=tokens).loss
    engine = Likelihood(model)
    adapted = losses_of(engine, tokens)
    torch.testing.assert_close(adapted.mean(), own)
    assert not torch.allclose(adapted, frozen)
    with model.disable_adapter():
        torch.testing.assert_close(losses_of(engine, tokens), frozen)


def test_an_adapter_on_the_head_is_part_of_the_head() -> None:
    tokens = batch(2, 11)
    config = LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    model = get_peft_model(build("llama"), config).eval()
    with torch.no_grad():
        own = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(losses_of(model, tokens).mean(), own)


def test_prompt_learning_is_refused() -> None:
    config = PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=2)
    with pytest.raises(UnsupportedModelError, match="virtual tokens"):
        Likelihood(get_peft_model(build("gpt2"), config))


def test_bfloat16_losses_are_summed_in_float32() -> None:
    model, tokens = build("llama"), batch(2, 33)
    exact = losses_of(model, tokens)
    rough = losses_of(model.to(torch.bfloat16), tokens)
    assert rough.dtype == torch.float32
    assert len(rough.unique()) > 60
    error = (rough - exact).abs().mean()
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
    first, second = losses_of(model, tokens), losses_of(model, tokens)
    assert torch.equal(first, second)
    assert model.training


def test_scoring_leaves_the_live_model_as_it_was() -> None:
    model = build("opt")
    before = {name: id(part) for name, part in model.named_modules()}
    losses_of(model, batch(1, 5))
    assert {name: id(part) for name, part in model.named_modules()} == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_longer_text_than_the_model_has_positions_for_is_refused() -> None:
    with pytest.raises(SpecError, match=r"context, 64; got 65"):
        require_context(build("gpt2"), 65)
    require_context(build("gpt2"), 64)
    require_context(uniform(4), 10**6)
