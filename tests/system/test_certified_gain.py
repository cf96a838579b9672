"""The benchmark that certifies gains runs from text to figure, and goes on where it stopped."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = "{first} comes before {second}, and that is all."
SMALL = shlex.split(
    "--model tiny --base-name tiny --compile none --dtype float32 --targets c_attn --rates 0.1 0.3 "
    "--document-dim 20 --token-dim 30 --tokens 2000 --batch-tokens 200 --price-documents 40 "
    "--curve-dims 10 --curve-tokens 400 --curve-documents 40 --gpt2-shape gpt2-micro "
    "--gpt2-dim 20 --gpt2-tokens 400 --gpt2-documents 40 --speed 4 140"
)


def run(folder: Path, *more: str) -> str:
    script = ROOT / "benchmarks" / "certified_gain.py"
    places = ["--data", "text", "--out", "out", "--work", "work"]
    done = subprocess.run(
        [sys.executable, str(script), *SMALL, *places, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"HYLORADA_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gain")
    (folder / "text").mkdir()
    for split, first, count in (("train", 100, 120), ("test", 101, 20)):
        lines = (LINE.format(first=n, second=n + 1) for n in range(first, first + 2 * count, 2))
        rows = (json.dumps({"text": line}) for line in lines)
        (folder / "text" / f"{split}.jsonl").write_text("\n".join(rows))
    run(folder)
    return folder


def test_every_stage_leaves_its_numbers(place: Path) -> None:
    result = json.loads((place / "out" / "certificates.json").read_text())
    assert [entry["stage"] for entry in result["files"]] == ["document", "token"]
    assert {point["way"] for point in result["points"]} >= {"trained on", "uniform, 11 levels"}
    assert all(point["kind"] == "projected from 40 documents" for point in result["points"])
    assert result["speed"]["identical"]
    assert {"published", "gpt2"} <= result.keys()
    assert (place / "out" / "certificates.svg").is_file()


def test_certificates_name_the_model_and_pay_for_the_dimensions_compared(place: Path) -> None:
    for level in ("document", "token"):
        certificate = json.loads((place / "out" / f"token.{level}.json").read_text())
        assert certificate["level"] == level
        assert certificate["model"]["base"] == "tiny"
        assert certificate["ledger"]["choices"][0]["options"] == 3
        assert certificate["statements"][0]["measured"] > 0


def test_a_second_call_makes_only_the_figure(place: Path) -> None:
    told = run(place)
    assert [line.split("] ")[1] for line in told.splitlines()] == ["figure begins", "done"]
