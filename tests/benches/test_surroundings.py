"""What is said of the machine beside its times."""

import os
import platform
from pathlib import Path

import pytest

from hylorada_benches.surroundings import machine


def test_the_processor_is_called_as_it_calls_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor\t: 0\nmodel name\t: A fast one @ 3 GHz\n\nmodel name\t: A fast one @ 3 GHz\n"
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "read_text", lambda self: told)
    assert machine() == {"processor": "A fast one @ 3 GHz", "cores": os.cpu_count()}


def test_where_nobody_tells_its_name_the_kind_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert machine()["processor"] == "arm64"
