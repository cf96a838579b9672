"""Looking inside: boundaries in tokens, gates that sum to one, and modules that peek."""

import numpy as np
import pytest
import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from hylorada.adapters.landmarks import (
    LearnableBucketLandmark,
    OriginalLandmark,
    PositionAdaptiveLandmark,
)
from hylorada.evaluation.inspection import (
    first_windows,
    future_leak,
    gates,
    learned_boundaries,
)
from hylorada.text.tokens import TokenStore

TOKENS = torch.arange(40).reshape(2, 20) % 7


class Toy(nn.Module):
    """Embeds, adds landmarks, and reads out; `peeks` lets each token see the next one."""

    def __init__(self, landmarks: nn.Module | None = None, *, peeks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.landmarks = landmarks
        self.peeks = peeks

    def forward(self, input_ids: Int[Tensor, "batch time"]) -> CausalLMOutput:
        hidden = self.embedding(input_ids)
        if self.peeks:
            hidden = hidden + hidden.roll(-1, dims=1)
        if self.landmarks is not None:
            hidden = self.landmarks(hidden)
        return CausalLMOutput(logits=hidden @ self.embedding.weight.T)


def test_boundaries_start_out_uniform() -> None:
    module = LearnableBucketLandmark(4, num_landmarks=2, num_buckets=4, max_positions=20)
    assert learned_boundaries(Toy(module)) == pytest.approx([5.0, 10.0, 15.0])


@pytest.mark.parametrize(
    "module", [None, PositionAdaptiveLandmark(4, 2, 4, 20)], ids=["none", "fixed"]
)
def test_fixed_buckets_have_no_learned_boundaries(module: nn.Module | None) -> None:
    assert learned_boundaries(Toy(module)) is None


def test_without_landmarks_there_are_no_gates() -> None:
    assert gates(Toy(), TOKENS) is None


@pytest.mark.parametrize(
    "module",
    [PositionAdaptiveLandmark(4, 3, 4, 20), OriginalLandmark(4, 3)],
    ids=["position_adaptive", "original"],
)
def test_gates_sum_to_one_in_every_bucket(module: nn.Module) -> None:
    found = gates(Toy(module), TOKENS)
    assert found is not None
    assert np.array(found.weights).shape == (8, 3)
    assert np.array(found.weights).sum(axis=1) == pytest.approx(np.ones(8))
    assert found.columns == ["landmark 1", "landmark 2", "landmark 3"]
    assert (found.rows[0], found.rows[-1]) == ("0–1", "18–19")


def test_gates_follow_the_position_gate() -> None:
    module = PositionAdaptiveLandmark(
        4, 2, num_buckets=2, max_positions=20, bucket_spacing="uniform"
    )
    with torch.no_grad():
        module.content_gate.weight.zero_()
        module.position_gate.copy_(torch.tensor([[9.0, 0.0], [0.0, 9.0]]))
    found = gates(Toy(module), TOKENS)
    assert found is not None
    assert found.weights[0] == pytest.approx([1.0, 0.0], abs=1e-3)
    assert found.weights[-1] == pytest.approx([0.0, 1.0], abs=1e-3)


def test_looking_leaves_no_hook() -> None:
    model = Toy(PositionAdaptiveLandmark(4, 2, 4, 20))
    gates(model, TOKENS)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_module_that_peeks_is_found_out() -> None:
    assert future_leak(Toy(peeks=True), TOKENS[:1]).largest_change > 0.1


def test_a_causal_module_is_not() -> None:
    found = future_leak(Toy(OriginalLandmark(4, 2)), TOKENS[:1])
    assert found.largest_change == 0.0
    assert found.largest_logit > 0.0


def store(tokens: int) -> TokenStore:
    return TokenStore(
        np.arange(tokens, dtype=np.uint16), np.array([0, tokens]), np.array([tokens]), "text"
    )


def test_windows_are_the_first_ones_and_no_more_than_there_are() -> None:
    assert first_windows(store(30), 10, 2).tolist()[1] == list(range(10, 20))
    assert first_windows(store(30), 10, 9).shape == (3, 10)
    assert first_windows(store(6), 10, 9).shape == (1, 6)
