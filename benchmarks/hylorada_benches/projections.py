"""What a subspace costs: each projection alone, and a training step beside LoRA's.

Everything is timed interleaved in one process and told as ratios.
"""

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, UniLoraConfig, get_peft_model
from rich.table import Table
from torch import Tensor

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.seeds import generator
from hylorada.subspace.config import SubLoRAConfig
from hylorada.subspace.projections import build_projection
from hylorada_benches.adapters import REFERENCE
from hylorada_benches.shapes import GPT2_SMALL, SEED, SMALL_GPT2, Shape, build
from hylorada_benches.surroundings import surroundings
from hylorada_benches.timing import (
    interleave,
    places_for,
    race_in_places,
    ratios,
    require_rounds,
)

# GPT-2 small with LoRA of rank 4 on q, v and the head, the vocabulary padded to whole tiles.
PARAMETERS = 351_744
KINDS = ("grouped", "kron_qr", "fastfood", "sparse")
LARGEST_SPARSE = 5_000  # above it a sparse matrix has more entries than there is time for
PAPER_SHAPE = replace(GPT2_SMALL, vocabulary=50_304, batch=8)


def measure(
    *,
    rounds: int,
    shape: Shape = SMALL_GPT2,
    full: int = PARAMETERS,
    dims: Sequence[int] = (1_000, 20_000),
    step_dims: Sequence[int] = (1_000, 10_000),
) -> dict[str, Any]:
    """Return all CPU measurements."""
    require_rounds(rounds)
    return {
        **surroundings(),
        "projections": measure_projections(dims, rounds=rounds, full=full),
        "steps": measure_steps(shape, dtype=torch.float32, rounds=rounds, dims=step_dims),
    }


def measure_projections(
    dims: Sequence[int], *, device: str = "cpu", rounds: int = 15, full: int = PARAMETERS
) -> list[dict[str, Any]]:
    """Return time and storage of every projection, applied and transposed, in milliseconds."""
    rows = []
    for dim in dims:
        built = {}
        seconds = {}
        for kind in KINDS:
            if kind == "sparse" and dim > LARGEST_SPARSE:
                continue
            start = time.perf_counter()
            built[kind] = build_projection(kind, full, dim, seed=SEED, name="bench", factor="AB")
            seconds[kind] = time.perf_counter() - start
        draws = generator(SEED, "coordinates")
        w = torch.randn(dim, generator=draws).to(device)
        theta = torch.randn(full, generator=draws).to(device)
        actions: dict[str, Callable[[], Any]] = {}
        for kind, projection in built.items():
            actions[f"{kind} apply"] = partial(projection.multiply, w)
            actions[f"{kind} adjoint"] = partial(projection.multiply_transposed, theta)
        timed = interleave(actions, rounds=rounds, warmups=2, seed=SEED)
        for kind, projection in built.items():
            rows.append(
                {
                    "kind": kind,
                    "full": full,
                    "dim": dim,
                    "isometry": projection.isometry,
                    "build_seconds": seconds[kind],
                    "apply_milliseconds": 1000 * statistics.median(timed[f"{kind} apply"]),
                    "adjoint_milliseconds": 1000 * statistics.median(timed[f"{kind} adjoint"]),
                    "stored_values": projection.stored_values(),
                }
            )
    return rows


def contestants(dims: Sequence[int], rank: int = 4) -> dict[str, PeftConfig]:
    """Return the adapters to compare: the same modules, the same rank."""
    targets: dict[str, Any] = {"target_modules": ["c_attn", "lm_head"]}
    lora: dict[str, Any] = {**targets, "r": rank, "lora_alpha": 8 * rank}
    plain: dict[str, Any] = {"landmark_enabled": False, "position_bias": False, "use_rslora": False}
    found: dict[str, PeftConfig] = {
        REFERENCE: LoraConfig(**lora, fan_in_fan_out=True),
        "PEFT LoRA again": LoraConfig(**lora, fan_in_fan_out=True),
        "our LoRA": HyLoRADAConfig(**lora, lora_dropout=0.0, **plain),
        "PEFT Uni-LoRA": UniLoraConfig(
            **targets, r=rank, theta_d_length=dims[0], fan_in_fan_out=True
        ),
    }
    for dim in dims:
        found[f"SubLoRA d={dim}"] = SubLoRAConfig(**lora, intrinsic_dim=dim)
    found[f"SubLoRA d={dims[0]} learned"] = SubLoRAConfig(
        **lora, intrinsic_dim=dims[0], allocation_mode="learned"
    )
    return found


def measure_steps(
    shape: Shape,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
    rounds: int = 15,
    dims: Sequence[int] = (1_000, 10_000),
) -> dict[str, Any]:
    """Return the time of forward, backward and an AdamW step, as ratios to PEFT's LoRA."""
    tokens = torch.randint(
        shape.vocabulary, (shape.batch, shape.length), generator=generator(SEED, "tokens")
    ).to(device)
    configs = contestants(dims)
    trained: dict[str, int] = {}

    def steps() -> dict[str, Callable[[], None]]:
        gc.collect()  # adapted models refer to themselves: without this those before them stay
        with quiet():
            models = {name: adapted(build(shape, dtype, device), c) for name, c in configs.items()}
        for name, model in models.items():
            trained[name] = model.get_nb_trainable_parameters()[0]
        return {name: training_step(model, tokens) for name, model in models.items()}

    places = places_for(rounds, device)
    times = race_in_places(steps, rounds=rounds, places=places, warmups=2, seed=SEED)
    wall = {name: each.wall for name, each in times.items()}
    used = {name: each.processor for name, each in times.items()}
    by_clock, by_processor = (ratios(each, REFERENCE, SEED, places=places) for each in (wall, used))
    return {
        "what": "forward + backward + AdamW",
        "shape": asdict(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "rounds": rounds,
        "places": places,
        "reference_milliseconds": 1000 * statistics.median(wall[REFERENCE]),
        "methods": {
            name: {
                "time": asdict(by_clock[name]),
                "processor": asdict(by_processor[name]),
                "trainable": trained[name],
            }
            for name in configs
        },
    }


def adapted(model: Any, config: PeftConfig) -> PeftModel:
    """Return the model with the adapter, its trained values in float32, ready to train."""
    found: PeftModel = get_peft_model(model, config)
    for parameter in found.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return found.train()


def training_step(model: PeftModel, tokens: Tensor, rate: float = 1e-4) -> Callable[[], None]:
    """Return one optimiser step on a batch."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)

    def step() -> None:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of the projections and one of the steps."""
    if "projections" in result:
        table = Table(title="Projections", title_justify="left")
        for column in ("kind", "PᵀP = I", "D", "d", "build s", "apply ms", "adjoint ms", "values"):
            table.add_column(column, justify="left" if column in ("kind", "PᵀP = I") else "right")
        for row in result["projections"]:
            table.add_row(
                row["kind"],
                {"exact": "exactly", "expected": "on average"}[row["isometry"]],
                str(row["full"]),
                str(row["dim"]),
                f"{row['build_seconds']:.2f}",
                f"{row['apply_milliseconds']:.3f}",
                f"{row['adjoint_milliseconds']:.3f}",
                str(row["stored_values"]),
            )
        yield table
    if "steps" in result:
        steps = result["steps"]
        title = f"{steps['what']}: {steps['shape']['name']}, {steps['dtype']}"
        table = Table(title=title, title_justify="left")
        table.add_column("method")
        for column in ("trained values", f"time / {REFERENCE}", "95 % interval", "processor time"):
            table.add_column(column, justify="right")
        for name, row in steps["methods"].items():
            time, used = row["time"], row["processor"]
            interval = f"[{time['low']:.3f}, {time['high']:.3f}]"
            values = f"{time['value']:.3f}", interval, f"{used['value']:.3f}"
            table.add_row(name, str(row["trainable"]), *values)
        yield table


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PEFT's remarks on tied heads and transposed layers: both are meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
