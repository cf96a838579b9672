"""A model is split into decoder and head only where the two give its own logits."""

import pytest
import torch
from torch import nn

from hylorada.models.anatomy import device_of, split
from tests.unsplittable import Wrapper


def test_a_plain_wrapper_is_split_and_its_logits_are_reproduced() -> None:
    model = Wrapper("plain")
    parts = split(model)
    assert parts is not None
    assert parts.vocabulary == 6
    tokens = torch.tensor([[3, 5, 1]])
    states = parts.decoder(tokens).last_hidden_state[0]
    torch.testing.assert_close(parts.head(states), model(tokens).logits[0])


@pytest.mark.parametrize("kind", ["itself", "none", "embeds", "tokens"])
def test_a_model_that_asks_more_of_its_decoder_than_states_is_not_split(kind: str) -> None:
    assert split(Wrapper(kind)) is None


def test_gradients_reach_the_states_and_the_weights_of_the_head() -> None:
    model = Wrapper("plain")
    parts = split(model)
    assert parts is not None
    states = torch.randn(3, 4, requires_grad=True)
    found = torch.autograd.grad(parts.head(states).square().sum(), [states, model.lm_head.weight])
    whole = torch.autograd.grad(
        model.lm_head(states).square().sum(), [states, model.lm_head.weight]
    )
    torch.testing.assert_close(found, whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_model_of_any_precision_is_split_in_the_mode_it_is_in(dtype: torch.dtype) -> None:
    model = Wrapper("plain").to(dtype).train()
    model.lm_head.eval()
    assert split(model) is not None
    assert model.training
    assert not model.lm_head.training


def test_dropout_does_not_make_a_model_look_unsplittable() -> None:
    model = Wrapper("plain").train()
    model.body.embedding = nn.Sequential(model.body.embedding, nn.Dropout(0.5))
    assert split(model) is not None


def test_a_half_precision_head_that_is_wrong_is_found_out() -> None:
    assert split(Wrapper("tokens").bfloat16()) is None


def test_a_decoder_without_hidden_states_cannot_be_split() -> None:
    model = Wrapper("plain")
    model.body.forward = lambda input_ids: {"states": input_ids}
    assert split(model) is None


def test_a_model_without_parameters_lives_on_the_cpu() -> None:
    assert device_of(nn.Identity()) == torch.device("cpu")
