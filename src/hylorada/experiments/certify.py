"""From a compressed adapter and a corpus to a certificate, and from a certificate to a verdict."""

import hashlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from hylorada.bounds.certificate import Certificate, issue
from hylorada.bounds.complexity import Ledger
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.verification import Verdict, recompute
from hylorada.errors import SpecError
from hylorada.evaluation.risk import countable_documents, scored_lengths
from hylorada.experiments.compress import read_message
from hylorada.experiments.identity import source_sha256
from hylorada.experiments.measuring import (
    CertifySpec,
    Decoded,
    decode,
    measure,
    reading_of,
    text_of,
)
from hylorada.files import write_atomically
from hylorada.text.store import TokenStore

PACKAGES = ("hylorada", "torch", "transformers", "peft", "numpy", "constriction")
# The source that decides what a file decodes to, what is measured and what is bounded.
SOURCE = (
    "adapters/*.py",
    "bounds/*.py",
    "compression/*.py",
    "evaluation/*.py",
    "experiments/certify.py",
    "experiments/compress.py",
    "experiments/measuring.py",
    "experiments/subject.py",
    "models/*.py",
    "subspace/*.py",
    "text/*.py",
)

# What of a certificate is read to measure again.
NEEDED = {
    "message": ("file", "sha256"),
    "model": ("base", "base_sha256", "max_length", "stride", "dtype"),
    "data": ("fingerprint", "split", "lines", "samples", "seed"),
}


def certify(file: Path, data: str, out: Path, spec: CertifySpec) -> Certificate:
    """Measure the model in a file on a corpus, write the certificate, and return it.

    Measured losses are kept beside `out` until it is written, so the same command resumes.
    """
    message = read_message(file)
    partial = out.with_name(f"{out.name}.partial")
    decoded = decode(message, spec)
    store = text_of(data, spec, decoded.tokenizer)
    reading = reading_of(store, spec)
    evidence = measure(decoded, store, reading, shards=partial, key=identity_of(file))
    certificate = certificate_of(file, decoded, store, evidence, spec, data)
    write_atomically(out, certificate.to_json())
    remove_shards(partial)
    return certificate


def identity_of(file: Path) -> str:
    """Return what decides the losses of a compressed adapter: its bytes and this source."""
    return f"{_sha256(file)}/{certifying_code()}"


def certificate_of(
    file: Path,
    decoded: Decoded,
    store: TokenStore,
    evidence: Evidence,
    spec: CertifySpec,
    data: str,
) -> Certificate:
    """Return the certificate of a file for what was measured with it."""
    message = read_message(file)
    return issue(
        evidence,
        Ledger(message_bits=message.counted_bits, choices=spec.paid()),
        decoded.prior,
        level=spec.level,
        delta=spec.delta,
        message={
            "file": file.name,
            "bytes": file.stat().st_size,
            "sha256": _sha256(file),
            "configuration_id": message.configuration_id,
        },
        model={
            "base": decoded.prior.name,
            "base_sha256": decoded.base_sha256,
            "vocabulary": evidence.vocabulary,
            "max_length": decoded.risk.max_length,
            "stride": decoded.risk.window_stride,
            "dtype": spec.dtype,
            "device": decoded.device_name,
        },
        data={
            "source": Path(data).name,
            "split": spec.split,
            "lines": spec.lines,
            "fingerprint": store.fingerprint,
            "documents": int(countable_documents(store).size),
            "tokens": int(scored_lengths(store).sum()),
            "documents_read": int(evidence.lengths.size),
            "tokens_read": int(evidence.lengths.sum()),
            "samples": spec.samples,
            "seed": spec.seed,
        },
        code={"packages": {name: version(name) for name in PACKAGES}, "sha256": certifying_code()},
    )


def verify(
    path: Path,
    data: str,
    *,
    file: Path | None = None,
    base: str | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Verdict:
    """Decode the file of a certificate, measure again, and return whether it is confirmed.

    Args:
        path: The certificate.
        data: The corpus it is about.
        file: The compressed adapter; None looks beside the certificate.
        base: The base model, if it has moved.
        device: Where to measure.
        progress: Whether to show progress, on standard error.
    """
    certificate = _read_certificate(path)
    file = path.parent / Path(certificate.message["file"]).name if file is None else file
    message = read_message(file)
    if (found := _sha256(file)) != certificate.message["sha256"]:
        return _differs(f"{file.name} is another file (SHA-256 {found[:12]}…)")
    bits = certificate.ledger.message_bits
    if message.counted_bits != bits:
        return _differs(f"the file costs {message.counted_bits} bits, the certificate says {bits}")
    base = certificate.model["base"] if base is None else base
    spec = replace(_spec_of(certificate), base=base, device=device, progress=progress)
    decoded = decode(message, spec)
    if decoded.base_sha256 != (meant := certificate.model["base_sha256"]):
        return _differs(
            f"the base model is another one (weights {decoded.base_sha256[:12]}…, the certificate "
            f"is about {meant[:12]}…)"
        )
    store = text_of(data, spec, decoded.tokenizer)
    if store.fingerprint != (meant := certificate.data["fingerprint"]):
        return _differs(
            f"the text is another one (fingerprint {store.fingerprint[:12]}…, the certificate is "
            f"about {meant[:12]}…)"
        )
    return recompute(certificate, measure(decoded, store, reading_of(store, spec)))


def _read_certificate(path: Path) -> Certificate:
    """Return the certificate in a file that says all that is needed to measure again."""
    if not path.is_file():
        raise SpecError(f"a certificate that hylorada bound wrote is needed; got {path}")
    certificate = Certificate.from_json(path.read_text(encoding="utf-8"))
    for part, names in NEEDED.items():
        if missing := [name for name in names if name not in getattr(certificate, part)]:
            raise SpecError(
                f"the file is not a certificate of hylorada bound; its {part} lacks "
                f"{', '.join(missing)}"
            )
    return certificate


def _differs(reason: str) -> Verdict:
    return Verdict(False, f"differs: {reason}")


def _spec_of(certificate: Certificate) -> CertifySpec:
    return CertifySpec(
        level=certificate.level,
        split=certificate.data["split"],
        lines=certificate.data["lines"],
        samples=certificate.data["samples"],
        delta=certificate.delta,
        max_length=certificate.model["max_length"],
        stride=certificate.model["stride"],
        dtype=certificate.model["dtype"],
        seed=certificate.data["seed"],
    )


def remove_shards(shards: Path) -> None:
    """Remove what was kept while a certificate was measured."""
    if shards.is_dir():
        for path in shards.glob("*.npz"):
            path.unlink()
        shards.rmdir()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def certifying_code() -> str:
    """Return a hash of the source that decides the numbers of a certificate."""
    return source_sha256(SOURCE)
