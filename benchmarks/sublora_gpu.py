"""Measure SubLoRA on one GPU: `PYTHONPATH=src python benchmarks/sublora_gpu.py --out FOLDER`.

(a) projections are bit-identical on CPU and GPU; (b) step time beside plain LoRA of the same
modules; (c) share of the GPU's bf16 peak when GPT-2 small is trained from its random start;
(d) quality and step time beside Uni-LoRA with as many trained values. `--small` runs all of it on
the CPU with tiny shapes; `--parts a c` runs some. The file is written after every part.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from peft import PeftConfig, UniLoraConfig
from rich.console import Console
from torch import Tensor, nn

from hylorada.models.pretrained import load
from hylorada.seeds import generator
from hylorada.subspace.config import SubLoRAConfig
from hylorada.subspace.projections import build_projection
from hylorada.text.batches import PackedBlocks
from hylorada.text.corpus import documents
from hylorada.text.tokens import tokenise
from hylorada.training.loss import chunked_loss
from hylorada.training.trainer import compiled_blocks
from hylorada_benches.projections import (
    PAPER_SHAPE,
    PARAMETERS,
    adapted,
    measure_projections,
    measure_steps,
    quiet,
    tables,
)
from hylorada_benches.shapes import SMALL_GPT2, build
from hylorada_benches.surroundings import versions
from hylorada_benches.timing import interleave, ratios

TINY = replace(
    SMALL_GPT2, name="GPT-2 2x64", layers=2, width=64, heads=2, vocabulary=512, length=64
)
FLOP_PER_PARAMETER = 4  # forward and the gradient of activations; frozen weights have none
SEEDS = (1, 2, 3)
RATES = (1e-2, 3e-2, 1e-1, 3e-1)


# (a) the same bits


def same_bits(device: str, small: bool) -> dict[str, Any]:
    full = 5_000 if small else PARAMETERS
    sizes = {"grouped": 1000, "kron_qr": 1000, "fastfood": 1000, "sparse": 1000, "dense": 50}
    found = {}
    for kind, dim in sizes.items():
        rows = 5_000 if kind == "dense" else full
        projection = build_projection(kind, rows, dim, seed=137, name="all", factor="AB")
        moved = projection.at(torch.device(device))
        stored = all(torch.equal(moved[n].cpu(), t) for n, t in projection.tensors.items())
        w = torch.randn(dim, generator=generator(0, "w"))
        here, there = projection.apply(w), projection.apply(w.to(device)).cpu()
        found[kind] = {
            "fingerprint": projection.fingerprint(),
            "stored_tensors_equal": stored,
            "applied_bits_equal": torch.equal(here, there),
            "largest_difference": float((here - there).abs().max()),
        }
        print(f"  {kind:9s} {found[kind]}", flush=True)
    return found


# (c) share of the peak


def matmul_peak(device: str, size: int) -> float:
    """Return the FLOP/s of a large bfloat16 product, the best of several."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    best = 0.0
    for _ in range(6):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(8):
            a @ b
        synchronise(device)
        best = max(best, 8 * 2 * size**3 / (time.perf_counter() - start))
    return best


def share_of_peak(device: str, small: bool) -> dict[str, Any]:
    shape = TINY if small else replace(PAPER_SHAPE, batch=64)
    dim, pieces, backend = (200, 64, "aot_eager") if small else (20_000, 16_384, "inductor")
    with quiet():
        model = adapted(
            build(shape, torch.bfloat16, device),
            SubLoRAConfig(target_modules=["c_attn", "lm_head"], intrinsic_dim=dim),
        )
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.length), device=device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    start = time.perf_counter()
    with (
        compiled_blocks(model, backend=backend),
        chunked_loss(model, chunk_tokens=pieces, compiled=not small),
    ):
        step()
        synchronise(device)
        first = time.perf_counter() - start
        seconds = interleave({"step": step}, rounds=3 if small else 12, warmups=3, seed=0)["step"]
    peak = matmul_peak(device, 256 if small else 8192)
    count = shape.batch * shape.length
    rate = FLOP_PER_PARAMETER * frozen * count / statistics.median(seconds)
    found = {
        "parameters": frozen,
        "tokens_per_step": count,
        "milliseconds": 1000 * statistics.median(seconds),
        "tokens_per_second": count / statistics.median(seconds),
        "first_step_seconds": first,
        "teraflops": rate / 1e12,
        "peak_teraflops": peak / 1e12,
        "share": rate / peak,
        "projection_calls": cast(Any, model).base_model.subspace().projections,
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
    }
    print(f"  {json.dumps(found)}", flush=True)
    return found


# (d) beside Uni-LoRA


def blocks(length: int) -> dict[str, Tensor]:
    loaded = load("tiny")
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for split in ("train", "valid"):
            store = tokenise(
                documents("sotu", split), loaded.tokenizer, Path(folder) / split, progress=False
            )
            packed = PackedBlocks(store, length)
            found[split] = torch.stack([packed[i]["input_ids"] for i in range(len(packed))])
    return found


def configuration(method: str, dim: int, seed: int) -> PeftConfig:
    targets = ["c_attn", "c_proj", "c_fc"]
    if method == "Uni-LoRA":
        return UniLoraConfig(
            target_modules=targets, r=4, theta_d_length=dim, proj_seed=seed, fan_in_fan_out=True
        )
    mode = method.partition(" ")[2] or "uniform"
    return SubLoRAConfig(
        target_modules=targets,
        intrinsic_dim=dim,
        allocation_mode=mode,
        projection_seed=seed,
        lora_alpha=4,
    )


def trained_loss(
    method: str, rate: float, seed: int, data: dict[str, Tensor], device: str, steps: int
) -> float:
    """Return the validation loss, in nats per token, after a training from the embedded model."""
    torch.manual_seed(seed)
    with quiet():
        model = adapted(load("tiny", device=device).model, configuration(method, 1000, seed))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) in (1000, 1004, 1005)
    optimizer = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 10, (steps - step) / steps)
    )
    order = torch.randint(len(data["train"]), (steps, 8), generator=generator(seed, "order"))
    for chosen in order:
        rows = data["train"][chosen].to(device)
        model(input_ids=rows, labels=rows).loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    with torch.no_grad():
        rows = data["valid"][:64].to(device)
        losses = [float(model(input_ids=r, labels=r).loss) for r in rows.split(16)]
    return statistics.fmean(losses)


def against_unilora(device: str, small: bool) -> dict[str, Any]:
    length, steps = (64, 4) if small else (256, 150)
    methods = ("Uni-LoRA", "SubLoRA", "SubLoRA fixed", "SubLoRA learned")
    rates = RATES[1:2] if small else RATES
    data = blocks(length)
    found: dict[str, Any] = {"values": 1000, "steps": steps, "methods": {}}
    for method in methods:
        tried = {rate: trained_loss(method, rate, 0, data, device, steps) for rate in rates}
        best = min(tried, key=lambda rate: tried[rate])
        losses = [trained_loss(method, best, seed, data, device, steps) for seed in SEEDS]
        found["methods"][method] = {"tried": tried, "rate": best, "losses": losses}
        mean, spread = statistics.fmean(losses), statistics.stdev(losses)
        print(f"  {method:16s} rate {best:g}: {mean:.4f} ± {spread:.4f} nats", flush=True)
    rows = data["train"][:16].to(device)
    steps_of = {}
    for method in methods:
        with quiet():
            model = adapted(load("tiny", device=device).model, configuration(method, 1000, 0))
        steps_of[method] = _step(model, rows)
    seconds = interleave(steps_of, rounds=3 if small else 15, warmups=3, seed=0)
    for method, ratio in ratios(seconds, "Uni-LoRA", 0).items():
        found["methods"][method]["time"] = [ratio.value, ratio.low, ratio.high]
        print(f"  {method:16s} step time {ratio.value:.3f} of Uni-LoRA's", flush=True)
    return found


def _step(model: Any, rows: Tensor) -> Any:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(part: str, device: str, small: bool) -> dict[str, Any]:
    """Return the results of one part."""
    if part == "a":
        timed = measure_projections(
            (100,) if small else (1_000, 20_000, 50_000),
            device=device,
            rounds=3 if small else 15,
            full=5_000 if small else PARAMETERS,
        )
        return {"bits": same_bits(device, small), "projections": timed}
    if part == "b":
        shape, dims, rounds = PAPER_SHAPE, (1_000, 50_000), 15
        if small:
            shape, dims, rounds = replace(SMALL_GPT2, batch=1, length=64), (200, 500), 3
        steps = measure_steps(shape, dtype=torch.bfloat16, device=device, rounds=rounds, dims=dims)
        return {"steps": steps}
    if part == "c":
        return {"peak": share_of_peak(device, small)}
    return {"unilora": against_unilora(device, small)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--parts", nargs="*", choices="abcd", default=list("abcd"))
    options = parser.parse_args()
    device = "cpu" if options.small else "cuda"
    result: dict[str, Any] = {
        "device": "cpu" if options.small else torch.cuda.get_device_name(),
        "versions": versions(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / ("sublora_small.json" if options.small else "sublora_h200.json")
    transformers.utils.logging.disable_progress_bar()
    began = time.perf_counter()
    for part in options.parts:
        print(f"({part}) after {time.perf_counter() - began:.0f} s", flush=True)
        result |= measure(part, device, options.small)
        file.write_text(json.dumps(result, indent=1) + "\n")
        if device == "cuda":
            torch.cuda.empty_cache()
    console = Console(width=120)
    for table in tables(result):
        console.print(table)
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
