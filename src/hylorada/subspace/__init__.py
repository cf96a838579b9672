"""Adapters in a random subspace."""

# First of all: importing PEFT registers our methods, and for that no module here may be half-read.
import peft as peft

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
