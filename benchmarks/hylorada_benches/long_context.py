"""What long sequences cost: memory and time of a training step as the text grows.

Gradient checkpointing throughout, with the loss in chunks and with the model's own loss, which
makes the logits of all tokens at once. Memory is the peak of a step above what lies there before.
"""

import statistics
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import PeftModel, get_peft_model
from rich.table import Table
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada.seeds import generator
from hylorada.training.loss import chunked_loss
from hylorada_benches.memory import peak_step_bytes
from hylorada_benches.shapes import SEED, SMALL_LLAMA, Shape, build
from hylorada_benches.surroundings import best_device, device_name, surroundings
from hylorada_benches.timing import Times, race, ratios, require_rounds

CHUNKED, WHOLE = "in chunks", "whole"
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A model, and the lengths of text to train it on.

    Attributes:
        shape: The model; its length is not used.
        dtype: Of the frozen weights, by its name in torch.
        lengths: Tokens in a sequence, growing.
        chunk_tokens: Tokens whose logits exist at a time where the loss is made in chunks.
    """

    shape: Shape
    dtype: str = "float32"
    lengths: tuple[int, ...]
    chunk_tokens: int

    def __post_init__(self) -> None:
        if len(self.lengths) < 2 or list(self.lengths) != sorted(set(self.lengths)):
            raise SpecError(f"lengths must be at least 2 and grow; got {self.lengths}")
        if self.chunk_tokens < 1:
            raise SpecError(f"chunk_tokens must be at least 1; got {self.chunk_tokens}")


# The chunks are small enough that their logits never decide the peak, or it would be two lines.
ON_CPU = Growth(
    shape=replace(
        SMALL_LLAMA, name="Llama 3x192", layers=3, width=192, heads=3, vocabulary=8_192, batch=1
    ),
    lengths=(256, 512, 1024, 2048),
    chunk_tokens=32,
)
ON_CUDA = Growth(
    shape=Shape(
        name="Llama 30x576",
        family="llama",
        layers=30,
        width=576,
        heads=9,
        key_value_heads=3,
        inner=1536,
        vocabulary=49_152,
        batch=1,
        length=2048,
    ),
    dtype="bfloat16",
    lengths=(2048, 4096, 8192, 16_384, 32_768),
    chunk_tokens=128,
)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside its block: `now` alive, and `peak` at once.

    What a kernel takes and gives back on its own is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation and count the storages that are new in its result."""
        inputs = kwargs or {}
        given = {storage.data_ptr() for storage in _storages((args, inputs))}
        result = func(*args, **inputs)
        for storage in _storages(result):
            # A view of a tensor from outside the block is no new memory.
            if storage.data_ptr() not in given:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if not size or place in self._alive:
            return
        self._alive[place] = weakref.ref(storage, partial(self._forget, place, size))
        self.now += size
        self.peak = max(self.peak, self.now)

    def _forget(self, place: int, size: int, _: Any) -> None:
        del self._alive[place]
        self.now -= size


def measure(*, rounds: int, growth: Growth | None = None) -> dict[str, Any]:
    """Return bytes and seconds of a step at each length, and a line through the bytes.

    Args:
        rounds: Interleaved rounds.
        growth: Model and lengths; None chooses by whether there is a CUDA device.
    """
    require_rounds(rounds)
    device = best_device()
    chosen = growth or (ON_CUDA if device == "cuda" else ON_CPU)
    with ExitStack() as stack:
        models = {loss: _model(chosen, device) for loss in (CHUNKED, WHOLE)}
        stack.enter_context(chunked_loss(models[CHUNKED], chunk_tokens=chosen.chunk_tokens))
        steps = {
            (loss, length): _step(model, _tokens(chosen.shape, length, device))
            for length in chosen.lengths
            for loss, model in models.items()
        }
        held = {key: fitting_peak(step, device) for key, step in steps.items()}
        fitting = {_name(key): steps[key] for key, peak in held.items() if peak is not None}
        times = race(fitting, rounds=rounds, warmups=1, seed=SEED)
    return {
        "what": "long_context",
        "rounds": rounds,
        "device": device_name(device),
        **surroundings(),
        **asdict(chosen),
        "memory": "peak of a step above rest",
        "steps": [_row(key, peak, times) for key, peak in held.items()],
        "lines": {loss: line_of(held, loss) for loss in (CHUNKED, WHOLE)},
    }


def fitting_peak(step: Callable[[], None], device: str) -> int | None:
    """Return the bytes that a step needs above rest; None if the device has not so many."""
    try:
        if device == "cuda":
            return peak_step_bytes(step)
        with LiveBytes() as live:
            step()
        return live.peak
    except torch.OutOfMemoryError:
        return None


def line_of(held: dict[tuple[str, int], int | None], loss: str) -> dict[str, float] | None:
    """Return the least-squares line through bytes over tokens, and the share it explains."""
    points = [(length, peak) for (name, length), peak in held.items() if name == loss and peak]
    if len(points) < 2:
        return None
    tokens, peaks = np.array(points, dtype=np.float64).T
    slope, start = np.polyfit(tokens, peaks, 1)
    left = float(np.sum((peaks - start - slope * tokens) ** 2))
    spread = float(np.sum((peaks - peaks.mean()) ** 2))
    return {
        "bytes_per_token": float(slope),
        "bytes_at_zero": float(start),
        "r_squared": 1 - left / spread if spread else 1.0,
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of steps and one of the lines through their memory."""
    title = (
        f"A training step: {result['shape']['name']}, {result['dtype']}, {result['device']}, "
        f"chunks of {result['chunk_tokens']:,} tokens"
    )
    table = Table(title=title, title_justify="left")
    for column in ("tokens", "loss", "MiB", "seconds", "time / whole", "95 % interval"):
        table.add_column(column, justify="left" if column == "loss" else "right")
    for row in result["steps"]:
        table.add_row(f"{row['length']:,}", row["loss"], *_shown(row))
    yield table
    table = Table(title="Memory as a line over tokens", title_justify="left")
    table.add_column("loss")
    for column in ("MiB per 1,024 tokens", "MiB at zero", "R²"):
        table.add_column(column, justify="right")
    for loss, line in result["lines"].items():
        if line is not None:
            slope = 1024 * line["bytes_per_token"] / MEBIBYTE
            start = line["bytes_at_zero"] / MEBIBYTE
            table.add_row(loss, f"{slope:.2f}", f"{start:.2f}", f"{line['r_squared']:.5f}")
    yield table


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    if row["bytes"] is None:
        return ("too many",)
    seconds, ratio = row["median_seconds"], row["time"]
    shown = f"{row['bytes'] / MEBIBYTE:,.1f}", f"{seconds:.3f}"
    if ratio is None:
        return shown
    return (*shown, f"{ratio['value']:.3f}", f"[{ratio['low']:.3f}, {ratio['high']:.3f}]")


def _model(growth: Growth, device: str) -> PeftModel:
    longest = max(growth.lengths)
    shape = replace(growth.shape, length=longest)
    base = build(shape, getattr(torch, growth.dtype), device)
    base.config.use_cache = False  # a cache is of no use in training, and checkpointing refuses it
    config = HyLoRADAConfig(task_type="CAUSAL_LM", max_positions=longest)
    model = get_peft_model(base, config)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _tokens(shape: Shape, length: int, device: str) -> Tensor:
    draws = generator(SEED, f"tokens {length}")
    return torch.randint(shape.vocabulary, (shape.batch, length), generator=draws).to(device)


def _step(model: PeftModel, tokens: Tensor) -> Callable[[], None]:
    def step() -> None:
        try:
            model(input_ids=tokens, labels=tokens).loss.backward()
        finally:
            model.zero_grad(set_to_none=True)

    return step


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} {key[1]}"


def _row(key: tuple[str, int], peak: int | None, times: dict[str, Times]) -> dict[str, Any]:
    """Return the bytes and seconds of one step, beside the whole loss at the same length."""
    loss, length = key
    row: dict[str, Any] = {"loss": loss, "length": length, "bytes": peak}
    if peak is None:
        return row
    found, whole = times[_name(key)], times.get(_name((WHOLE, length)))
    pair = None if whole is None else {WHOLE: whole.wall, loss: found.wall}
    return row | {
        "median_seconds": statistics.median(found.wall),
        "time": None if pair is None else asdict(ratios(pair, WHOLE, SEED)[loss]),
        "seconds": found.wall,
        "processor_seconds": found.processor,
    }


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf.untyped_storage()
