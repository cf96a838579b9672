"""A certificate as data: every number, what was assumed, what was paid, and what it is about."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from hylorada.bounds.complexity import Choice, Ledger
from hylorada.bounds.evidence import Evidence
from hylorada.bounds.levels import LEVELS, require_level
from hylorada.bounds.rules import require_delta
from hylorada.bounds.statements import GAIN, Statement, inner_choices, statements
from hylorada.errors import SpecError
from hylorada.names import require_one_of

SCHEMA = 1
PRIORS = ("pretrained", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where the message is decoded to: a pretrained model, or random weights from a seed."""

    kind: str
    name: str

    def __post_init__(self) -> None:
        require_one_of("a prior", self.kind, PRIORS)

    @property
    def assumption(self) -> str:
        """Return what must hold of the prior for the certificate to be true."""
        if self.kind == "random":
            return f"The weights are those that the configuration and seed of {self.name} give."
        return (
            f"{self.name} was trained without these documents, and was not chosen by looking at "
            "them. If it has seen them, the certificate is void."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What `hylorada bound` writes and `hylorada verify` checks.

    Attributes:
        level: "document" or "token".
        delta: Probability with which any of the statements may be wrong.
        prior: What the message is decoded with.
        ledger: What the model and the choices cost.
        inner: What the bounds chose themselves, paid for inside their formulas.
        statements: All that is certified.
        message: Name, size, hash and configuration of the file.
        model: Base, vocabulary, dtype, context and stride of the evaluation.
        data: Source, split, fingerprint and counts of the corpus and of what was read.
        measured: Plain losses without any bound, and the hash of all of them.
        code: Versions and the hash of the source that decides numbers.
    """

    level: str
    delta: float
    prior: Prior
    ledger: Ledger
    inner: tuple[Choice, ...]
    statements: tuple[Statement, ...]
    message: dict[str, Any]
    model: dict[str, Any]
    data: dict[str, Any]
    measured: dict[str, Any]
    code: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_delta(self.delta)
        require_level(self.level)
        if not self.statements:
            raise SpecError("a certificate must state something; got no statement")

    @property
    def headline(self) -> Statement:
        """Return the gain over the frozen model, or the loss where there is none."""
        return self.statements[0]

    @property
    def sentence(self) -> str:
        """Return the headline in words."""
        place = LEVELS[self.level].place
        chance = f"with probability {100 * (1 - self.delta):g} %"
        head = self.headline
        if head.name == GAIN and head.vacuous:
            return (
                f"No gain is certified ({head.measured:.3f} bits per token were measured): the "
                f"file costs more than {self.data['documents_read']:,} documents can pay for."
            )
        if head.name == GAIN:
            return (
                f"{place} the adapted model is better than the frozen one by at least "
                f"{head.bound:.3f} bits per token, {chance}."
            )
        if head.vacuous:
            return "Nothing is certified: the bound is not below that of a uniform guess."
        return f"{place} the model needs at most {head.bound:.3f} bits per token, {chance}."

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return what must hold for the statements to be true, a sentence each."""
        tried = ", ".join(choice.name for choice in self.ledger.choices) or "nothing"
        predictor = (
            "The model certified is a mixture with its reference at the weight stated: over whole "
            "documents at document level, at every token at token level."
        )
        return (
            self.prior.assumption,
            LEVELS[self.level].assumption,
            "The file's configuration was fixed before the data were seen, except for what the "
            f"ledger pays for: {tried}.",
            predictor,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schema": SCHEMA,
            "sentence": self.sentence,
            "level": self.level,
            "delta": self.delta,
            "statements": [statement.as_dict() for statement in self.statements],
            "assumptions": list(self.assumptions),
            "prior": asdict(self.prior),
            "ledger": {
                **self.ledger.as_dict(),
                "paid_inside_each_bound": [choice.as_dict() for choice in self.inner],
            },
            "message": self.message,
            "model": self.model,
            "data": self.data,
            "measured": self.measured,
            "code": self.code,
        }

    def to_json(self) -> str:
        """Return the certificate as a file holds it."""
        return json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Return the certificate in a file; anything else is refused in one line."""
        try:
            stored = json.loads(text)
            if stored["schema"] != SCHEMA:
                raise SpecError(
                    f"a certificate of schema {SCHEMA} is needed; got {stored['schema']}; verify "
                    "it with the version that wrote it"
                )
            return _read(stored)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, SpecError):
                raise
            raise SpecError(
                f"the file is not a certificate of hylorada bound ({type(error).__name__}: {error})"
            ) from error


def issue(
    evidence: Evidence,
    ledger: Ledger,
    prior: Prior,
    *,
    level: str,
    delta: float = 0.05,
    message: dict[str, Any],
    model: dict[str, Any],
    data: dict[str, Any],
    code: dict[str, Any],
) -> Certificate:
    """Return the certificate that the evidence supports; see `Certificate` for the arguments."""
    return Certificate(
        level=level,
        delta=delta,
        prior=prior,
        ledger=ledger,
        inner=inner_choices(evidence),
        statements=statements(evidence, ledger, level=level, delta=delta),
        message=message,
        model=model,
        data=data,
        measured=measured(evidence),
        code=code,
    )


def measured(evidence: Evidence) -> dict[str, Any]:
    """Return the plain losses, in bits per token, and the hash of every loss."""
    digest = hashlib.sha256()
    for values in (evidence.adapted, evidence.frozen, evidence.ranks):
        if values is not None:
            digest.update(values.tobytes())
    return {
        "adapted": _means(evidence, evidence.adapted),
        "frozen": None if evidence.frozen is None else _means(evidence, evidence.frozen),
        "losses_sha256": digest.hexdigest(),
    }


def _read(stored: dict[str, Any]) -> Certificate:
    ledger = stored["ledger"]
    return Certificate(
        level=stored["level"],
        delta=stored["delta"],
        prior=Prior(**stored["prior"]),
        ledger=Ledger(message_bits=ledger["message_bits"], choices=_choices(ledger["choices"])),
        inner=_choices(ledger["paid_inside_each_bound"]),
        statements=tuple(Statement(**statement) for statement in stored["statements"]),
        message=stored["message"],
        model=stored["model"],
        data=stored["data"],
        measured=stored["measured"],
        code=stored["code"],
    )


def _choices(stored: list[dict[str, Any]]) -> tuple[Choice, ...]:
    return tuple(Choice(name=one["name"], options=one["options"]) for one in stored)


def _means(evidence: Evidence, losses: Float[np.ndarray, " tokens"]) -> dict[str, float]:
    each = evidence.of_documents(losses) / evidence.lengths_of_documents()
    return {
        "bits_per_token_over_documents": float(each.mean()),
        "standard_deviation_over_documents": float(each.std()),
        "bits_per_token_over_tokens": float(losses.mean(dtype=np.float64)),
        "bits_per_byte": float(losses.sum(dtype=np.float64)) / evidence.byte_count,
    }
