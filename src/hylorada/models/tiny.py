"""The embedded model: GPT-2's architecture at 3.9 million parameters, for trying and testing."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hylorada.models.pretrained import LoadedModel


def folder() -> Path:
    """Return where the embedded weights, tokenizer and model card lie."""
    return Path(str(files("hylorada"))) / "data" / "tiny"


def load() -> "LoadedModel":
    """Return the embedded model in float32 with its tokenizer; the same as `load("tiny")`."""
    from hylorada.models.pretrained import load as load_source  # it knows this module

    return load_source("tiny")
