"""What adapters cost: step time, memory and decoding, as ratios to PEFT's LoRA.

Every method sits on its own copy of one model; all copies are timed in one interleaved run, and
built anew every few rounds.
"""

import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, UniLoraConfig, VeraConfig, get_peft_model
from rich.table import Table
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada.models.anatomy import attention_projections
from hylorada.seeds import generator
from hylorada_benches.memory import peak_step_bytes, saved_activation_bytes
from hylorada_benches.shapes import SEED, SMALL_GPT2, SMALL_LLAMA, WIDE_LLAMA, Shape, build
from hylorada_benches.surroundings import surroundings
from hylorada_benches.timing import (
    Times,
    least_ratios,
    places_for,
    race_in_places,
    ratios,
    require_rounds,
)

REFERENCE = "PEFT LoRA"


def methods(model: PreTrainedModel, targets: str, dropout: float) -> dict[str, PeftConfig]:
    """Return the configurations to compare, all on the same modules."""
    chosen = sorted(attention_projections(model)) if targets == "attention" else "all-linear"
    common: dict[str, Any] = {
        "target_modules": chosen,
        "fan_in_fan_out": model.config.model_type == "gpt2",
    }
    lora = {**common, "r": 8, "lora_alpha": 16, "lora_dropout": dropout}
    ours = {**lora, "landmark_enabled": False, "position_bias": False}
    return {
        REFERENCE: LoraConfig(**lora),
        "PEFT LoRA again": LoraConfig(**lora),
        "PEFT rsLoRA": LoraConfig(**lora, use_rslora=True),
        "PEFT DoRA": LoraConfig(**lora, use_dora=True),
        "PEFT VeRA": VeraConfig(**common, r=256, vera_dropout=dropout),
        "PEFT Uni-LoRA": UniLoraConfig(**common, r=8, theta_d_length=4096, unilora_dropout=dropout),
        "rsLoRA": HyLoRADAConfig(**ours),
        "DoRA": HyLoRADAConfig(**ours, use_dora=True),
        "HyLoRADA": HyLoRADAConfig(**lora),
        "HyLoRADA learnable": HyLoRADAConfig(**lora, landmark_design="learnable"),
    }


def measure(*, rounds: int) -> dict[str, Any]:
    """Return all CPU measurements, with progress on standard error."""
    require_rounds(rounds)
    float32, bfloat16 = torch.float32, torch.bfloat16
    steps: list[dict[str, Any]] = [
        {"shape": SMALL_GPT2, "dtype": float32},
        {"shape": SMALL_LLAMA, "dtype": float32},
        {"shape": SMALL_GPT2, "dtype": bfloat16},
        {"shape": SMALL_GPT2, "dtype": bfloat16, "targets": "all"},
    ]
    runs = chain(
        (measure_steps(**step, rounds=rounds) for step in steps),
        measure_generation(WIDE_LLAMA, dtype=float32, rounds=max(3, rounds // 2)),
    )
    count = len(steps) + 2  # reading and decoding
    bar = tqdm(runs, total=count, desc="measuring", unit="table", file=sys.stderr)
    return {**surroundings(), "runs": list(bar)}


def measure_steps(
    shape: Shape,
    *,
    dtype: torch.dtype,
    targets: str = "attention",
    dropout: float = 0.0,
    device: str = "cpu",
    rounds: int = 15,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return time and memory of forward + backward for each method, as ratios to PEFT's LoRA."""
    configs = methods(build(shape, dtype, "meta"), targets, dropout)
    chosen = {name: configs[name] for name in names or configs}
    if REFERENCE not in chosen:
        raise SpecError(f"the methods must include {REFERENCE!r}; got {', '.join(chosen)}")
    tokens = torch.randint(
        shape.vocabulary, (shape.batch, shape.length), generator=generator(SEED, "tokens")
    ).to(device)

    def adapted(name: str) -> PeftModel:
        return get_peft_model(build(shape, dtype, device), chosen[name]).train()

    def steps() -> dict[str, Callable[[], None]]:
        gc.collect()  # adapted models refer to themselves: without this those before them stay
        return {name: _step(adapted(name), tokens) for name in chosen}

    places = places_for(rounds, device)
    times = race_in_places(steps, rounds=rounds, places=places, warmups=2, seed=SEED)
    timed = timings(times, places)
    held = {name: _held(adapted(name), tokens) for name in chosen}
    reference_bytes = held[REFERENCE]["bytes"]
    return {
        "what": "forward + backward",
        "shape": asdict(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "targets": targets,
        "dropout": dropout,
        "rounds": rounds,
        "places": places,
        "memory": "peak above rest" if device == "cuda" else "saved activations",
        "reference_milliseconds": 1000 * statistics.median(timed[REFERENCE]["seconds"]),
        "methods": {
            name: timed[name]
            | {
                "memory": held[name]["bytes"] / reference_bytes,
                "megabytes": held[name]["bytes"] / 2**20,
                "trainable": held[name]["trainable"],
            }
            for name in chosen
        },
    }


def measure_generation(
    shape: Shape, *, dtype: torch.dtype, device: str = "cpu", rounds: int = 5, tokens: int = 16
) -> Iterator[dict[str, Any]]:
    """Yield the time of reading a prompt of `tokens` tokens, and of decoding as many after it.

    All linear layers are adapted; decoding uses a cache.
    """
    configs = methods(build(shape, dtype, "meta"), "all", 0.0)
    names = (REFERENCE, "PEFT LoRA again", "PEFT DoRA", "rsLoRA", "DoRA", "HyLoRADA")
    drawn = torch.randint(3, shape.vocabulary, (1, tokens), generator=generator(SEED, "prompt"))
    prompt = drawn.to(device)

    def actions(part: Callable[[PeftModel], Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
        gc.collect()
        return {
            name: part(get_peft_model(build(shape, dtype, device), configs[name]).eval())
            for name in names
        }

    parts: dict[str, Callable[[PeftModel], Callable[[], Any]]] = {
        f"reading {tokens} tokens": lambda model: partial(_read, model, prompt),
        f"decoding {tokens} tokens after {tokens}": lambda model: _decode(model, prompt, tokens),
    }
    places = places_for(rounds, device)
    race = partial(race_in_places, rounds=rounds, places=places, warmups=1, seed=SEED)
    for what, part in parts.items():
        yield {
            "what": what,
            "shape": asdict(shape),
            "dtype": str(dtype).removeprefix("torch."),
            "targets": "all",
            "rounds": rounds,
            "places": places,
            "methods": timings(race(partial(actions, part)), places),
        }


def timings(times: dict[str, Times], places: int) -> dict[str, dict[str, Any]]:
    """Return each method's ratios to PEFT's LoRA, and the seconds of every round behind them."""
    wall = {name: each.wall for name, each in times.items()}
    processor = {name: each.processor for name, each in times.items()}
    by_clock, by_processor = (
        ratios(each, REFERENCE, SEED, places=places) for each in (wall, processor)
    )
    least = least_ratios(processor, REFERENCE)
    return {
        name: {
            "time": asdict(by_clock[name]),
            "processor_time": asdict(by_processor[name]),
            "least_processor_time": least[name],
            "seconds": wall[name],
            "processor_seconds": processor[name],
        }
        for name in times
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table for each measurement: ratios to PEFT's LoRA with 95 % intervals."""
    for run in result["runs"]:
        details = [run["shape"]["name"], run["dtype"], f"{run['targets']} targets"]
        if run.get("dropout"):
            details.append(f"dropout {run['dropout']}")
        table = Table(title=f"{run['what']}: {', '.join(details)}", title_justify="left")
        table.add_column("over PEFT LoRA")
        headings = ["time", "95 %", "processor time", "95 %", "least of it"]
        if all("memory" in row for row in run["methods"].values()):
            headings.append("memory")
        for heading in headings:
            table.add_column(heading, justify="right")
        for name, row in run["methods"].items():
            memory = [f"{row['memory']:.3f}"] if "memory" in row else []
            times = (*_ratio(row["time"]), *_ratio(row["processor_time"]))
            table.add_row(name, *times, f"{row['least_processor_time']:.3f}", *memory)
        yield table


def _ratio(ratio: dict[str, float]) -> tuple[str, str]:
    return f"{ratio['value']:.3f}", f"{ratio['low']:.2f}–{ratio['high']:.2f}"


def _loss(model: PeftModel, tokens: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


def _held(model: PeftModel, tokens: Tensor) -> dict[str, int]:
    """Return what a step holds in memory, in bytes, and how many values it trains."""
    if tokens.is_cuda:
        step = _step(model, tokens)
        step()  # what the first step makes and keeps is not part of any other
        size = peak_step_bytes(step)
    else:
        size = saved_activation_bytes(model, partial(_loss, model, tokens))
    return {"bytes": size, "trainable": model.get_nb_trainable_parameters()[0]}


def _step(model: PeftModel, tokens: Tensor) -> Callable[[], None]:
    def step() -> None:
        _loss(model, tokens).backward()
        model.zero_grad(set_to_none=True)

    return step


@torch.no_grad()
def _read(model: PeftModel, prompt: Tensor) -> Any:
    return model(input_ids=prompt, use_cache=True)


def _decode(model: PeftModel, prompt: Tensor, tokens: int) -> Callable[[], None]:
    """Return what decodes some tokens after a prompt that was read before, and forgets them."""
    read = _read(model, prompt)

    @torch.no_grad()
    def decode() -> None:
        output = read
        for _ in range(tokens):
            token = output.logits[:, -1:].argmax(dim=-1)
            output = model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)
        read.past_key_values.crop(-tokens)

    return decode
