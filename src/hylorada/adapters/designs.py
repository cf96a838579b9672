"""The designs a configuration can name: what module each builds and where it acts."""

from torch import nn

from hylorada.adapters.config import DESIGNS, HyLoRADAConfig
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

AFTER_EVERY_BLOCK = frozenset({"per_layer", "shared"})
READS_THE_PAST = frozenset({"original", "per_layer"})


def build_landmarks(config: HyLoRADAConfig, hidden_size: int, layers: int) -> nn.Module:
    """Return the module of the design that a configuration names, for a model of this size."""
    assert config.max_positions is not None, "max_positions is resolved before modules are built"
    landmarks, scale = config.num_landmarks, config.landmark_scale
    buckets, positions = config.num_position_buckets, config.max_positions
    spacing, dropout = config.bucket_spacing, config.landmark_dropout
    match design := config.landmark_design:
        case "position_adaptive":
            return PositionAdaptiveLandmark(
                hidden_size, landmarks, buckets, positions, spacing, scale, dropout
            )
        case "learnable":
            temperature, unit = config.bucket_temperature, config.bucket_temperature_unit
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
