"""Adapters in a random subspace."""

from hylorada.subspace.config import SubLoRAConfig
from hylorada.subspace.intrinsic import IDModule, StructuredIDModule, create_intrinsic_model
from hylorada.subspace.model import SubLoRAModel

__all__ = [
    "IDModule",
    "StructuredIDModule",
    "SubLoRAConfig",
    "SubLoRAModel",
    "create_intrinsic_model",
]
