"""The designs a configuration can name: what module each builds and where it acts."""

from typing import Protocol, runtime_checkable

from torch import nn

from hylorada.adapters.controls import CONTROLS, Bias, LowRank, NormGain, Static
from hylorada.adapters.landmarks import (
    LandmarkBank,
    LearnableBucketLandmark,
    OriginalLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    SharedLandmark,
)
from hylorada.errors import SpecError

LANDMARKS = ("position_adaptive", "learnable", "original", "per_layer", "shared")
DESIGNS = (*LANDMARKS, *CONTROLS)
AFTER_EVERY_BLOCK = frozenset({"per_layer", "shared"})
READS_THE_PAST = frozenset({"original", "per_layer"})


@runtime_checkable
class LandmarkSettings(Protocol):
    """The fields of a configuration that describe a landmark design."""

    landmark_design: str
    num_landmarks: int
    num_position_buckets: int
    bucket_spacing: str
    max_positions: int | None
    bucket_temperature: float
    bucket_temperature_unit: str
    landmark_scale: float
    landmark_dropout: float


def build_landmarks(settings: LandmarkSettings, hidden_size: int, layers: int) -> nn.Module:
    """Return the module of the design that the settings name, for a model of this size."""
    assert settings.max_positions is not None, "max_positions is resolved before modules are built"
    landmarks, scale = settings.num_landmarks, settings.landmark_scale
    buckets, positions = settings.num_position_buckets, settings.max_positions
    spacing, dropout = settings.bucket_spacing, settings.landmark_dropout
    match design := settings.landmark_design:
        case "position_adaptive":
            return PositionAdaptiveLandmark(
                hidden_size, landmarks, buckets, positions, spacing, scale, dropout
            )
        case "learnable":
            temperature, unit = settings.bucket_temperature, settings.bucket_temperature_unit
            return LearnableBucketLandmark(
                hidden_size, landmarks, buckets, positions, temperature, unit, scale, dropout
            )
        case "original":
            return OriginalLandmark(hidden_size, landmarks, scale, dropout)
        case "per_layer":  # half the landmarks at half the scale: one bank per block adds up
            return PerLayerLandmark(layers, hidden_size, landmarks // 2, scale / 2, dropout)
        case "shared":
            return SharedLandmark(
                layers, hidden_size, landmarks, buckets, positions, spacing, scale, dropout
            )
        case "bias":
            return Bias(hidden_size)
        case "static":
            return Static(hidden_size, scale)
        case "low_rank":
            return LowRank(hidden_size, rank=landmarks)
        case "norm_gain":
            return NormGain(hidden_size)
    raise SpecError(f"landmark_design must be one of {', '.join(DESIGNS)}; got {design!r}")


def count_landmark_params(model: nn.Module) -> int:
    """Return how many numbers the landmark modules (or controls) inside `model` hold."""
    kinds: tuple[type[nn.Module], ...] = (LandmarkBank, *CONTROLS.values())
    counted = [module for module in model.modules() if isinstance(module, kinds)]
    return sum(parameter.numel() for module in counted for parameter in module.parameters())
