"""An adapter saved in one process gives bit-equal logits in another."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families import adapt, build, logits, tokens

LOAD = """
import sys
from pathlib import Path
import torch
import hylorada
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM

folder = Path(sys.argv[1])
rows = torch.load(folder / "rows.pt")
for case in folder.iterdir():
    if case.is_dir():
        base = AutoModelForCausalLM.from_pretrained(case / "base")
        models = {
            "AutoPeftModel": AutoPeftModelForCausalLM.from_pretrained(case / "adapter").eval(),
            "PeftModel": PeftModel.from_pretrained(base, case / "adapter").eval(),
        }
        with torch.no_grad():
            logits = {name: model(input_ids=rows).logits for name, model in models.items()}
        torch.save(logits, case / "logits.pt")
"""

CASES: dict[str, dict[str, Any]] = {
    "gpt2": {"landmark_design": "learnable", "use_dora": True},
    "llama": {"share_factors": "AB"},
    "bloom": {"landmark_design": "per_layer"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where another process has left the logits of every saved adapter."""
    folder = tmp_path_factory.mktemp("saved")
    torch.save(tokens(), folder / "rows.pt")
    for family, changes in CASES.items():
        base = folder / family / "base"
        build(family).save_pretrained(base)
        model = adapt(family, **changes)
        model.peft_config["default"].base_model_name_or_path = str(base)
        model.save_pretrained(folder / family / "adapter")
    command = [sys.executable, "-c", LOAD, str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder


@pytest.mark.parametrize("way", ["AutoPeftModel", "PeftModel"])
@pytest.mark.parametrize("family", CASES)
def test_a_new_process_computes_bit_equal_logits(folder: Path, family: str, way: str) -> None:
    found = torch.load(folder / family / "logits.pt")[way]
    assert torch.equal(found, logits(adapt(family, **CASES[family]), tokens()))
