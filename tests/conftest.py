"""Shapes written in signatures are checked while the tests run."""

import os

import jaxtyping
import pytest
from jaxtyping import install_import_hook

import tests.typechecking

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Must run before the first import of the package; the hook finds the checker by its name.
install_import_hook("hylorada", f"{tests.typechecking.__name__}.checked")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave types and shapes to the library, as they are outside the tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
