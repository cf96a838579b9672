"""What a whole corpus would certify, told by some of its documents, and so what a bit is worth."""

from collections.abc import Sequence

from certificates import inequalities

from hylorada.bounds import Losses, Payment, payment
from hylorada.bounds.statements import WEIGHTS, Level, statement_count
from hylorada.compression import Candidate
from hylorada.units import Nats


def projected_gain(losses: Losses, paid: Payment, level: str) -> dict[str, float]:
    """Return the gain that the whole corpus would certify if all of it were like what was read.

    A bet on N entries pays `complexity / N` an entry. The entries read pay as much each, and the
    whole of the small rest (delta, weights, stakes), which makes the projection a little too low.
    """
    at = Level(level, losses)
    assert losses.frozen is not None
    complexity = Nats(paid.nats * share_read(losses, level))
    delta = 0.05 / statement_count(losses)
    gain = at.gain(at.bits(losses.adapted), at.bits(losses.frozen), complexity, WEIGHTS, delta)
    return {"bound": gain.certified, "measured": gain.measured, "weight": gain.settings["weight"]}


def share_read(losses: Losses, level: str) -> float:
    """Return which share of the corpus' documents or tokens was read."""
    if level == "document":
        return losses.lengths.size / losses.corpus_lengths.size
    return float(losses.lengths.sum() / losses.corpus_lengths.sum())


def projected_inequalities(losses: Losses, paid: Payment) -> dict[str, float]:
    """Return `inequalities` as the whole corpus would give them."""
    return inequalities(losses, Nats(paid.nats * share_read(losses, "document")))


def price_of_a_bit(losses: Losses, level: str, found: Sequence[Candidate]) -> tuple[float, float]:
    """Return the gain at no cost and what one more bit costs it, both in bits per token.

    The slope is taken where a candidate loses about a twentieth of the vector.
    """
    near = min(found, key=lambda one: abs(one.distortion - 0.05))
    bits = max(100, int(near.bits))
    at = (0, bits, bits + bits // 4)
    free, cheap, dear = (projected_gain(losses, payment(n), level) for n in at)
    return free["measured"], max(cheap["bound"] - dear["bound"], 0.0) / (at[2] - at[1])
