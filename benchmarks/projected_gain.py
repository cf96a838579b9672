"""What a whole corpus would certify, told by some of its documents, and so what a bit is worth."""

from collections.abc import Sequence

from certificates import inequalities

from hylorada.bounds import Evidence, Ledger
from hylorada.bounds.levels import level_of
from hylorada.bounds.relative import WEIGHTS
from hylorada.bounds.statements import statement_count
from hylorada.compression import Candidate
from hylorada.evaluation.risk import TokenRisks, countable_documents, scored_lengths
from hylorada.experiments.measuring import Reading, evidence_of
from hylorada.text.store import TokenStore
from hylorada.units import Nats


def projected_gain(evidence: Evidence, ledger: Ledger, level: str) -> dict[str, float]:
    """Return the gain that the whole corpus would certify if all of it were like what was read.

    A bet on N entries pays `complexity / N` an entry. The entries read pay as much each, and the
    whole of the small rest (delta, weights, stakes), which makes the projection a little too low.
    """
    at = level_of(level, evidence)
    assert evidence.frozen is not None
    paid = Nats(ledger.complexity * share_read(evidence, level))
    delta = 0.05 / statement_count(evidence)
    gain = at.gain(at.bits(evidence.adapted), at.bits(evidence.frozen), paid, WEIGHTS, delta)
    return {"bound": gain.certified, "measured": gain.measured, "weight": gain.weight}


def share_read(evidence: Evidence, level: str) -> float:
    """Return which share of the corpus' documents or tokens was read."""
    if level == "document":
        return evidence.lengths.size / evidence.population
    return float(evidence.lengths.sum() / evidence.corpus_lengths.sum())


def projected_inequalities(evidence: Evidence, ledger: Ledger) -> dict[str, float]:
    """Return `inequalities` as the whole corpus would give them."""
    return inequalities(evidence, Nats(ledger.complexity * share_read(evidence, "document")))


def price_of_a_bit(
    evidence: Evidence, level: str, found: Sequence[Candidate]
) -> tuple[float, float]:
    """Return the gain at no cost and what one more bit costs it, both in bits per token.

    The slope is taken where a candidate loses about a twentieth of the vector.
    """
    near = min(found, key=lambda one: abs(one.distortion - 0.05))
    bits = max(100, int(near.bits))
    at = (0, bits, bits + bits // 4)
    free, cheap, dear = (projected_gain(evidence, Ledger(message_bits=n), level) for n in at)
    return free["measured"], max(cheap["bound"] - dear["bound"], 0.0) / (at[2] - at[1])


def plain_evidence(risks: TokenRisks, store: TokenStore) -> Evidence:
    """Return the losses of some documents of a corpus, in their order."""
    lengths = scored_lengths(store)[countable_documents(store)]
    return evidence_of(risks, store, Reading(risks.documents, None, lengths))
