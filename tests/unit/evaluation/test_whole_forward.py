"""A model that cannot be split into decoder and head is scored all the same."""

from types import SimpleNamespace

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hylorada.evaluation.likelihood import Likelihood, token_losses


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)

    def forward(self, input_ids: Int[Tensor, "batch time"]) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


class Wrapper(nn.Module):
    """A causal model whose logits depend on the length, or that asks its decoder for more."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind = Body(), kind
        self.lm_head = nn.Linear(4, 6)

    def get_decoder(self) -> nn.Module | None:
        return {"itself": self, "none": None}.get(self.kind, self.body)

    def forward(self, input_ids: Int[Tensor, "batch time"]) -> SimpleNamespace:
        states: Float[Tensor, "batch time dim"] = self.body(input_ids=input_ids).last_hidden_state
        if self.kind == "embeds":
            states = states + self.body.embedding(input_ids)
        if self.kind == "tokens":
            states = states * (1 + input_ids[..., None])
        return SimpleNamespace(logits=self.lm_head(states))


@pytest.mark.parametrize("kind", ["itself", "none", "embeds", "tokens"])
def test_a_model_that_cannot_be_split_is_scored_through_its_whole_forward(kind: str) -> None:
    model = Wrapper(kind)
    tokens = torch.tensor([[3, 5, 1, 2]])
    expected = nn.functional.cross_entropy(model(tokens).logits[0, :-1], tokens[0, 1:])
    assert not Likelihood(model).in_pieces
    result = token_losses(model, tokens)
    torch.testing.assert_close(result.losses[result.scored].mean(), expected)
