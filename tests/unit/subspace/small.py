"""Small models with a SubLoRA adapter, and a stack of blocks that is no language model."""

from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn

from hylorada.seeds import generator
from hylorada.subspace.config import SubLoRAConfig
from hylorada.subspace.core import Subspace
from tests.families import build

DIM = 60
MODES = ("uniform", "fixed", "learned")


def settings(**changes: Any) -> SubLoRAConfig:
    """Return a configuration of 60 coordinates."""
    small: dict[str, Any] = {"intrinsic_dim": DIM, "lora_alpha": 8.0, "task_type": "CAUSAL_LM"}
    return SubLoRAConfig(**small | changes)


def adapt(family: str = "gpt2", *, moved: bool = True, **changes: Any) -> PeftModel:
    """Return a small model in eval mode with a SubLoRA adapter that visibly acts."""
    model = get_peft_model(build(family), settings(**changes)).eval()
    return move(model) if moved else model


def move(model: PeftModel, adapter: str = "default", seed: int = 0) -> PeftModel:
    """Give an adapter's vector and gates random values and return the model."""
    draws = generator(seed, "move")
    with torch.no_grad():
        for parameter in space(model, adapter).parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws))
    return model


def space(model: PeftModel, adapter: str = "default") -> Subspace:
    """Return the subspace of an adapter."""
    found = model.base_model.subspace(adapter)
    assert isinstance(found, Subspace)
    return found


class Block(nn.Module):
    """A residual block with low-rank factors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        draws = generator(0, "block")
        self.lora_A = nn.Parameter(torch.randn(2, width, generator=draws))
        self.lora_B = nn.Parameter(torch.zeros(width, 2))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(x @ self.lora_A.t()) @ self.lora_B.t()


class Stack(nn.Module):
    """Blocks in a list, and factors outside of it."""

    def __init__(self, width: int = 6, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = Block(width)
        self.frozen = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.frozen
