"""Adapt causal language models with few trainable numbers, and find out whether each one helped."""

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.adapters.designs import count_landmark_params
from hylorada.adapters.export import export_lora
from hylorada.adapters.landmarks import (
    LandmarkLoRA,
    LearnableBucketLandmark,
    OriginalLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    SharedLandmark,
)
from hylorada.adapters.model import HyLoRADAModel
from hylorada.errors import CheckpointError, CodecError, SpecError, UnsupportedModelError
from hylorada.subspace.config import SubLoRAConfig
from hylorada.subspace.model import SubLoRAModel

__all__ = [
    "CheckpointError",
    "CodecError",
    "HyLoRADAConfig",
    "HyLoRADAModel",
    "LandmarkLoRA",
    "LearnableBucketLandmark",
    "OriginalLandmark",
    "PerLayerLandmark",
    "PositionAdaptiveLandmark",
    "SharedLandmark",
    "SpecError",
    "SubLoRAConfig",
    "SubLoRAModel",
    "UnsupportedModelError",
    "count_landmark_params",
    "export_lora",
]
