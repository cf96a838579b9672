"""How coordinates are best divided between A and B: three statements, judged together."""

from hylorada.studies.allocation.gates import LearnedGates
from hylorada.studies.allocation.hypotheses import SMALLEST_SHARE, SMALLEST_SLOPE, hypotheses

__all__ = ["SMALLEST_SHARE", "SMALLEST_SLOPE", "LearnedGates", "hypotheses"]
