"""Adapted models whose weights accelerate keeps elsewhere compute what they computed before."""

from typing import Any

import pytest
import torch
from accelerate import cpu_offload

from hylorada import UnsupportedModelError
from tests.families import DESIGNS, adapt, build, logits, tokens

CPU = torch.device("cpu")
CASES: list[dict[str, Any]] = [
    {"landmark_enabled": False, "position_bias": False},
    {"landmark_enabled": False},
    {"share_factors": "AB"},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_offloaded_adapter_gives_the_same_logits(family: str, changes: dict[str, Any]) -> None:
    model = adapt(family, **changes)
    before = logits(model, tokens())
    cpu_offload(model, execution_device=CPU)
    assert all(parameter.is_meta for parameter in model.base_model.lora_shared.parameters())
    for _ in range(2):
        assert torch.equal(logits(model, tokens()), before)


@pytest.mark.parametrize("design", DESIGNS)
def test_offloaded_landmarks_act_as_before(design: str) -> None:
    model = adapt("llama", landmark_design=design)
    before = logits(model, tokens())
    cpu_offload(model, execution_device=CPU)
    assert torch.equal(logits(model, tokens()), before)


def test_dora_on_offloaded_weights_is_refused_with_a_repair() -> None:
    model = adapt("llama", use_dora=True)
    cpu_offload(model, execution_device=CPU)
    with pytest.raises(UnsupportedModelError, match="some are offloaded; keep these layers"):
        logits(model, tokens())


def test_an_offloaded_model_is_adapted_first() -> None:
    base = cpu_offload(build("llama"), execution_device=CPU)
    before = logits(base, tokens())
    with pytest.raises(UnsupportedModelError, match="q_proj is offloaded: adapt the model first"):
        adapt("llama", base=base, target_modules=["q_proj"])
    assert torch.equal(logits(base, tokens()), before)
