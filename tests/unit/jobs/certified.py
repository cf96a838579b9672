"""A model, a corpus of short documents and a compressed adapter that take a second."""

import json
import shutil
from pathlib import Path

import torch
from peft import get_peft_model

from hylorada.jobs.compress import compress
from hylorada.models.pretrained import load
from hylorada.specs.evaluation import CompressionSpec
from hylorada.subspace import SubLoRAConfig
from tests.small_run import write_model


def write_place(folder: Path) -> Path:
    """Write all three into a folder and return it."""
    write_model(folder / "model")
    (folder / "text").mkdir()
    for split, first in (("train", 0), ("test", 900)):
        lines = [f"{number} comes before {number + 1}." for number in range(first, first + 60)]
        lines[3] = "a longer one: " + " ".join(map(str, range(first, first + 12)))
        rows = (json.dumps({"text": line}) for line in lines)
        (folder / "text" / f"{split}.jsonl").write_text("\n".join(rows))
    write_file(folder, str(folder / "model"))
    return folder


def write_file(folder: Path, base: str, *, scale: float = 0.3) -> Path:
    """Write a compressed adapter on the named base model."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(
            load(base).model,
            SubLoRAConfig(
                task_type="CAUSAL_LM",
                intrinsic_dim=24,
                target_modules=["q_proj", "v_proj"],
            ),
        )
        model.base_model.subspace().vector.data.normal_(std=scale)
    model.save_pretrained(folder / "adapter")
    compress(str(folder / "adapter"), folder / "adapter.hyl", CompressionSpec())
    shutil.rmtree(folder / "adapter")
    return folder / "adapter.hyl"
