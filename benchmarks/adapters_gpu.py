"""Measure the cost of adapters on one GPU: `python benchmarks/adapters_gpu.py OUT_FOLDER`.

Forward + backward in bf16, interleaved, as ratios to PEFT's LoRA; then, that adapted models give
the same logits on the GPU as on the CPU, and compiled as eager.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from transformers import PreTrainedModel

from hylorada.adapters.config import HyLoRADAConfig
from hylorada_benches.adapters import measure_generation, measure_steps
from hylorada_benches.shapes import GPT2_SMALL, LLAMA_1B, SMALL_LLAMA, build
from hylorada_benches.surroundings import device_name, versions

COMPARED = ("PEFT LoRA", "PEFT LoRA again", "PEFT DoRA", "rsLoRA", "DoRA", "HyLoRADA")


def perturbed(model: PreTrainedModel, **settings: Any) -> PeftModel:
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    results: dict[str, Any] = {
        "device": device_name("cuda"),
        "versions": versions(),
        "runs": [],
    }
    for run in measurements(chosen.rounds):
        results["runs"].append(run)
        for line in lines(run):
            print(line, flush=True)
        (chosen.out / "adapters_h200.json").write_text(json.dumps(results, indent=1) + "\n")
    results["logits"] = check_devices()
    print(json.dumps(results["logits"], indent=1), flush=True)
    (chosen.out / "adapters_h200.json").write_text(json.dumps(results, indent=1) + "\n")


def measurements(rounds: int) -> Iterator[dict[str, Any]]:
    shared: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    for shape in (GPT2_SMALL, LLAMA_1B):
        for dropout in (0.0, 0.05):
            yield measure_steps(shape, dropout=dropout, rounds=rounds, names=COMPARED, **shared)
            torch.cuda.empty_cache()
    yield from measure_generation(LLAMA_1B, rounds=rounds, **shared)


def lines(run: dict[str, Any]) -> Iterator[str]:
    yield f"{run['what']}, {run['shape']['name']}, dropout {run.get('dropout', 0)}"
    for name, row in run["methods"].items():
        time = row["time"]
        memory = f"  memory {row['memory']:.3f}" if "memory" in row else ""
        yield f"  {name:18s} {time['value']:.3f} [{time['low']:.3f}, {time['high']:.3f}]{memory}"


if __name__ == "__main__":
    main()
