"""All metrics by name: one call evaluates a model and returns plain data for a result file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.cost import cost
from hylorada.evaluation.likelihood import Likelihood, require_context
from hylorada.evaluation.perplexity import lim_ppl_seed, mid_ppl, perplexity
from hylorada.evaluation.positions import context_gain, position_curve
from hylorada.evaluation.retrieval import evidence_position, retrieval
from hylorada.evaluation.windows import CorpusLosses, corpus_losses
from hylorada.names import known
from hylorada.text.store import TokenStore

SCHEMA = 1
DEFAULT_METRICS = ("ppl", "position_curve", "lim_ppl", "retrieval", "context_gain")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSpec:
    """How much is measured; the defaults suit a small model on a laptop.

    Attributes:
        max_length: Tokens of context in every metric.
        max_tokens: Corpus tokens read by the corpus metrics; None reads them all.
        stride: Tokens between windows of the corpus; None for windows that do not overlap.
        position_buckets: Buckets of the position curve.
        evidence_items: Questions for `lim_ppl`, each at eleven depths.
        retrieval_items: Answers for each task, length and depth of `retrieval`.
        retrieval_lengths: Prompt lengths; None for half of `max_length` and `max_length`.
        key_values: Key-value file in the lost-in-the-middle format; None generates pairs.
        context_windows: Windows for `context_gain`, each with 32 targets.
        batch_tokens: Tokens in a batch; None chooses by the device.
        seed: Seed of every generated item.
        progress: Whether to show progress bars, on standard error.
    """

    max_length: int = 512
    max_tokens: int | None = 131_072
    stride: int | None = None
    position_buckets: int = 16
    evidence_items: int = 16
    retrieval_items: int = 8
    retrieval_lengths: tuple[int, ...] | None = None
    key_values: Path | None = None
    context_windows: int = 48
    batch_tokens: int | None = None
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        counts = ("max_length", "position_buckets", "evidence_items", "retrieval_items")
        for name in (*counts, "context_windows", "max_tokens", "stride", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name} must be at least 1; got {value}")
        if self.max_length < 2:
            raise SpecError(f"max_length must be at least 2; got {self.max_length}")


@dataclass(frozen=True)
class Subject:
    """A model with the text and settings it is evaluated on; one corpus pass serves all metrics."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    store: TokenStore
    spec: EvaluationSpec

    @cached_property
    def likelihood(self) -> Likelihood:
        """Return the model prepared for scoring."""
        return Likelihood(self.model, batch_tokens=self.spec.batch_tokens)

    @cached_property
    def corpus(self) -> CorpusLosses:
        """Return the token losses of the corpus, computed once."""
        return corpus_losses(
            self.likelihood,
            self.store,
            length=self.spec.max_length,
            stride=self.spec.stride,
            max_tokens=self.spec.max_tokens,
            progress=self.spec.progress,
        )


def _ppl(subject: Subject) -> dict[str, object]:
    return perplexity(subject.corpus)


def _mid_ppl(subject: Subject) -> dict[str, object]:
    return mid_ppl(subject.corpus)


def _position_curve(subject: Subject) -> dict[str, object]:
    return position_curve(subject.corpus, buckets=subject.spec.position_buckets)


def _lim_ppl_seed(subject: Subject) -> dict[str, object]:
    spec = subject.spec
    return lim_ppl_seed(
        subject.likelihood,
        subject.store,
        length=spec.max_length,
        max_tokens=spec.max_tokens,
        seed=spec.seed,
        progress=spec.progress,
    )


def _lim_ppl(subject: Subject) -> dict[str, object]:
    spec = subject.spec
    return evidence_position(
        subject.likelihood,
        subject.tokenizer,
        length=spec.max_length,
        items=spec.evidence_items,
        filler=subject.store.tokens,
        seed=spec.seed,
        progress=spec.progress,
    )


def _context_gain(subject: Subject) -> dict[str, object]:
    spec = subject.spec
    return context_gain(
        subject.likelihood,
        subject.store,
        length=spec.max_length,
        windows=spec.context_windows,
        seed=spec.seed,
        progress=spec.progress,
    )


def _retrieval(subject: Subject) -> dict[str, object]:
    spec = subject.spec
    return retrieval(
        subject.likelihood,
        subject.tokenizer,
        lengths=spec.retrieval_lengths or (spec.max_length // 2, spec.max_length),
        items=spec.retrieval_items,
        key_values=spec.key_values,
        seed=spec.seed,
        progress=spec.progress,
    )


def _cost(subject: Subject) -> dict[str, object]:
    rows = subject.likelihood.rows_of(subject.spec.max_length)
    return cost(subject.model, length=subject.spec.max_length, rows=rows, seed=subject.spec.seed)


METRICS: dict[str, Callable[[Subject], dict[str, object]]] = {
    "ppl": _ppl,
    "position_curve": _position_curve,
    "lim_ppl_seed": _lim_ppl_seed,
    "mid_ppl": _mid_ppl,
    "lim_ppl": _lim_ppl,
    "context_gain": _context_gain,
    "retrieval": _retrieval,
    "cost": _cost,
}


def evaluate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    store: TokenStore,
    metrics: Sequence[str] = DEFAULT_METRICS,
    spec: EvaluationSpec | None = None,
) -> dict[str, Any]:
    """Return the named metrics of a model as plain data with units, counts and 95 % intervals.

    The same model, text, settings and machine give the same numbers; only `seconds` and `cost`
    differ. Every name is checked before anything is measured.
    """
    require_metrics(metrics)
    spec = EvaluationSpec() if spec is None else spec
    longest = max(spec.max_length, *(spec.retrieval_lengths or (0,)))
    require_context(model, longest)
    subject = Subject(model, tokenizer, store, spec)
    results: dict[str, object] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys(metrics):
        start = time.perf_counter()
        results[name] = METRICS[name](subject)
        seconds[name] = round(time.perf_counter() - start, 3)
    settings = asdict(spec)
    settings["key_values"] = None if spec.key_values is None else spec.key_values.name
    settings["retrieval_lengths"] = list(spec.retrieval_lengths or ()) or None
    return {
        "schema": SCHEMA,
        "metrics": results,
        "settings": settings,
        "data": {
            "fingerprint": store.fingerprint,
            "documents": len(store),
            "tokens": len(store.tokens),
        },
        "seconds": seconds,
    }


def require_metrics(metrics: Sequence[str]) -> None:
    """Raise `SpecError` naming the nearest known metric if one is unknown."""
    if not metrics:
        raise SpecError(f"name at least one metric of {', '.join(METRICS)}")
    for name in metrics:
        known(name, METRICS, "metric")
