"""Measure the cost of adapters on one GPU: `python benchmarks/adapters_gpu.py OUT_FOLDER`.

Forward + backward in bf16, interleaved, as ratios to PEFT's LoRA; first, that adapted models give
the same logits on the GPU as on the CPU, and compiled as eager.
"""

import json
import sys
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import get_peft_model
from transformers import PreTrainedModel

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.benches.adapters import (
    GPT2_SMALL,
    LLAMA_1B,
    SMALL_LLAMA,
    build,
    measure_decoding,
    measure_steps,
)

COMPARED = ("PEFT LoRA", "PEFT LoRA again", "PEFT DoRA", "rsLoRA", "DoRA", "HyLoRADA")


def perturbed(model: PreTrainedModel, **settings: Any) -> peft.PeftModel:
    adapted = get_peft_model(model, HyLoRADAConfig(**settings)).eval()
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))
    return adapted


@torch.no_grad()
def check_devices() -> dict[str, float]:
    torch.manual_seed(0)
    tokens = torch.randint(3, SMALL_LLAMA.vocabulary, (2, 64))
    differences = {}
    for design in ("position_adaptive", "learnable", "original", "per_layer", "shared"):
        for use_dora in (False, True):
            model = perturbed(
                build(SMALL_LLAMA, torch.float32, "cpu"), landmark_design=design, use_dora=use_dora
            )
            expected = model(input_ids=tokens).logits
            model = model.cuda()
            found = model(input_ids=tokens.cuda()).logits
            cached = model(input_ids=tokens[:, :40].cuda(), use_cache=True)
            rest = model(
                input_ids=tokens[:, 40:].cuda(), past_key_values=cached.past_key_values
            ).logits
            name = f"{design}{' DoRA' if use_dora else ''}"
            scale = expected.abs().max()
            differences[name] = float((found.cpu() - expected).abs().max() / scale)
            differences[f"{name}, cached"] = float(
                (rest - found[:, 40:]).abs().max() / scale.cuda()
            )
    compiled = torch.compile(model, fullgraph=True)
    again = compiled(input_ids=tokens.cuda(), use_cache=False).logits
    differences["compiled"] = float((again - found).abs().max() / scale.cuda())
    return differences


def main() -> None:
    out = Path(sys.argv[1])
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
        "logits": check_devices(),
        "runs": [],
    }
    print(json.dumps(results["logits"], indent=1), flush=True)
    for shape in (GPT2_SMALL, LLAMA_1B):
        for dropout in (0.0, 0.05):
            run = measure_steps(
                shape,
                dtype=torch.bfloat16,
                dropout=dropout,
                device="cuda",
                rounds=10,
                names=COMPARED,
            )
            results["runs"].append(run)
            torch.cuda.empty_cache()
            print(f"{shape.name}, dropout {dropout}: LoRA {run['reference_milliseconds']:.1f} ms")
            for name, row in run["methods"].items():
                time = row["time"]
                print(
                    f"  {name:18s} {time['value']:.3f} [{time['low']:.3f}, {time['high']:.3f}]"
                    f"  memory {row['memory']:.3f}",
                    flush=True,
                )
    results["runs"].append(
        measure_decoding(LLAMA_1B, dtype=torch.bfloat16, device="cuda", rounds=8)
    )
    for name, row in results["runs"][-1]["methods"].items():
        print(f"  decoding {name:18s} {row['time']['value']:.3f}")
    (out / "adapters_h200.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
