"""Adapt causal language models with few trainable numbers, and find out whether each one helped.

What needs PyTorch is imported when it is first used. Both methods are registered with PEFT as soon
as `hylorada` and `peft` are imported, in whichever order.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hylorada.after_import import after_import
from hylorada.errors import CheckpointError, CodecError, SpecError, UnsupportedModelError

if TYPE_CHECKING:
    from hylorada.adapters.config import HyLoRADAConfig
    from hylorada.adapters.designs import count_landmark_params
    from hylorada.adapters.landmarks import (
        LandmarkLoRA,
        LearnableBucketLandmark,
        OriginalLandmark,
        PerLayerLandmark,
        PositionAdaptiveLandmark,
        SharedLandmark,
    )
    from hylorada.adapters.model import HyLoRADAModel, export_lora
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

_HOMES = {
    "HyLoRADAConfig": "adapters.config",
    "HyLoRADAModel": "adapters.model",
    "LandmarkLoRA": "adapters.landmarks",
    "LearnableBucketLandmark": "adapters.landmarks",
    "OriginalLandmark": "adapters.landmarks",
    "PerLayerLandmark": "adapters.landmarks",
    "PositionAdaptiveLandmark": "adapters.landmarks",
    "SharedLandmark": "adapters.landmarks",
    "SubLoRAConfig": "subspace.config",
    "SubLoRAModel": "subspace.model",
    "count_landmark_params": "adapters.designs",
    "export_lora": "adapters.model",
}
_ROOMS = ("adapters", "bounds", "compression", "subspace")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})


if not TYPE_CHECKING:  # a type checker would take it for an answer to every name

    def __getattr__(name: str) -> object:
        if name in _ROOMS:
            return import_module(f"hylorada.{name}")
        if name in _HOMES:
            return getattr(import_module(f"hylorada.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'hylorada' has no attribute {name!r}")


after_import("peft", ["hylorada.adapters.model", "hylorada.subspace.model"])
