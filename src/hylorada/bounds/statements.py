"""The statements of a certificate, computed from evidence; all of them hold at once."""

import math
from dataclasses import asdict, dataclass, field

from hylorada.bounds.betting import STAKES
from hylorada.bounds.complexity import Choice, Ledger
from hylorada.bounds.evidence import TOP, Evidence
from hylorada.bounds.levels import Level, level_of
from hylorada.bounds.relative import WEIGHTS, Gain, mixture_bits
from hylorada.units import Nats

FREE = Nats(0.0)
# The frozen model's share of the uniform distribution where an adapted loss is built on its own.
UNIFORM_WEIGHT = 2.0**-4
BITS, SHARE = "bits/token", "share of tokens"
GAIN, LOSS, FROZEN_LOSS = "gain", "loss", "frozen_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One certified number beside what was measured.

    Attributes:
        name: What is bounded.
        bound: The certified value: at least this for a gain, at most this for anything else.
        measured: The same quantity on the documents read.
        unit: Unit of both.
        vacuous: Whether the bound says no more than could be said without any data.
        settings: Weights and stakes that were chosen, each out of a grid that is paid for.
    """

    name: str
    bound: float
    measured: float
    unit: str
    vacuous: bool
    settings: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return plain data for a certificate."""
        return asdict(self)


def statements(
    evidence: Evidence, ledger: Ledger, *, level: str, delta: float = 0.05
) -> tuple[Statement, ...]:
    """Return all that is certified; with probability `1 - delta` every one of them is true.

    With a frozen model: the gain over it, its own loss, and the loss of the adapted one, which is
    the frozen one's bound less a certified gain. Without: the loss alone. Always top-k errors.

    Args:
        evidence: The losses measured.
        ledger: What the model and the choices cost.
        level: "document" for unseen documents; "token" for fresh tokens at the corpus' contexts.
        delta: Probability with which any of the statements may be wrong.
    """
    measured_at = level_of(level, evidence)
    share = delta / statement_count(evidence)
    adapted = measured_at.bits(evidence.adapted)
    uniform = measured_at.uniform_bits()
    log_vocabulary = math.log2(evidence.vocabulary)
    found = []
    if evidence.frozen is None:
        gain = measured_at.gain(adapted, uniform, ledger.complexity, WEIGHTS, share)
        found.append(_loss_statement(LOSS, gain, log_vocabulary))
    else:
        frozen = measured_at.bits(evidence.frozen)
        gain = measured_at.gain(adapted, frozen, ledger.complexity, WEIGHTS, share)
        found.append(_gain_statement(gain))
        of_frozen = measured_at.gain(frozen, uniform, FREE, (UNIFORM_WEIGHT,), share)
        found.append(_loss_statement(FROZEN_LOSS, of_frozen, log_vocabulary))
        smoothed = mixture_bits(frozen, uniform, UNIFORM_WEIGHT)
        over = measured_at.gain(adapted, smoothed, ledger.complexity, WEIGHTS, share)
        found.append(_chained_statement(of_frozen, over, log_vocabulary))
    found.extend(_error_statements(measured_at, evidence, ledger.complexity, share))
    return tuple(found)


def statement_count(evidence: Evidence) -> int:
    """Return among how many statements `delta` is shared."""
    return len(TOP) + (1 if evidence.frozen is None else 3)


def inner_choices(evidence: Evidence) -> tuple[Choice, ...]:
    """Return what the bounds choose themselves; each statement pays for it inside its formula."""
    return (
        Choice(name="stake of the bet", options=STAKES.size),
        Choice(name="weight of the reference in the mixture", options=len(WEIGHTS)),
        Choice(name="statements that hold at once", options=statement_count(evidence)),
    )


def _gain_statement(gain: Gain) -> Statement:
    return Statement(
        name=GAIN,
        bound=gain.certified,
        measured=gain.measured,
        unit=BITS,
        vacuous=gain.certified <= 0,
        settings={"weight": gain.weight, "stake": gain.stake},
    )


def _loss_statement(name: str, over_uniform: Gain, log_vocabulary: float) -> Statement:
    return Statement(
        name=name,
        bound=log_vocabulary - over_uniform.certified,
        measured=log_vocabulary - over_uniform.measured,
        unit=BITS,
        vacuous=over_uniform.certified <= 0,
        settings={"weight": over_uniform.weight, "stake": over_uniform.stake},
    )


def _chained_statement(frozen: Gain, over_frozen: Gain, log_vocabulary: float) -> Statement:
    """Return the adapted loss: `log2 V` less both certified gains, one on top of the other."""
    certified = frozen.certified + over_frozen.certified
    return Statement(
        name=LOSS,
        bound=log_vocabulary - certified,
        measured=log_vocabulary - frozen.measured - over_frozen.measured,
        unit=BITS,
        vacuous=certified <= 0,
        settings={"weight": over_frozen.weight, "stake": over_frozen.stake},
    )


def _error_statements(
    level: Level, evidence: Evidence, complexity: Nats, share: float
) -> list[Statement]:
    found = []
    for top in TOP:
        measured, bound = level.error(evidence.misses(top), complexity, share)
        found.append(
            Statement(
                name=f"top_{top}_error",
                bound=bound,
                measured=measured,
                unit=SHARE,
                vacuous=bound >= 1,
            )
        )
    return found
