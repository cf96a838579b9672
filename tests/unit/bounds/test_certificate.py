import json
from dataclasses import replace

import pytest

from hylorada.bounds import Certificate, Choice, Evidence, Ledger, Prior, issue, recompute
from hylorada.errors import SpecError
from tests.unit.bounds.losses import evidence

LEDGER = Ledger(message_bits=200, choices=(Choice(name="dimension", options=4),))
PRETRAINED = Prior(kind="pretrained", name="smollm2")


def issued(measured: Evidence, ledger: Ledger = LEDGER, **settings: object) -> Certificate:
    chosen = {"level": "document", "prior": PRETRAINED} | settings
    prior = chosen.pop("prior")
    return issue(
        measured,
        ledger,
        prior,
        message={"file": "adapter.hyl"},
        model={"base": "smollm2"},
        data={"documents_read": measured.lengths.size},
        code={},
        **chosen,
    )


def test_a_certificate_survives_its_file() -> None:
    certificate = issued(evidence())
    assert Certificate.from_json(certificate.to_json()) == certificate


def test_the_headline_of_fine_tuning_is_the_gain() -> None:
    certificate = issued(evidence())
    assert certificate.sentence == (
        "On unseen documents of this kind the adapted model is better than the frozen one by at "
        f"least {certificate.headline.bound:.3f} bits per token, with probability 95 %."
    )


def test_the_token_level_says_whose_tokens() -> None:
    sentence = issued(evidence(), level="token").sentence
    assert sentence.startswith("On fresh tokens after the contexts of this corpus the adapted")


def test_a_model_from_a_seed_states_its_loss() -> None:
    prior = Prior(kind="random", name="random:gpt2-small,seed=137")
    certificate = issued(evidence(frozen=False), prior=prior, delta=0.1)
    assert certificate.sentence == (
        "On unseen documents of this kind the model needs at most "
        f"{certificate.headline.bound:.3f} bits per token, with probability 90 %."
    )
    assert "configuration and seed of random:gpt2-small,seed=137" in certificate.assumptions[0]


def test_what_is_not_certified_is_said_plainly() -> None:
    dear = Ledger(message_bits=10**7)
    assert issued(evidence(), dear).sentence.startswith("No gain is certified (0.3")
    assert issued(evidence(frozen=False), dear).sentence.startswith("Nothing is certified")


def test_the_caveats_are_part_of_the_certificate() -> None:
    stored = json.loads(issued(evidence()).to_json())
    assumptions = stored["assumptions"]
    assert assumptions[0].startswith("smollm2 was trained without these documents")
    assert assumptions[1] == "The documents are independent draws from one distribution."
    assert assumptions[2].endswith("the ledger pays for: dimension.")
    assert "Nothing is assumed" in issued(evidence(), level="token").assumptions[1]


def test_plain_losses_stand_in_their_three_units() -> None:
    measured = evidence()
    stored = issued(measured).measured["adapted"]
    total = float(measured.adapted.sum(dtype="float64"))
    assert stored["bits_per_token_over_tokens"] == pytest.approx(total / measured.adapted.size)
    assert stored["bits_per_byte"] == pytest.approx(total / measured.byte_count)
    each = measured.of_documents(measured.adapted) / measured.lengths
    assert stored["bits_per_token_over_documents"] == pytest.approx(each.mean())


# Verification


def test_the_same_losses_confirm_to_the_last_bit() -> None:
    verdict = recompute(issued(evidence()), evidence())
    assert verdict.confirmed
    assert verdict.sentence == "confirmed: every loss is the same to the last bit"


def test_another_machine_s_rounding_is_confirmed_and_told() -> None:
    measured = evidence()
    rounded = replace(measured, adapted=measured.adapted + 0.002)
    verdict = recompute(issued(measured), rounded)
    assert verdict.confirmed
    assert verdict.sentence == "confirmed: no number differs by more than 0.002"


def test_other_losses_are_named_in_one_line() -> None:
    measured = evidence()
    worse = replace(measured, adapted=measured.adapted + 0.1)
    verdict = recompute(issued(measured), worse)
    assert not verdict.confirmed
    assert verdict.sentence.startswith("differs: the measured gain is 0.2")


def test_evidence_of_another_kind_is_told_apart() -> None:
    verdict = recompute(issued(evidence()), evidence(frozen=False))
    assert verdict.sentence == ("differs: the statements are not those of this kind of certificate")


# Refusals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not a certificate of hylorada bound"),
        ("[]", "not a certificate of hylorada bound"),
        ("[" * 100_000, "not a certificate of hylorada bound"),
        ('{"schema": 1}', "not a certificate of hylorada bound"),
        ('{"schema": 7}', "a certificate of schema 1 is needed; got 7"),
    ],
)
def test_files_that_are_no_certificate_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Certificate.from_json(text)


def test_impossible_certificates_are_refused() -> None:
    good = issued(evidence(50))
    with pytest.raises(SpecError, match="level must be one of document, token; got 'word'"):
        replace(good, level="word")
    with pytest.raises(SpecError, match="must state something"):
        replace(good, statements=())
    with pytest.raises(SpecError, match="a prior must be one of pretrained, random; got 'magic'"):
        Prior(kind="magic", name="x")
