"""Does measuring again support a certificate?"""

from dataclasses import dataclass

from hylorada.bounds.certificate import Certificate, measured
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.statements import BITS, SHARE, statements

# How far two machines may differ. Sums in another order change a loss by far less; bfloat16
# instead of float32 by a few thousandths of a bit.
TOLERANCE = {BITS: 0.01, SHARE: 0.005}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a certificate was confirmed, and the one line that says so or what differs."""

    confirmed: bool
    sentence: str


def recompute(certificate: Certificate, evidence: Evidence) -> Verdict:
    """Return whether measuring again supports every statement of a certificate.

    Numbers computed on the same machine are equal to the last bit; `TOLERANCE` says how far
    another machine's may lie apart.
    """
    again = statements(
        evidence, certificate.ledger, level=certificate.level, delta=certificate.delta
    )
    if [one.name for one in again] != [one.name for one in certificate.statements]:
        return Verdict(False, "differs: the statements are not those of this kind of certificate")
    apart = 0.0
    for stated, found in zip(certificate.statements, again, strict=True):
        for what in ("measured", "bound"):
            difference = abs(getattr(stated, what) - getattr(found, what))
            if not difference <= TOLERANCE[found.unit]:
                return Verdict(
                    False,
                    f"differs: the {what} {stated.name} is {getattr(found, what):.4f} "
                    f"{found.unit}, the certificate says {getattr(stated, what):.4f}",
                )
            apart = max(apart, difference)
    if measured(evidence)["losses_sha256"] == certificate.measured["losses_sha256"]:
        return Verdict(True, "confirmed: every loss is the same to the last bit")
    return Verdict(True, f"confirmed: no number differs by more than {apart:.2g}")
