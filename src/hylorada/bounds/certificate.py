"""From losses and what is paid to a certificate, and from it back to whether it holds."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from jaxtyping import Float

from hylorada.bounds.inequalities import INEQUALITIES, require, require_count
from hylorada.bounds.statements import BITS, GAIN, SHARE, WEIGHTS, Losses, statements
from hylorada.errors import SpecError
from hylorada.records.certificates import (
    Certificate,
    CertifiedText,
    Code,
    MeanLosses,
    Measured,
    MeasuredModel,
    MessageFile,
    PaidChoice,
    Payment,
    Prior,
    Statement,
)
from hylorada.units import Bits, nats_from_bits

# How far two machines may differ. Sums in another order change a loss by far less; bfloat16
# instead of float32 by a few thousandths of a bit.
TOLERANCE = {BITS: 0.01, SHARE: 0.005}
PLACES = {
    "document": "On unseen documents of this kind",
    "token": "On fresh tokens after the contexts of this corpus",
}
ASSUMPTIONS = {
    "document": "The documents are independent draws from one distribution.",
    "token": "Nothing is assumed about how tokens depend on each other; the order of the documents "
    "was fixed before they were seen, and nothing is said about other contexts.",
}


def prefix_free(length: int) -> Bits:
    """Return the bits of a string of `length` bits whose length is not known beforehand.

    The prior `2^-C / (C (C + 1))` for each string of C >= 1 bits sums to one. It exceeds the usual
    `C + 2 log2 C`, which sums to 1.64, by `log2(1 + 1/C)`. No message at all costs nothing: that is
    the frozen model, which has no choice in it.
    """
    if length < 0:
        raise SpecError(f"the length of a message must not be negative; got {length} bits")
    if length == 0:
        return Bits(0.0)
    return Bits(length + math.log2(length) + math.log2(length + 1))


def payment(message_bits: int, choices: Mapping[str, int] | None = None) -> Payment:
    """Return all that is paid before the first document is read; its `nats` are the complexity.

    Whatever the counted part of a message holds (levels, codebook, gates, coordinates) is paid by
    its bits, and how its numbers were found (learning rate, epochs, restarts) costs nothing: the
    bound holds for every message at once.

    Args:
        message_bits: Length of the message; 0 for a frozen model.
        choices: What the decoder needs beside it and was picked by looking, with the number of
            options that were fixed before: dimension, targets, rank, allocation, projection seed.
    """
    paid = paid_choices(choices or {})
    bits = Bits(prefix_free(message_bits) + math.fsum(choice.bits for choice in paid))
    return Payment(
        message_bits=message_bits,
        prefix_free_bits=prefix_free(message_bits),
        choices=paid,
        bits=bits,
        nats=nats_from_bits(bits),
        paid_inside_each_bound=[],
    )


def paid_choices(choices: Mapping[str, int]) -> list[PaidChoice]:
    """Return what naming one option of each choice costs."""
    paid = []
    for name, options in choices.items():
        require_count(f"the options of {name!r}", options)
        paid.append(PaidChoice(name=name, options=options, bits=math.log2(options)))
    return paid


def issue(
    losses: Losses,
    paid: Payment,
    prior: Prior,
    *,
    level: str,
    delta: float,
    inequality: str,
    message: MessageFile,
    model: MeasuredModel,
    data: CertifiedText,
    code: Code,
) -> Certificate:
    """Return the certificate that the losses support; see `Certificate` for the arguments."""
    require(delta=delta)
    found = statements(losses, paid, level=level, delta=delta, inequality=inequality)
    inside = {
        **INEQUALITIES[inequality].choices,
        "weight of the reference in the mixture": len(WEIGHTS),
        "statements that hold at once": len(found),
    }
    return Certificate(
        sentence=_sentence(level, delta, found[0], data.documents_read),
        level=level,
        delta=delta,
        statements=found,
        assumptions=_assumptions(prior, level, paid),
        prior=prior,
        ledger=msgspec.structs.replace(paid, paid_inside_each_bound=paid_choices(inside)),
        message=message,
        model=model,
        data=data,
        measured=measured(losses),
        code=code,
        inequality=inequality,
    )


def measured(losses: Losses) -> Measured:
    """Return the plain losses, in bits per token, and the hash of every loss."""

    def means(tokens: Float[np.ndarray, " tokens"]) -> MeanLosses:
        each = losses.of_documents(tokens) / losses.lengths_of_documents()
        return MeanLosses(
            bits_per_token_over_documents=float(each.mean()),
            standard_deviation_over_documents=float(each.std()),
            bits_per_token_over_tokens=float(tokens.mean(dtype=np.float64)),
            bits_per_byte=float(tokens.sum(dtype=np.float64)) / losses.byte_count,
        )

    digest = hashlib.sha256(losses.adapted.tobytes())
    if losses.frozen is not None:
        digest.update(losses.frozen.tobytes())
    digest.update(losses.ranks.tobytes())
    return Measured(
        adapted=means(losses.adapted),
        frozen=None if losses.frozen is None else means(losses.frozen),
        losses_sha256=digest.hexdigest(),
    )


def _sentence(level: str, delta: float, headline: Statement, documents_read: int) -> str:
    """Return the headline in words."""
    place, chance = PLACES[level], f"with probability {100 * (1 - delta):g} %"
    if headline.name != GAIN:
        if headline.vacuous:
            return "Nothing is certified: the bound is not below that of a uniform guess."
        return f"{place} the model needs at most {headline.bound:.3f} bits per token, {chance}."
    if headline.vacuous:
        return (
            f"No gain is certified ({headline.measured:.3f} bits per token were measured): the "
            f"file costs more than {documents_read:,} documents can pay for."
        )
    return (
        f"{place} the adapted model is better than the frozen one by at least "
        f"{headline.bound:.3f} bits per token, {chance}."
    )


def _assumptions(prior: Prior, level: str, paid: Payment) -> list[str]:
    """Return what must hold for the statements to be true, a sentence each."""
    if prior.kind == "random":
        of_prior = f"The weights are those that the configuration and seed of {prior.name} give."
    else:
        of_prior = (
            f"{prior.name} was trained without these documents, and was not chosen by looking at "
            "them. If it has seen them, the certificate is void."
        )
    tried = ", ".join(choice.name for choice in paid.choices) or "nothing"
    return [
        of_prior,
        ASSUMPTIONS[level],
        "The file's configuration was fixed before the data were seen, except for what the "
        f"ledger pays for: {tried}.",
        "The model certified is a mixture with its reference at the weight stated: over whole "
        "documents at document level, at every token at token level.",
    ]


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a certificate was confirmed, and the one line that says so or what differs."""

    confirmed: bool
    sentence: str


def differs(reason: str) -> Verification:
    """Return that a certificate is not confirmed."""
    return Verification(False, f"differs: {reason}")


def recompute(certificate: Certificate, losses: Losses) -> Verification:
    """Return whether measuring again supports every statement of a certificate.

    Numbers computed on the same machine are equal to the last bit; `TOLERANCE` says how far
    another machine's may lie apart.
    """
    again = issue(
        losses,
        payment(
            certificate.ledger.message_bits,
            {choice.name: choice.options for choice in certificate.ledger.choices},
        ),
        certificate.prior,
        level=certificate.level,
        delta=certificate.delta,
        inequality=certificate.inequality,
        message=certificate.message,
        model=certificate.model,
        data=certificate.data,
        code=certificate.code,
    )
    if [one.name for one in again.statements] != [one.name for one in certificate.statements]:
        return differs("the statements are not those of this kind of certificate")
    apart = 0.0
    for stated, found in zip(certificate.statements, again.statements, strict=True):
        for what in ("measured", "bound"):
            difference = abs(getattr(stated, what) - getattr(found, what))
            if not difference <= TOLERANCE[found.unit]:
                return differs(
                    f"the {what} {stated.name} is {getattr(found, what):.4f} "
                    f"{found.unit}, the certificate says {getattr(stated, what):.4f}"
                )
            apart = max(apart, difference)
    return _compared(certificate, again, apart)


def _compared(certificate: Certificate, again: Certificate, apart: float) -> Verification:
    """Return whether the rest of a certificate follows from the file and the losses, too."""
    read = certificate.data.documents_read
    told = _sentence(certificate.level, certificate.delta, certificate.headline, read)
    pairs: dict[str, tuple[object, object]] = {
        "sentence": (certificate.sentence, told),
        "list of assumptions": (certificate.assumptions, again.assumptions),
        "ledger": (certificate.ledger, again.ledger),
    }
    same = again.measured.losses_sha256 == certificate.measured.losses_sha256
    if same:  # another machine may find another weight or stake best
        pairs["list of statements"] = certificate.statements, again.statements
        pairs["mean of the losses"] = certificate.measured, again.measured
    for name, (stated, found) in pairs.items():
        if _text(stated) != _text(found):
            return differs(f"file, choices and losses give another {name}")
    if same:
        return Verification(True, "confirmed: every loss is the same to the last bit")
    return Verification(True, f"confirmed: no number differs by more than {apart:.2g}")


def _text(value: object) -> str:
    """Return a record as JSON with nine digits a number: machines differ in the last ones."""
    text = msgspec.json.encode(value)
    return json.dumps(json.loads(text, parse_float=lambda number: f"{float(number):.9g}"))
