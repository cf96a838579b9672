"""A package that hylorada does not know adds a design, a metric and a study to its commands."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT
from tests.small_run import small_arguments

SIZES = (
    *("--max_length", "24", "--num_train", "8", "--num_val", "2", "--num_test", "6"),
    *("--num_landmarks", "2", "--batch_size", "4", "--evidence_items", "1", "--seeds", "1"),
    *("--workers", "0", "--cpu"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the plugin is installed, with a model and a text."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "examples" / "plugin", folder / "source")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    install = ("install", *offline, "--target", str(folder / "installed"), str(folder / "source"))
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    small_arguments(folder)
    return folder


def hylorada(place: Path, *words: str | Path) -> str:
    """Return what a command prints, in a process of its own that finds the plugin."""
    more = {"PYTHONPATH": str(place / "installed"), "HYLORADA_CACHE": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "hylorada", *map(str, words)],
        cwd=place,
        env=os.environ | more,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("what", "name"), [("designs", "halves"), ("metrics", "hard_share"), ("studies", "halves")]
)
def test_what_a_plugin_brings_is_listed_with_its_package(place: Path, what: str, name: str) -> None:
    *_, last = hylorada(place, "list", what).splitlines()
    assert last.startswith(f"{name} ")
    assert last.endswith("(from hylorada-halves)")


def test_a_foreign_design_is_trained_and_measured_with_a_foreign_metric(place: Path) -> None:
    design = ("--adapter.landmark_design=halves", "--adapter.num_landmarks=2")
    words = (*small_arguments(place), *design, "--training.steps=3", "--out=run")
    assert "3 steps" in hylorada(place, "train", *words)
    config = json.loads((place / "run/adapter/adapter_config.json").read_text())
    assert config["landmark_design"] == "halves"
    sizes = ("--max_length", "24", "--max_tokens", "240", "--device", "cpu")
    metrics = ("--data", "text", "--metrics", "ppl", "hard_share", "--json", "-")
    found = json.loads(hylorada(place, "evaluate", "run", *metrics, *sizes))["metrics"]
    assert 0.0 <= found["hard_share"]["value"] <= 1.0
    assert found["hard_share"]["unit"] == "share of tokens"
    assert found["ppl"]["value"] > 1.0


def test_a_foreign_study_is_carried_out_and_reported(place: Path) -> None:
    sources = ("--model", "model", "--data", "text", "--out", "study")
    shown = hylorada(place, "compare", "halves", *sources, *SIZES)
    assert "Is the half of the context all that" in " ".join(shown.split())
    study = json.loads((place / "study" / "study.json").read_text())
    names = [arm["name"] for arm in study["arms"]]
    assert names == ["rsLoRA", "halves", "position_adaptive", "static", "A/A"]
    assert study["arms"][1]["gates"] is not None
    hylorada(place, "report", "study", "--out", "page.html")
    assert "halves" in (place / "page.html").read_text()
