"""Train the pinned adapter: python tests/golden/make_adapter.py. It must load anywhere, alike."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor

from hylorada.models.pretrained import load

FOLDER = Path(__file__).parent / "adapter"
LOGITS = "logits.safetensors"
TEXT = "The Congress shall from time to time receive information of the state of the Union."
TRAINING = """--adapter.method=sublora
    --sublora.intrinsic_dim=1000 --sublora.allocation_mode=learned
    --data.length=128 --data.num_train=80 --data.num_val=4 --training.progress=false
    --optimisation.learning_rate=0.03 --training.cpu=true"""


def last_logits(folder: Path, device: str = "cpu") -> Tensor:
    """Return the logits after the last token of a text, of the embedded model with an adapter."""
    base = load("tiny", device=device)
    model = PeftModel.from_pretrained(base.model, str(folder)).eval()
    tokens = base.tokenizer(TEXT, return_tensors="pt").input_ids.to(device)
    with torch.no_grad():
        logits: Tensor = model(input_ids=tokens).logits[0, -1]
    return logits.float().cpu()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        command = ["hylorada", "train", *TRAINING.split(), "--out", f"{place}/run"]
        subprocess.run(command, check=True)
        FOLDER.mkdir(exist_ok=True)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(Path(place, "run", "adapter", name), FOLDER)
    config = json.loads((FOLDER / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tiny"
    (FOLDER / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({"logits": last_logits(FOLDER)}, FOLDER / LOGITS)


if __name__ == "__main__":
    main()
