"""Every metric by name. A file that computes one registers it; one call evaluates a model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from torch import nn
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood, require_context
from hylorada.evaluation.windows import CorpusLosses, corpus_losses
from hylorada.records.evaluations import Evaluation, Measurement
from hylorada.registry import Registry
from hylorada.specs.evaluation import DEFAULT_METRICS, EvaluationSpec
from hylorada.text.tokens import TokenStore


@dataclass(frozen=True)
class Case:
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
        return corpus_losses(self.likelihood, self.store, self.spec)


@dataclass(frozen=True, slots=True)
class Metric:
    """What `--metrics` takes: a name, one line that says what it is, and what computes it.

    A metric of your own may return a `Quantity`.
    """

    name: str
    words: str
    measure: Callable[[Case], Measurement]


METRICS: Registry[Metric] = Registry(
    "metric",
    "hylorada.metrics",
    "hylorada.evaluation.perplexity",
    "hylorada.evaluation.retrieval",
    "hylorada.evaluation.cost",
)


def evaluate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    store: TokenStore,
    metrics: Sequence[str] = DEFAULT_METRICS,
    spec: EvaluationSpec | None = None,
) -> Evaluation:
    """Return the named metrics of a model, with units, counts and 95 % intervals.

    The same model, text, settings and machine give the same numbers; only `seconds` and `cost`
    differ. Every name is checked before anything is measured.
    """
    require_metrics(metrics)
    spec = EvaluationSpec() if spec is None else spec
    require_context(model, max(spec.max_length, *(spec.retrieval_lengths or (0,))))
    case = Case(model, tokenizer, store, spec)
    found: dict[str, Measurement] = {}
    seconds: dict[str, float] = {}
    for name in dict.fromkeys(metrics):
        start = time.perf_counter()
        measured: object = METRICS[name].measure(case)
        if not isinstance(measured, Measurement):
            raise SpecError(
                f"metric {name!r} must return a Measurement of hylorada.records.evaluations; "
                f"got a {type(measured).__name__}"
            )
        found[name] = measured
        seconds[name] = round(time.perf_counter() - start, 3)
    key_values = None if spec.key_values is None else spec.key_values.name
    return Evaluation(
        metrics=found,
        settings=asdict(spec) | {"key_values": key_values},
        data={
            "fingerprint": store.fingerprint,
            "documents": len(store),
            "tokens": len(store.tokens),
        },
        seconds=seconds,
    )


def require_metrics(metrics: Sequence[str]) -> None:
    """Raise `SpecError` naming the nearest known metric if one is unknown."""
    if not metrics:
        raise SpecError(f"name at least one metric of {', '.join(METRICS)}")
    for name in metrics:
        METRICS[name]
