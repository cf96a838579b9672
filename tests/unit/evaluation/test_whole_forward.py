"""A model that cannot be split into decoder and head is scored all the same."""

import pytest
import torch
from torch import nn

from hylorada.evaluation.likelihood import Likelihood, token_losses
from tests.unsplittable import Wrapper


@pytest.mark.parametrize("kind", ["itself", "none", "embeds", "tokens"])
def test_a_model_that_cannot_be_split_is_scored_through_its_whole_forward(kind: str) -> None:
    model = Wrapper(kind)
    tokens = torch.tensor([[3, 5, 1, 2]])
    expected = nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
    assert not Likelihood(model).in_pieces
    result = token_losses(model, tokens)
    torch.testing.assert_close(result.losses[result.scored].mean(), expected)
