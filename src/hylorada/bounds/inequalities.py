"""Inequalities by name: each bounds the mean of values that are not negative, from below.

A gain over a reference, a loss and an error rate all come down to such a mean (`statements.py`), so
an inequality that can bound it can certify everything.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float, Float64

from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.registry import Registry
from hylorada.units import Nats

LEVELS = ("document", "token")
# Half octaves of bits.
CAPS = 2.0 ** (np.arange(-12, 12) / 2)
# Enough values to choose a cap or a stake by; the bound itself reads them all.
SCOUTED = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values that are not negative, and what is known of them.

    Attributes:
        values: One for each document, or for each token in the order of the text.
        upper: Number that no value can exceed, if one is known.
        population: Documents of the corpus that the values were drawn from, with replacement;
            None if they are the whole corpus.
        compared: Numbers measured on the same draws, of which the best is reported.
    """

    values: Float[np.ndarray, " count"]
    upper: float | None = None
    population: int | None = None
    compared: int = 1


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound on a mean, in the unit of the values, and what was chosen to get it."""

    mean_at_least: float
    settings: dict[str, float]


Bound = Callable[[Sample, Nats, float], LowerBound]
UpperBound = Callable[[Sample, Nats, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inequality:
    """A lower bound on a mean, from a sample, a complexity in nats and delta.

    It holds with probability at least `1 - delta` for all models at once, where the complexity is
    -ln of the model's prior probability, and pays for what it chooses itself.

    Attributes:
        name: What users type.
        words: One line that says what it is.
        choices: What it chooses by looking at the values, with the number of options.
        of_documents: Bounds the true mean, from independent values.
        of_tokens: Bounds the mean of the values' expectations, each given the values before; None
            for an inequality that needs independent values.
    """

    name: str
    words: str
    choices: Mapping[str, int]
    of_documents: Bound
    of_tokens: Bound | None

    def at(self, level: str) -> Bound:
        """Return the bound at document or token level, or raise `SpecError` if there is none."""
        require_one_of("level", level, LEVELS)
        found = self.of_documents if level == "document" else self.of_tokens
        if found is None:
            able = ", ".join(one.name for one in INEQUALITIES.values() if one.of_tokens is not None)
            raise SpecError(
                f"{self.name} needs independent values, which tokens are not; take one of {able} "
                "at token level"
            )
        return found


INEQUALITIES: Registry[Inequality] = Registry(
    "inequality",
    "hylorada.inequalities",
    "hylorada.bounds.betting",
    "hylorada.bounds.empirical_bernstein",
    "hylorada.bounds.hoeffding",
    "hylorada.bounds.kl_inverse",
)


def clipped(
    name: str, words: str, *, of_documents: UpperBound, of_tokens: UpperBound | None
) -> Inequality:
    """Return the inequality that upper bounds on the mean of losses in [0, 1] give.

    Clipping makes no value larger, so a lower bound on the clipped mean bounds the mean itself. The
    best of `CAPS` is taken and paid for; where the values' upper end is known, it is the cap.
    """
    return Inequality(
        name=name,
        words=words,
        choices={"cap of the values": CAPS.size},
        of_documents=partial(_with_best_cap, of_documents),
        of_tokens=None if of_tokens is None else partial(_with_best_cap, of_tokens),
    )


def _with_best_cap(bound: UpperBound, sample: Sample, complexity: Nats, delta: float) -> LowerBound:
    require_values(sample.values)
    caps = CAPS if sample.upper is None else np.array([sample.upper])
    scouts = scouts_of(sample.values)
    paid, share = complexity + math.log(caps.size), scouts.size / sample.values.size

    def reached(values: Float[np.ndarray, " count"], cap: float, part: float) -> float:
        rates = 1 - np.minimum(values, cap, dtype=np.float64) / cap
        losses = replace(sample, values=rates, compared=sample.compared * caps.size)
        return cap * (1 - bound(losses, Nats(part * paid), delta**part))

    # Some of the values pay that part of the price.
    cap = max(caps.tolist(), key=lambda one: reached(scouts, one, share))
    return LowerBound(max(0.0, reached(sample.values, cap, 1.0)), {"cap": cap})


def of_mean(bound: Callable[..., float]) -> UpperBound:
    """Return the upper bound of a formula that reads the mean and the size of a sample alone."""
    return lambda losses, complexity, delta: bound(
        float(losses.values.mean()),
        complexity,
        losses.values.size,
        delta=delta,
        population=losses.population,
        compared=losses.compared,
    )


def scouts_of(values: Float[np.ndarray, " count"]) -> Float64[np.ndarray, " scouts"]:
    """Return some of many values, in their order: any choice made by them is valid."""
    return values[:: max(1, values.size // SCOUTED)].astype(np.float64)


def steps(
    complexity: Nats, samples: int, delta: float, population: int | None, compared: int
) -> list[tuple[Nats, int]]:
    """Return what each step to the truth may use of -ln(probability), in nats, and its entries.

    A corpus that is read as a whole takes one step. Draws take a second one before, from their mean
    to the corpus', and share `delta`: `s = n / (n + N)` for the corpus' step, `1 - s` for theirs.
    """
    require(complexity=complexity, delta=delta)
    require_count("samples", samples)
    if population is None:
        return [(Nats(complexity + math.log(1 / delta)), samples)]
    require_count("population", population)
    require_count("compared", compared)
    share = samples / (samples + population)
    return [
        (Nats(math.log(compared) - math.log((1 - share) * delta)), samples),
        (Nats(complexity - math.log(share * delta)), population),
    ]


# What the arguments of bounds must satisfy, and the line for one that does not.
RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "delta": (
        lambda delta: 0 < delta < 1,
        "delta is a probability of failure, so it must lie strictly between 0 and 1; got {}; "
        "0.05 states 95 %",
    ),
    "complexity": (
        lambda nats: 0 <= nats < math.inf,
        "complexity is -ln of a prior probability, so it must be finite and not negative; "
        "got {} nats",
    ),
    "loss_range": (
        lambda width: 0 < width < math.inf,
        "loss_range must be positive and finite; got {}; smooth the predictions if their loss has "
        "no bound",
    ),
    "vocabulary": (lambda count: count >= 2, "vocabulary must be at least 2; got {}"),
    "risk": (math.isfinite, "risk must be a finite number; got {}"),
    "alpha": (lambda share: 0 < share < 1, "alpha must lie strictly between 0 and 1; got {}"),
    "weight": (
        lambda share: 0 < share < 1,
        "the reference's weight must lie strictly between 0 and 1; got {}",
    ),
}


def require(**arguments: float) -> None:
    """Raise `SpecError` unless each argument keeps its rule."""
    for name, value in arguments.items():
        holds, words = RULES[name]
        if not holds(value):
            raise SpecError(words.format(value))


def require_count(name: str, value: int, least: int = 1) -> None:
    """Raise `SpecError` unless a count reaches the least that the formula has a meaning for."""
    if value < least:
        raise SpecError(f"{name} must be at least {least}; got {value}")


def require_values(
    values: Float[np.ndarray, " count"], *, least: int = 1, upper: float = math.inf
) -> None:
    """Raise `SpecError` unless there are enough values, all of them finite, none above `upper`."""
    require_count("the number of values", values.size, least)
    if not bool(np.isfinite(values).all()):
        raise SpecError("every value must be finite; got infinity or nan; smooth the predictions")
    if upper < math.inf and float(values.max()) > upper:
        raise SpecError(f"no value may exceed upper, {upper}; got {float(values.max())}")
