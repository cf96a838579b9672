"""What a run ends in where a study asks for it: a compressed file, a certificate, a record.

The record says what figures need: bits, the risk before and after quantisation on the same
documents, the bound, and how the coordinates were divided between A and B.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hylorada.bounds.certificate import Certificate, measured
from hylorada.bounds.statements import GAIN, LOSS, Statement
from hylorada.errors import SpecError
from hylorada.evaluation.risk import countable_documents
from hylorada.experiments.certify import certificate_of, identity_of, remove_shards
from hylorada.experiments.compress import CompressionSpec, load_adapter, read_message
from hylorada.experiments.config import TrainConfig
from hylorada.experiments.kept import Kept
from hylorada.experiments.measuring import (
    CertifySpec,
    Decoded,
    Reading,
    attach,
    evidence_of,
    measure,
    read_risks,
    reading_of,
)
from hylorada.files import write_atomically
from hylorada.subspace.core import Subspace
from hylorada.subspace.trace import find_subspace
from hylorada.text.store import TokenStore

SCHEMA = 1
MESSAGE, CERTIFICATE, SHARDS = "adapter.hyl", "certificate.json", "certificate.json.partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpec:
    """How a run is compressed and certified, at document level on its training text.

    Attributes:
        documents: Documents drawn with replacement; all are read where there are no more.
        choices: What the study chooses by looking, with the number of options each.
        delta: Probability with which a certificate may be wrong.
        seed: Seed of the draws: the same documents for every run.
    """

    documents: int = 10_000
    choices: dict[str, int] = field(default_factory=dict)
    delta: float = 0.05
    seed: int = 0
    compression: CompressionSpec = field(default_factory=CompressionSpec)

    def __post_init__(self) -> None:
        """Check every field."""
        if self.documents < 2:
            raise SpecError(f"certified documents must be at least 2; got {self.documents}")

    def certify_spec(self, config: TrainConfig) -> CertifySpec:
        """Return how a run's file is certified: in the precision and context of its training."""
        return CertifySpec(
            lines=config.data.lines,
            delta=self.delta,
            choices=self.choices,
            max_length=config.data.length,
            dtype=config.training.precision,
            seed=self.seed,
            progress=False,
        )


def certify_run(
    folder: Path, config: TrainConfig, spec: CertificateSpec, cost: dict[str, Any], kept: Kept
) -> dict[str, Any]:
    """Certify the compressed adapter of a run in its folder, and return the record of both.

    The stored adapter is read on the same documents, so that what quantisation costs is known.
    """
    how, sha256 = spec.certify_spec(config), kept.weights(config)
    base, file = kept.model(config), folder / MESSAGE
    store = kept.certified_text(config, how, base.tokenizer)
    how = drawn(how, spec.documents, store)
    reading = reading_of(store, how)
    decoded = attach(read_message(file), base, how, sha256)
    shards, key = folder / SHARDS, identity_of(file)
    evidence = measure(decoded, store, reading, shards=shards, key=key)
    certificate = certificate_of(file, decoded, store, evidence, how, config.data.source)
    subspace = subspace_of(decoded)
    quantised = list(subspace.shares().values())
    before = _unquantised(folder, decoded, store, reading, key)
    allocation = allocation_of(subspace) | {"gamma_quantised": quantised}
    decoded.model.unload()
    write_atomically(folder / CERTIFICATE, certificate.to_json())
    remove_shards(shards)
    remove_shards(_shards_before(folder))
    return record(certificate, cost, before) | {"allocation": allocation}


def drawn(spec: CertifySpec, documents: int, store: TokenStore) -> CertifySpec:
    """Return the specification with as many draws as asked for, or with all documents."""
    samples = documents if countable_documents(store).size > documents else None
    return replace(spec, samples=samples)


def record(
    certificate: Certificate, cost: dict[str, Any], before: dict[str, float]
) -> dict[str, Any]:
    """Return the numbers of a certificate and its file; risks and bounds in bits per token."""
    bound, gain = (_statement(certificate, name) for name in (LOSS, GAIN))
    assert bound is not None, "every certificate bounds the loss"
    read = certificate.data["samples"] or certificate.data["documents_read"]
    after = certificate.measured["adapted"]
    risk = _estimate(after, read)
    return {
        "schema": SCHEMA,
        "file": MESSAGE,
        "certificate": CERTIFICATE,
        "sentence": certificate.sentence,
        "bits": cost["counted_bits"],
        "paid_bits": certificate.ledger.bits,
        "file_bytes": cost["file_bytes"],
        "compression": cost,
        "risk": risk,
        "risk_unquantised": _estimate(before, read),
        "bound": bound.bound,
        "vacuous": bound.vacuous,
        "complexity": bound.bound - risk["value"],
        "gain": None if gain is None else {"bound": gain.bound, "measured": gain.measured},
        "documents": read,
        "population": certificate.data["documents"],
        "delta": certificate.delta,
    }


def subspace_of(decoded: Decoded) -> Subspace:
    """Return the coordinates of a decoded model."""
    found = find_subspace(decoded.model)
    assert found is not None, "only SubLoRA adapters are compressed"
    return found


def allocation_of(subspace: Subspace) -> dict[str, Any]:
    """Return how a subspace divides its coordinates: B's share, and γ of each gate by layer."""
    allocation, shares = subspace.allocation, subspace.shares()
    sizes = [piece.size for piece in allocation.slices]
    if shares:
        of_b = sum(g * d for g, d in zip(shares.values(), sizes, strict=True)) / sum(sizes)
    elif allocation.spec.mode == "fixed":
        of_b = allocation.spec.split()[1] / allocation.spec.dim
    else:  # every coordinate moves both; B has its share of the parameters
        of_b = 1 - allocation.a_size / allocation.full
    return {
        "share_of_b": of_b,
        "layers": list(shares),
        "slices": sizes,
        "gamma": list(shares.values()),
    }


def _unquantised(
    folder: Path, decoded: Decoded, store: TokenStore, reading: Reading, key: str
) -> dict[str, float]:
    """Return the plain losses of the adapter as it was trained, which the model then holds."""
    stored, subspace = load_adapter(str(folder)), subspace_of(decoded)
    with torch.no_grad():
        subspace.vector.copy_(torch.from_numpy(stored.vector))
        if isinstance(subspace.gates, Tensor):
            subspace.gates.copy_(torch.from_numpy(stored.gates))
    risks = read_risks(decoded, store, reading, shards=_shards_before(folder), key=f"{key}/before")
    found: dict[str, float] = measured(evidence_of(risks, store, reading))["adapted"]
    return found


def _shards_before(folder: Path) -> Path:
    return folder / f"{SHARDS}-before"


def _statement(certificate: Certificate, name: str) -> Statement | None:
    return next((one for one in certificate.statements if one.name == name), None)


def _estimate(means: dict[str, float], documents: int) -> dict[str, float]:
    """Return the mean over documents of bits per token, with its standard error."""
    spread = means["standard_deviation_over_documents"]
    return {
        "value": means["bits_per_token_over_documents"],
        "standard_error": spread / math.sqrt(max(1, documents)),
    }
