"""Adapt SmolLM2-135M on a GPU: the first comparison of arms, and the memory of long sequences.

    python benchmarks/smollm2.py arms    --model MODEL --data WIKITEXT_FOLDER --out FOLDER
    python benchmarks/smollm2.py lengths --model MODEL --data BOOKS_FOLDER    --out FOLDER

`arms`: 500 blocks of 512 tokens drawn by the seed from one contiguous stream, one epoch, batch 8,
bf16 autocast, AdamW at 5e-4, 3 % warm-up and linear decay; test: the first 200 blocks in order.
`lengths`: the peak memory of training steps on whole books, from 2,048 to 32,768 tokens.

Runs that the file in FOLDER already has are not repeated.
"""

import argparse
import gc
import json
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from transformers import PreTrainedTokenizerBase

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.models.pretrained import load
from hylorada.seeds import derived_seed
from hylorada.specs.run import ContextSpec, TextSpec, TrainingSpec
from hylorada.text.batches import PackedBlocks
from hylorada.text.corpus import documents
from hylorada.text.tokens import TokenStore, tokenise
from hylorada.training.trainer import train, validation_loss
from hylorada_benches.surroundings import best_device, device_name, versions

DEVICE = best_device()
LENGTH = 512
QUIET: dict[str, Any] = {"progress": False, "log_every": 1000, "cpu": DEVICE == "cpu"}
LONG = (2048, 4096, 8192, 16384, 32768)
SEEDS = (42, 123, 456)
PLAIN: dict[str, Any] = {"landmark_enabled": False, "position_bias": False}
ARMS: dict[str, dict[str, Any]] = {
    "rsLoRA": PLAIN,
    "+ landmarks": {"position_bias": False},
    "+ low_rank": {"position_bias": False, "landmark_design": "low_rank"},
    "HyLoRADA (default)": {},
    "+ learnable": {"position_bias": False, "landmark_design": "learnable"},
    "+ bias": {"position_bias": False, "landmark_design": "bias"},
    "+ position bias": {"landmark_enabled": False},
    "DoRA": {**PLAIN, "use_dora": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=("arms", "lengths"))
    for name in ("--model", "--data", "--out"):
        parser.add_argument(name, required=True)
    chosen = parser.parse_args()
    study = {"arms": compare_arms, "lengths": measure_lengths}[chosen.study]
    about = {
        "device": device_name(DEVICE),
        "versions": versions(),
        "protocol": __doc__,
    }
    path = Path(chosen.out) / f"smollm2_{chosen.study}.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    for results in study(chosen.model, Path(chosen.data), runs):  # one more run each time
        path.write_text(json.dumps(about | results, indent=1) + "\n")


def compare_arms(source: str, data: Path, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    known = {(run["arm"], run["seed"]) for run in runs}
    loaded = load(source, device=DEVICE)
    stores = {split: store(data, split, loaded.tokenizer) for split in ("train", "test")}
    test = PackedBlocks(stores["test"], LENGTH, count=200)
    training = TrainingSpec(batch_size=8, precision="autocast", **QUIET)
    with tempfile.TemporaryDirectory() as folder:
        frozen, tokens = validation_loss(loaded.model, test, training=training, folder=Path(folder))
    print(f"frozen {math.exp(frozen):.3f} on {tokens} tokens", flush=True)
    for arm, settings in ARMS.items():
        for seed in SEEDS:
            if (arm, seed) in known:
                continue
            blocks = PackedBlocks(stores["train"], LENGTH, count=500, seed=seed)
            spec = TrainingSpec(batch_size=8, precision="autocast", seed=seed, **QUIET)
            model = adapted(loaded.model, seed, max_positions=LENGTH, **settings)
            with tempfile.TemporaryDirectory() as folder:
                outcome = train(model, blocks, training=spec, folder=Path(folder), valid_data=test)
            assert outcome.valid_loss is not None
            runs.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "ppl": math.exp(outcome.valid_loss),
                    "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
                    "seconds": outcome.seconds,
                }
            )
            print(json.dumps(runs[-1]), flush=True)
            model.unload()
            yield {"frozen_ppl": math.exp(frozen), "test_tokens": tokens, "runs": runs}


def measure_lengths(
    source: str, data: Path, runs: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    known = {run["length"] for run in runs}
    # One model for all lengths: the scaling of positions costs no memory.
    context = ContextSpec(length=max(LONG), scaling="yarn")
    loaded = load(source, dtype=torch.bfloat16, device=DEVICE, context=context)
    books = store(data, "train", loaded.tokenizer)
    for length in LONG:
        if length not in known:
            runs.append(measure_length(loaded.model, books, length))
            print(json.dumps(runs[-1]), flush=True)
            yield {"runs": runs}


def measure_length(base: torch.nn.Module, books: TokenStore, length: int) -> dict[str, Any]:
    model = adapted(base, 42, max_positions=length)
    spec = TrainingSpec(
        steps=4, batch_size=1, precision="bfloat16", gradient_checkpointing=True, **QUIET
    )
    blocks = PackedBlocks(books, length, count=4, seed=42)
    gc.collect()
    torch.cuda.empty_cache()
    resting = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(model, blocks, training=spec, folder=Path(folder))
    model.unload()
    return {
        "length": length,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "resting_gib": resting / 2**30,
        "train_loss": outcome.train_loss,
        "seconds_for_4_steps": time.perf_counter() - start,
    }


def adapted(model: torch.nn.Module, seed: int, **settings: Any) -> PeftModel:
    torch.manual_seed(derived_seed(seed, "adapter"))
    return get_peft_model(model, HyLoRADAConfig(task_type="CAUSAL_LM", **settings))


def store(data: Path, split: str, tokenizer: PreTrainedTokenizerBase) -> TokenStore:
    text = documents(data, split, TextSpec(replace={"<unk>": "unk"}))
    folder = Path(tempfile.gettempdir()) / f"tokens-{data.name}-{split}"
    return tokenise(text, tokenizer, folder, boundary="none", progress=False)


if __name__ == "__main__":
    main()
