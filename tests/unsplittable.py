"""Causal models that can be split into a decoder and a head, or cannot."""

from types import SimpleNamespace

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput


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
