"""What a certificate costs: reading documents beside a bare forward pass, and the bounds alone.

The bare pass gets the batches that the risk pass forms, ready on the device, and makes their
logits; the risk pass forms them itself and makes bits and ranks of them. Both are interleaved.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from hylorada.bounds import relative_gain, relative_gain_of_tokens
from hylorada.errors import SpecError
from hylorada.evaluation.risk import (
    BATCH_TOKENS,
    RiskSpec,
    Stretches,
    countable_documents,
    stretches,
    token_risks,
)
from hylorada.text.tokens import TokenStore
from hylorada.units import Bits, nats_from_bits
from hylorada_benches.shapes import GPT2_SMALL, SEED, SMALL_GPT2, Shape, build
from hylorada_benches.surroundings import best_device, device_name, surroundings
from hylorada_benches.timing import Ratio, Times, interleave, race, ratios, require_rounds

RISK, BARE, AGAIN = "risk pass", "bare forward", "bare again"
DOCUMENT_COUNTS = (1_000, 10_000, 100_000)
TOKEN_COUNTS = (100_000, 1_000_000, 10_000_000)
COMPLEXITY = nats_from_bits(Bits(10_000.0))  # a message of 1,250 bytes
CORPUS_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Documents to read, and the model that reads them; its shape's length is the context.

    Attributes:
        shape: Model and context.
        dtype: Of the weights, by its name in torch.
        documents: Documents in one timed pass.
        tokens_each: Tokens of each document; more than the context are read in two windows.
        corpus: Documents whose reading is timed or extrapolated from as many as fit into
            `CORPUS_SECONDS`; 0 for none.
    """

    shape: Shape
    dtype: str = "float32"
    documents: int
    tokens_each: int
    corpus: int = 0

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise SpecError(f"documents must be at least 1; got {self.documents}")
        if self.tokens_each < 2:
            raise SpecError(f"tokens_each must be at least 2; got {self.tokens_each}")


ON_CPU = Reading(shape=replace(SMALL_GPT2, length=512), documents=4, tokens_each=550)
ON_CUDA = Reading(
    shape=replace(GPT2_SMALL, vocabulary=50_304),
    dtype="bfloat16",
    documents=256,
    tokens_each=1_100,
    corpus=10_000,
)


def measure(
    *,
    rounds: int,
    reading: Reading | None = None,
    document_counts: Sequence[int] = DOCUMENT_COUNTS,
    token_counts: Sequence[int] = TOKEN_COUNTS,
) -> dict[str, Any]:
    """Return speeds of reading in tokens per second, and seconds of both levels' bounds.

    Args:
        rounds: Interleaved rounds.
        reading: What is read; None chooses by whether there is a CUDA device.
        document_counts: Numbers of documents to bound.
        token_counts: Numbers of tokens to bound.
    """
    require_rounds(rounds)
    device = best_device()
    chosen = reading or (ON_CUDA if device == "cuda" else ON_CPU)
    return {
        "what": "bounds",
        "rounds": rounds,
        "device": device_name(device),
        **surroundings(),
        "reading": measure_reading(chosen, device=device, rounds=rounds),
        "bounds": measure_levels(document_counts, token_counts, rounds=rounds),
    }


def measure_reading(reading: Reading, *, device: str, rounds: int) -> dict[str, Any]:
    """Return tokens per second of the risk pass and of a bare forward over the same batches."""
    model = build(reading.shape, getattr(torch, reading.dtype), device).eval()
    store = _random_store(reading, reading.documents)
    spec = RiskSpec(max_length=reading.shape.length)
    rows = stretches(store, countable_documents(store), spec)
    batches = _batches(rows, store, spec, device)
    actions: dict[str, Callable[[], None]] = {
        BARE: partial(_forward, model, batches),
        AGAIN: partial(_forward, model, batches),
        RISK: partial(_read, model, store, spec),
    }
    times = race(actions, rounds=rounds, warmups=1, seed=SEED)
    tokens = int(rows.lengths.sum())
    seconds_each = statistics.median(times[RISK].wall) / reading.documents
    return {
        **asdict(reading),
        "tokens_read": tokens,
        "passes": _speeds(times, tokens),
        "whole_corpus": _whole_corpus(model, reading, spec, seconds_each),
    }


def measure_levels(
    document_counts: Sequence[int], token_counts: Sequence[int], *, rounds: int
) -> list[dict[str, Any]]:
    """Return the seconds that each level's bound takes over so many drawn values."""
    actions: dict[tuple[str, int], Callable[[], Any]] = {}
    for count in document_counts:
        actions["document", count] = partial(relative_gain, *_documents(count), COMPLEXITY)
    for count in token_counts:
        model, reference, _ = _documents(count)
        values = model.astype(np.float32), reference.astype(np.float32)
        actions["token", count] = partial(relative_gain_of_tokens, *values, COMPLEXITY)
    named = {f"{level} {count}": action for (level, count), action in actions.items()}
    times = interleave(named, rounds=rounds, warmups=1, seed=SEED)
    return [
        {
            "level": level,
            "values": count,
            "median_seconds": statistics.median(times[f"{level} {count}"]),
            "seconds": times[f"{level} {count}"],
        }
        for level, count in actions
    ]


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of reading speeds and one of the bounds' seconds."""
    reading = result["reading"]
    title = (
        f"Reading {reading['documents']:,} documents of {reading['tokens_each']:,} tokens: "
        f"{reading['shape']['name']}, {reading['dtype']}, {result['device']}"
    )
    whole = reading["whole_corpus"]
    table = Table(title=title, title_justify="left", caption=whole and _sentence(whole))
    table.add_column("pass")
    for column in ("tokens/s", "speed / bare forward", "95 % interval", "by processor time"):
        table.add_column(column, justify="right")
    for name, row in reading["passes"].items():
        speed, used = row["speed"], row["processor_speed"]
        interval = f"[{speed['low']:.3f}, {speed['high']:.3f}]"
        values = f"{speed['value']:.3f}", interval, f"{used['value']:.3f}"
        table.add_row(name, f"{row['tokens_per_second']:,.0f}", *values)
    yield table
    table = Table(title="Bounds of drawn losses", title_justify="left")
    table.add_column("level")
    for column in ("values", "seconds", "fastest", "slowest", "values/s"):
        table.add_column(column, justify="right")
    for row in result["bounds"]:
        seconds = row["median_seconds"], min(row["seconds"]), max(row["seconds"])
        rate = f"{row['values'] / row['median_seconds']:,.0f}"
        shown = (f"{value:.4f}" for value in seconds)
        table.add_row(row["level"], f"{row['values']:,}", *shown, rate)
    yield table


def _random_store(reading: Reading, documents: int) -> TokenStore:
    draws = np.random.default_rng([SEED, documents])
    tokens = draws.integers(reading.shape.vocabulary, size=documents * reading.tokens_each)
    return TokenStore(
        tokens=tokens.astype(np.uint32),
        offsets=np.arange(documents + 1) * reading.tokens_each,
        byte_counts=np.full(documents, 4 * reading.tokens_each),
        fingerprint="drawn",
    )


def _batches(rows: Stretches, store: TokenStore, spec: RiskSpec, device: str) -> list[Tensor]:
    """Return the batches that the risk pass forms of these rows, on the device."""
    return [
        batch.padded(store)[0].to(device)
        for shard in rows.shards(spec.shard_tokens)
        for batch in shard.batches(BATCH_TOKENS[device])
    ]


@torch.no_grad()
def _forward(model: PreTrainedModel, batches: Sequence[Tensor]) -> None:
    for batch in batches:
        model(input_ids=batch, use_cache=False)


def _read(model: PreTrainedModel, store: TokenStore, spec: RiskSpec) -> None:
    token_risks(model, store, countable_documents(store), spec)


def _speeds(times: dict[str, Times], tokens: int) -> dict[str, dict[str, Any]]:
    wall = {name: each.wall for name, each in times.items()}
    used = {name: each.processor for name, each in times.items()}
    by_clock, by_processor = (ratios(each, BARE, SEED) for each in (wall, used))
    return {
        name: {
            "tokens_per_second": tokens / statistics.median(wall[name]),
            "speed": asdict(_inverse(by_clock[name])),
            "processor_speed": asdict(_inverse(by_processor[name])),
            "seconds": wall[name],
            "processor_seconds": used[name],
        }
        for name in times
    }


def _inverse(time_ratio: Ratio) -> Ratio:
    """Return the ratio of speeds that a ratio of times is."""
    return Ratio(1 / time_ratio.value, 1 / time_ratio.high, 1 / time_ratio.low)


def _whole_corpus(
    model: PreTrainedModel, reading: Reading, spec: RiskSpec, seconds_each: float
) -> dict[str, Any] | None:
    """Return the seconds of the whole corpus, from one pass over as much as there is time for."""
    if not reading.corpus:
        return None
    count = max(1, min(reading.corpus, int(CORPUS_SECONDS / seconds_each)))
    store = _random_store(reading, count)
    start = time.perf_counter()
    _read(model, store, spec)  # its results lie on the CPU, so nothing is still under way
    seconds = time.perf_counter() - start
    return {
        "documents": reading.corpus,
        "seconds": seconds * reading.corpus / count,
        "measured_documents": count,
        "measured_seconds": seconds,
    }


def _sentence(whole: dict[str, Any]) -> str:
    return (
        f"{whole['documents']:,} such documents: {whole['seconds']:.1f} s, from "
        f"{whole['measured_documents']:,} read in {whole['measured_seconds']:.1f} s"
    )


def _documents(
    count: int,
) -> tuple[
    Float64[np.ndarray, " count"], Float64[np.ndarray, " count"], Int64[np.ndarray, " count"]
]:
    """Return bits under model and reference, and lengths, of drawn documents."""
    draws = np.random.default_rng([SEED, count])
    lengths = draws.integers(50, 1_000, size=count)
    reference = lengths * draws.normal(8.0, 1.0, size=count).clip(min=0.0)
    gain = lengths * draws.normal(0.5, 0.3, size=count)
    return (reference - gain).clip(min=0.0), reference, lengths
