"""What is computed from the losses of a compressed adapter: certificates, beside what others give.

The published procedure takes an 11-level uniform file, 10,000 documents drawn with replacement,
Hoeffding's inequality and the best of eight smoothing values (Lotfi et al. 2024).
"""

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hylorada.bounds import (
    Losses,
    betting,
    empirical_bernstein,
    finite_hypothesis,
    loss_range,
    mixture_bits,
    payment,
    relative_gain,
    supermartingale_bernstein,
)
from hylorada.bounds.statements import Level
from hylorada.evaluation.risk import (
    TokenRisks,
    countable_documents,
    drawn_documents,
    token_risks,
)
from hylorada.files import write_record
from hylorada.jobs.certify import Reader, losses_of
from hylorada.jobs.compress import cost_of, read_message
from hylorada.models.pretrained import LoadedModel
from hylorada.specs.evaluation import CertifySpec
from hylorada.text.tokens import TokenStore
from hylorada.units import Bits, Nats, nats_from_bits
from hylorada_benches.surroundings import best_device

DEVICE = best_device()
SMOOTHING = (1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25, 0.5)
PUBLISHED_DRAWS = 10_000
PUBLISHED_EXTRA_BITS = 7 + 3  # configuration, and one of eight smoothing values


def certified(
    reader: Reader,
    stores: dict[str, TokenStore],
    frozen: dict[str, tuple[TokenRisks, float]],
    adapted: dict[str, tuple[TokenRisks, float]],
    out: Path,
    data: str,
) -> dict[str, Any]:
    """Write both certificates of a file and return its line of the curve."""
    file, message, spec = reader.file, reader.message, reader.spec
    entry: dict[str, Any] = {
        "file": file.name,
        "bits": message.counted_bits,
        "dim": len(message.quantised.symbols),
        "levels": message.quantised.codebook.levels,
        "seconds": adapted["train"][1],
    }
    compared = reader.prior.kind == "pretrained"
    losses = {
        split: losses_of(
            replace(adapted[split][0], frozen=frozen[split][0].adapted if compared else None),
            stores[split],
            spec,
        )
        for split in stores
    }
    for level in ("document", "token"):
        at_level = copy(reader)
        at_level.spec = replace(spec, level=level)
        certificate = at_level.certificate(losses["train"], stores["train"], data)
        write_record(out / f"{file.stem}.{level}.json", certificate)
        entry[level] = {
            one.name: {"bound": one.bound, "measured": one.measured, **one.settings}
            for one in certificate.statements
        }
        entry[level]["held_out"] = held_out(
            losses["test"], level, certificate.headline.settings["weight"]
        )
    if compared:
        paid = payment(message.counted_bits, spec.choices)
        entry["inequalities"] = inequalities(losses["train"], Nats(paid.nats))
    return entry


def held_out(losses: Losses, level: str, weight: float) -> dict[str, float]:
    """Return the losses, and the gain of the certified mixture, on documents nobody trained on."""
    at = Level(level, losses)
    adapted = at.bits(losses.adapted)

    def mean(bits: np.ndarray) -> float:
        return float(at.per_token(bits).mean(dtype=np.float64))

    if losses.frozen is None:
        return {"loss": mean(mixture_bits(adapted, at.uniform_bits(), weight))}
    frozen = at.bits(losses.frozen)
    return {
        "gain": mean(frozen - mixture_bits(adapted, frozen, weight)),
        "frozen_loss": mean(frozen),
        "adapted_loss": mean(adapted),
    }


def inequalities(losses: Losses, complexity: Nats) -> dict[str, float]:
    """Return what each inequality certifies as gain on unseen documents, in bits per token.

    The first three bound the mixture with equal weights at every token, between -1 and 1 bit.
    """
    assert losses.frozen is not None
    mixed = mixture_bits(losses.adapted, losses.frozen, 0.5)
    tokens = (mixed - losses.frozen).astype(np.float64)
    each = np.clip(losses.of_documents(tokens) / losses.lengths, -1.0, 1.0)
    whole = relative_gain(
        losses.of_documents(losses.adapted),
        losses.of_documents(losses.frozen),
        losses.lengths,
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
    bits = cost_of(message, file_bytes=0).published_estimate_bits
    reader = Reader(file, message, loaded, "", spec)
    documents, draws = drawn_documents(store, PUBLISHED_DRAWS, seed=0)
    risks = token_risks(reader.model, store, documents, reader.risk)
    reader.model.unload()
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
        bound = finite_hypothesis(
            float(each.mean()),
            complexity,
            int(draws.sum()),
            loss_range(alpha, risks.vocabulary),
            population=population,
        )
        found.append({"bound": bound, "risk": float(each.mean()), "alpha": alpha})
    return min(found, key=lambda one: one["bound"])
