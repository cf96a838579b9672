"""An adapter that has learnt something: trained, compressed, certified, verified elsewhere."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import get_peft_model

from hylorada.bounds import INEQUALITIES
from hylorada.jobs.certify import Reader, certify, text_of
from hylorada.jobs.compress import compress, read_message
from hylorada.models.pretrained import load
from hylorada.specs.evaluation import CertifySpec, CompressionSpec
from hylorada.subspace import SubLoRAConfig

LINE = "{first} comes before {second}, and that is all."


def texts(first: int, count: int) -> list[str]:
    return [LINE.format(first=n, second=n + 1) for n in range(first, first + 2 * count, 2)]


def train(folder: Path) -> None:
    """Save the compressed file of an adapter of 40 coordinates that knows the line."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loaded = load("tiny")
        config = SubLoRAConfig(task_type="CAUSAL_LM", intrinsic_dim=40)
        model = get_peft_model(loaded.model, config)
        optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.3)
        rows = [loaded.tokenizer(text)["input_ids"][:12] for text in texts(200, 8)]
        batch = torch.tensor(rows)
        for _ in range(20):
            loss = model(input_ids=batch, labels=batch).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.save_pretrained(folder / "adapter")
    compress(str(folder / "adapter"), folder / "adapter.hyl", CompressionSpec())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text, trained adapter and certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "text").mkdir()
    for split, first in (("train", 100), ("test", 101)):
        rows = (json.dumps({"text": text}) for text in texts(first, 250))
        (folder / "text" / f"{split}.jsonl").write_text("\n".join(rows))
    train(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(folder / "cache"))
        spec = CertifySpec(progress=False, base="tiny")
        certify(folder / "adapter.hyl", str(folder / "text"), folder / "c.json", spec)
    return folder


def test_a_gain_is_certified_and_held_out_text_confirms_it(place: Path) -> None:
    certified = json.loads((place / "c.json").read_text())
    gain = certified["statements"][0]
    assert gain["name"] == "gain"
    assert 0 < gain["bound"] < gain["measured"]
    assert certified["sentence"].startswith("On unseen documents of this kind the adapted model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(place / "cache"))
        spec = CertifySpec(progress=False, base="tiny", split="test")
        unseen = certify(place / "adapter.hyl", str(place / "text"), place / "test.json", spec)
    assert unseen.statements[0].measured > gain["bound"]
    loss = certified["statements"][2]
    assert loss["name"] == "loss"
    assert unseen.statements[2].measured < loss["bound"]


def test_the_bet_certifies_most_of_what_the_shipped_model_gained(place: Path) -> None:
    file, gains = place / "adapter.hyl", {}
    spec, base = CertifySpec(progress=False, base="tiny"), load("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(place / "cache"))
        store = text_of(str(place / "text"), spec, base)
    reader = Reader(file, read_message(file), base, "", spec)
    with reader.measuring(store) as losses:
        for name in INEQUALITIES:
            reader.spec = replace(spec, inequality=name)
            gain = reader.certificate(losses, store, "text").headline
            assert gain.bound < gain.measured
            gains[name] = gain.bound
    best = gains.pop("betting")
    assert all(gain < best for gain in gains.values())


def test_another_process_confirms_to_the_last_bit(place: Path) -> None:
    job = (
        "import sys; from pathlib import Path; from hylorada.jobs.certify import verify; "
        "print(verify(Path(sys.argv[1]), sys.argv[2], progress=False).sentence)"
    )
    done = subprocess.run(
        [sys.executable, "-c", job, str(place / "c.json"), str(place / "text")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"HYLORADA_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "confirmed: every loss is the same to the last bit"
