"""Landmark modules: sizes, formulas against float64, and boundaries that learn."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hylorada import (
    LandmarkLoRA,
    LearnableBucketLandmark,
    OriginalLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    SharedLandmark,
    SpecError,
    count_landmark_params,
)
from hylorada.adapters.designs import DESIGNS
from hylorada.seeds import generator
from tests.families import perturb, seeded, settings
from tests.reference import landmarks as reference


def hidden(batch: int = 2, time: int = 7, dim: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(batch, time, dim, generator=generator(seed, "hidden states"))


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (LandmarkLoRA(768, 8, 32), 12_545),
        (LearnableBucketLandmark(768, 8, 32), 12_576),
        (LandmarkLoRA(768, 4, 32), 6_273),
        (LearnableBucketLandmark(768, 4, 32), 6_304),
        (OriginalLandmark(768, 8), 12_289),
        (OriginalLandmark(768, 4), 6_145),
        (PerLayerLandmark(12, 768, 4), 73_740),
        (PerLayerLandmark(12, 768, 2), 36_876),
        (SharedLandmark(12, 768, 8, 32), 12_556),
    ],
)
def test_a_module_has_its_documented_size(module: nn.Module, size: int) -> None:
    assert sum(parameter.numel() for parameter in module.parameters()) == size
    assert count_landmark_params(module) == size


@pytest.mark.parametrize(
    ("design", "size"),
    [
        ("position_adaptive", 12_545),
        ("learnable", 12_576),
        ("original", 12_289),
        ("per_layer", 73_740),
        ("shared", 12_556),
        ("bias", 768),
        ("static", 769),
        ("low_rank", 12_288),
        ("norm_gain", 768),
    ],
)
def test_a_design_builds_a_module_of_its_documented_size(design: str, size: int) -> None:
    config = settings(
        landmark_design=design, num_landmarks=8, num_position_buckets=32, max_positions=1024
    )
    module = DESIGNS[design].build(config, 768, 12)
    assert count_landmark_params(nn.ModuleDict({"inside": module})) == size


def test_the_published_name_is_the_position_adaptive_module() -> None:
    assert LandmarkLoRA is PositionAdaptiveLandmark
    module = LandmarkLoRA(hidden_size=768, num_landmarks=8, num_buckets=32)
    assert module(hidden(dim=768)).shape == (2, 7, 768)


def test_a_short_context_has_fewer_buckets() -> None:
    assert LandmarkLoRA(5, 2, 32, max_positions=6).position_gate.shape == (6, 2)


def test_position_adaptive_is_its_formula() -> None:
    module = perturb(LandmarkLoRA(5, 3, 4, 16))
    states = hidden()
    positions = torch.tensor([[0, 1, 2, 3, 9, 14, 99], [3, 4, 5, 0, 1, 2, 3]])
    expected = reference.position_adaptive(module, states, positions)
    torch.testing.assert_close(module(states, positions).double(), expected, atol=1e-6, rtol=1e-6)


def test_positions_default_to_one_document() -> None:
    module = perturb(LandmarkLoRA(5, 3, 4, 16))
    states = hidden()
    assert torch.equal(module(states), module(states, torch.arange(7)[None]))


def test_learnable_buckets_are_their_formula() -> None:
    module = perturb(LearnableBucketLandmark(5, 3, 4, 16, temperature=0.07))
    states = hidden()
    positions = torch.tensor([[0, 1, 2, 3, 9, 14, 99], [3, 4, 5, 0, 1, 2, 3]])
    expected = reference.learnable(module, states, positions)
    torch.testing.assert_close(module(states, positions).double(), expected, atol=1e-6, rtol=1e-6)


def test_the_original_design_is_its_formula() -> None:
    module = perturb(OriginalLandmark(5, 3))
    states = hidden()
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 0, 1, 2]])
    expected = reference.original(module, states, positions)
    torch.testing.assert_close(module(states, positions).double(), expected, atol=1e-6, rtol=1e-6)


def test_per_layer_applies_the_bank_of_its_block() -> None:
    module = perturb(PerLayerLandmark(3, 5, 2))
    states, positions = hidden(), torch.arange(7)[None]
    for site in range(3):
        bank = module[site]
        assert isinstance(bank, OriginalLandmark)
        expected = reference.original(bank, states, positions)
        found = module(states, positions, site=site).double()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_shared_applies_the_one_bank_with_the_scale_of_its_block() -> None:
    module = perturb(SharedLandmark(3, 5, 2, 4, 16))
    states, positions = hidden(), torch.arange(7)[None]
    for site in range(3):
        expected = reference.position_adaptive(module, states, positions, module.scale[site])
        found = module(states, positions, site=site).double()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "module", [LandmarkLoRA(5, 3), LearnableBucketLandmark(5, 3), OriginalLandmark(5, 3)]
)
def test_scale_zero_is_the_identity(module: nn.Module) -> None:
    with torch.no_grad():
        module.get_parameter("scale").zero_()
    assert torch.equal(module(hidden()), hidden())


def test_low_precision_states_keep_their_dtype() -> None:
    states = hidden().bfloat16()
    for module in (LandmarkLoRA(5, 3), LearnableBucketLandmark(5, 3), OriginalLandmark(5, 3)):
        assert module(states).dtype == torch.bfloat16


def test_dropout_keeps_the_expected_mixture() -> None:
    module = LandmarkLoRA(3, 2, 2, 4, dropout=0.5, scale=1.0)
    with torch.no_grad():
        module.landmarks.fill_(1.0)
    states = torch.zeros(400, 4, 3)
    with seeded(0):
        assert module(states).mean().item() == pytest.approx(1.0, abs=0.06)
    module.eval()
    torch.testing.assert_close(module(states), torch.ones(400, 4, 3))


def test_uniform_boundaries_come_first() -> None:
    module = LearnableBucketLandmark(5, 2, 4, max_positions=100)
    torch.testing.assert_close(module.get_learned_boundaries(), torch.tensor([25.0, 50.0, 75.0]))


def test_boundaries_move_and_stay_sorted() -> None:
    with seeded(0):
        module = LearnableBucketLandmark(hidden_size=16, num_landmarks=8, num_buckets=32)
    before = module.get_learned_boundaries().clone()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    states, target = hidden(2, 64, 16), hidden(2, 64, 16, seed=1)
    for _ in range(10):
        optimizer.zero_grad()
        (module(states, torch.arange(64)[None] * 16) - target).square().mean().backward()
        optimizer.step()
    after = module.get_learned_boundaries()
    assert (after - before).abs().max() > 1.0
    assert after.diff().min() > 0
    assert after[0] > 0
    assert after[-1] < 1024


@given(
    buckets=st.integers(2, 40),
    spread=st.floats(0.0, 4.0),
    temperature=st.floats(1e-3, 2.0),
    seed=st.integers(0, 1000),
)
def test_soft_buckets_are_shares(
    buckets: int, spread: float, temperature: float, seed: int
) -> None:
    module = LearnableBucketLandmark(3, 2, buckets, 64, temperature)
    noise = torch.randn(buckets - 1, generator=generator(seed, "boundaries"))
    with torch.no_grad():
        module.boundaries.copy_(noise * spread)
    shares = module.bucket_weights(torch.arange(70)[None])
    assert shares.min() >= 0
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(1, 70))
    assert module.relative_boundaries().diff().min() >= 0 if buckets > 2 else True


def test_a_temperature_may_be_given_in_bucket_widths() -> None:
    by_context = LearnableBucketLandmark(3, 2, 8, 64, temperature=0.125)
    by_bucket = LearnableBucketLandmark(3, 2, 8, 64, temperature=1.0, unit="bucket")
    positions = torch.arange(64)[None]
    assert torch.equal(by_context.bucket_weights(positions), by_bucket.bucket_weights(positions))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LandmarkLoRA(0), "hidden_size must be at least 1; got 0"),
        (lambda: LandmarkLoRA(4, 1), "num_landmarks must be at least 2; got 1"),
        (lambda: LandmarkLoRA(4, dropout=1.0), r"dropout must be in \[0, 1\); got 1.0"),
        (lambda: LandmarkLoRA(4, num_buckets=0), "at least 1; got 0"),
        (lambda: LandmarkLoRA(4, bucket_spacing="cubic"), "'cubic'"),
        (lambda: LandmarkLoRA(4, max_positions=0), "max_positions must be at least 1"),
        (lambda: LearnableBucketLandmark(4, num_buckets=1), "at least 2 buckets"),
        (lambda: LearnableBucketLandmark(4, max_positions=1), "2 positions.*max_positions=1"),
        (lambda: LearnableBucketLandmark(4, temperature=0.0), r"must be positive.*; got 0.0"),
        (lambda: LearnableBucketLandmark(4, unit="token"), "context, bucket; got 'token'"),
        (lambda: OriginalLandmark(4, 1), "at least 2; got 1"),
        (lambda: PerLayerLandmark(2, 4, 1), "at least 2; got 1"),
        (lambda: PerLayerLandmark(0, 4), "layers must be at least 1; got 0"),
        (lambda: SharedLandmark(0, 4), "layers must be at least 1; got 0"),
        (lambda: LandmarkLoRA(4, scales=0), "scales must be at least 1; got 0"),
        (lambda: LandmarkLoRA(4, scale=float("nan")), "scale must be a number; got nan"),
        (lambda: LandmarkLoRA(4, scale=float("inf")), "scale must be finite .*; got inf"),
        (lambda: PerLayerLandmark(2, 4, scale=-0.1), "scale must be .* not negative; got -0.1"),
    ],
)
def test_a_setting_that_could_not_train_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(SpecError, match=message):
        build()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", [2.5, 8.0, True, "8", None])
@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (LandmarkLoRA, ["hidden_size", "num_landmarks", "num_buckets", "max_positions"]),
        (LearnableBucketLandmark, ["hidden_size", "num_landmarks", "num_buckets", "max_positions"]),
        (OriginalLandmark, ["hidden_size", "num_landmarks"]),
        (PerLayerLandmark, ["layers", "hidden_size", "num_landmarks"]),
        (SharedLandmark, ["layers", "hidden_size", "num_landmarks"]),
    ],
)
def test_a_size_that_is_no_whole_number_is_refused(
    module: Any, sizes: list[str], value: object
) -> None:
    whole: dict[str, Any] = dict.fromkeys(["hidden_size", *sizes], 4)
    for size in sizes:
        with pytest.raises(SpecError, match="must be a whole number of at least 1; got"):
            module(**whole | {size: value})


@pytest.mark.usefixtures("unchecked")
def test_sizes_of_numpy_are_sizes() -> None:
    module: Any = LearnableBucketLandmark
    assert module(np.int64(5), np.int64(2), np.int64(4), np.int32(8))(hidden()).shape == (2, 7, 5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 2, 3, 5)], ids=str)
@pytest.mark.parametrize(
    "module",
    [
        LandmarkLoRA(5),
        LearnableBucketLandmark(5),
        OriginalLandmark(5),
        PerLayerLandmark(2, 5),
        SharedLandmark(2, 5),
    ],
    ids=lambda module: type(module).__name__,
)
def test_states_that_are_no_batch_of_tokens_are_refused(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    with pytest.raises(SpecError, match=r"must be \(batch, time, dim\); got") as refusal:
        module(torch.zeros(shape))
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("module", [PerLayerLandmark(2, 5), SharedLandmark(2, 5)])
def test_the_first_block_is_the_default(module: nn.Module) -> None:
    assert torch.equal(module(hidden()), module(hidden(), site=0))
