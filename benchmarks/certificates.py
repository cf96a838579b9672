"""What is computed from the losses of a compressed adapter: certificates, beside what others give.

The published procedure takes an 11-level uniform file, 10,000 documents drawn with replacement,
Hoeffding's inequality and the best of eight smoothing values (Lotfi et al. 2024).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hylorada.benches.surroundings import best_device
from hylorada.bounds import (
    Evidence,
    Ledger,
    betting,
    empirical_bernstein,
    finite_hypothesis,
    loss_range,
    mixture_bits,
    relative_gain,
    subsampled,
    supermartingale_bernstein,
)
from hylorada.bounds.levels import level_of
from hylorada.evaluation.risk import (
    TokenRisks,
    countable_documents,
    drawn_documents,
    token_risks,
)
from hylorada.experiments.certify import certificate_of
from hylorada.experiments.compress import describe, read_message
from hylorada.experiments.measuring import (
    CertifySpec,
    Decoded,
    attach,
    evidence_of,
    reading_of,
)
from hylorada.models.pretrained import LoadedModel
from hylorada.text.store import TokenStore
from hylorada.units import Bits, Nats, nats_from_bits

DEVICE = best_device()
SMOOTHING = (1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25, 0.5)
PUBLISHED_DRAWS = 10_000
PUBLISHED_EXTRA_BITS = 7 + 3  # configuration, and one of eight smoothing values


def certified(
    file: Path,
    decoded: Decoded,
    stores: dict[str, TokenStore],
    frozen: dict[str, tuple[TokenRisks, float]],
    adapted: dict[str, tuple[TokenRisks, float]],
    spec: CertifySpec,
    out: Path,
    data: str,
) -> dict[str, Any]:
    """Write both certificates of a file and return its line of the curve."""
    message = read_message(file)
    entry: dict[str, Any] = {
        "file": file.name,
        "bits": message.counted_bits,
        "dim": len(message.quantised.symbols),
        "levels": message.quantised.codebook.levels,
        "seconds": adapted["train"][1],
    }
    compared = decoded.prior.kind == "pretrained"
    evidence = {
        split: evidence_of(
            replace(adapted[split][0], frozen=frozen[split][0].adapted if compared else None),
            stores[split],
            reading_of(stores[split], spec),
        )
        for split in stores
    }
    for level in ("document", "token"):
        certificate = certificate_of(
            file,
            decoded,
            stores["train"],
            evidence["train"],
            replace(spec, level=level),
            data,
        )
        path = out / f"{file.stem}.{level}.json"
        path.write_text(certificate.to_json())
        entry[level] = {
            one.name: {"bound": one.bound, "measured": one.measured, **one.settings}
            for one in certificate.statements
        }
        entry[level]["held_out"] = held_out(
            evidence["test"], level, certificate.headline.settings["weight"]
        )
    if compared:
        ledger = Ledger(message_bits=message.counted_bits, choices=spec.paid())
        entry["inequalities"] = inequalities(evidence["train"], ledger.complexity)
    return entry


def held_out(evidence: Evidence, level: str, weight: float) -> dict[str, float]:
    """Return the losses, and the gain of the certified mixture, on documents nobody trained on."""
    at = level_of(level, evidence)
    adapted = at.bits(evidence.adapted)
    if evidence.frozen is None:
        return {"loss": at.mean(mixture_bits(adapted, at.uniform_bits(), weight))}
    frozen = at.bits(evidence.frozen)
    return {
        "gain": at.mean(frozen - mixture_bits(adapted, frozen, weight)),
        "frozen_loss": at.mean(frozen),
        "adapted_loss": at.mean(adapted),
    }


def inequalities(evidence: Evidence, complexity: Nats) -> dict[str, float]:
    """Return what each inequality certifies as gain on unseen documents, in bits per token.

    The first three bound the mixture with equal weights at every token, between -1 and 1 bit.
    """
    assert evidence.frozen is not None
    mixed = mixture_bits(evidence.adapted, evidence.frozen, 0.5)
    tokens = (mixed - evidence.frozen).astype(np.float64)
    each = np.clip(evidence.of_documents(tokens) / evidence.lengths, -1.0, 1.0)
    whole = relative_gain(
        evidence.of_documents(evidence.adapted),
        evidence.of_documents(evidence.frozen),
        evidence.lengths,
        complexity,
    )
    return {
        "measured, mixture of tokens": -float(each.mean()),
        "Hoeffding": -finite_hypothesis(float(each.mean()), complexity, each.size, 2.0),
        "empirical Bernstein": -empirical_bernstein(each, complexity, 2.0),
        "supermartingale": -supermartingale_bernstein(each, complexity, lower=-1.0, upper=1.0),
        "bet": -betting(each, complexity, upper=1.0),
        "bet on a mixture of documents": whole.certified,
    }


def published(
    file: Path, loaded: LoadedModel, store: TokenStore, spec: CertifySpec, result: dict[str, Any]
) -> dict[str, Any]:
    """Return the published bound of a uniform file, and how much of its gap ours closes."""
    message = read_message(file)
    bits = float(describe(message)["published_estimate_bits"])
    decoded = attach(message, loaded, spec, "")
    documents, draws = drawn_documents(store, PUBLISHED_DRAWS, seed=0)
    risks = token_risks(decoded.model, store, documents, decoded.risk)
    decoded.model.unload()
    found = published_bound(
        risks, draws, population=countable_documents(store).size, code_bits=bits
    )
    ours = min((entry["document"]["loss"] for entry in result["files"]), key=lambda e: e["bound"])
    gap = found["bound"] - found["risk"]
    return {
        "file": file.name,
        "bits": bits,
        **found,
        "our_bound": ours["bound"],
        "our_risk": ours["measured"],
        "share_of_the_gap_closed": (found["bound"] - ours["bound"]) / gap,
    }


def published_bound(
    risks: TokenRisks,
    draws: np.ndarray,
    *,
    population: int,
    code_bits: float,
) -> dict[str, float]:
    """Return the best of the published bounds over smoothing values, with its empirical risk."""
    complexity = nats_from_bits(Bits(code_bits + PUBLISHED_EXTRA_BITS))
    starts = np.cumsum(risks.lengths) - risks.lengths
    found = []
    for alpha in SMOOTHING:
        share = (1 - alpha) * np.exp2(-risks.adapted.astype(np.float64))
        bits = -np.log2(share + alpha / risks.vocabulary)
        each = np.repeat(np.add.reduceat(bits, starts) / risks.lengths, draws)
        bound = subsampled(
            float(each.mean()),
            complexity,
            population,
            int(draws.sum()),
            loss_range(alpha, risks.vocabulary),
        )
        found.append({"bound": bound, "risk": float(each.mean()), "alpha": alpha})
    return min(found, key=lambda one: one["bound"])
