from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hylorada.bounds import Certificate, Prior, payment, recompute
from hylorada.errors import SpecError
from hylorada.files import parsed_record, read_record, record_json
from tests.unit.bounds.losses import issued, losses

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
RELEASED = sorted(
    path
    for pattern in ("certificates/*.*.json", "studies/*/runs/*/certificate.json")
    for path in RESULTS.glob(pattern)
)


def test_a_certificate_survives_its_file() -> None:
    certificate = issued(losses(), inequality="hoeffding")
    assert parsed_record(record_json(certificate), Certificate, "a file") == certificate


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_certificates_of_earlier_versions_keep_every_field(path: Path) -> None:
    certificate = read_record(path, Certificate)
    written = msgspec.json.decode(record_json(certificate))
    assert written.pop("inequality") == "betting"  # there was no other
    assert written == msgspec.json.decode(path.read_bytes())


def test_there_are_certificates_of_earlier_versions() -> None:
    assert len(RELEASED) >= 40


def test_the_headline_of_fine_tuning_is_the_gain() -> None:
    certificate = issued(losses())
    assert certificate.sentence == (
        "On unseen documents of this kind the adapted model is better than the frozen one by at "
        f"least {certificate.headline.bound:.3f} bits per token, with probability 95 %."
    )


def test_the_token_level_says_whose_tokens() -> None:
    sentence = issued(losses(), level="token").sentence
    assert sentence.startswith("On fresh tokens after the contexts of this corpus the adapted")


def test_a_model_from_a_seed_states_its_loss() -> None:
    prior = Prior(kind="random", name="random:gpt2-small,seed=137")
    certificate = issued(losses(frozen=False), prior=prior, delta=0.1)
    assert certificate.sentence == (
        "On unseen documents of this kind the model needs at most "
        f"{certificate.headline.bound:.3f} bits per token, with probability 90 %."
    )
    assert "configuration and seed of random:gpt2-small,seed=137" in certificate.assumptions[0]


def test_what_is_not_certified_is_said_plainly() -> None:
    dear = payment(10**7)
    assert issued(losses(), dear).sentence.startswith("No gain is certified (0.3")
    assert issued(losses(frozen=False), dear).sentence.startswith("Nothing is certified")


def test_the_caveats_are_part_of_the_certificate() -> None:
    assumptions = issued(losses()).assumptions
    assert assumptions[0].startswith("smollm2 was trained without these documents")
    assert assumptions[1] == "The documents are independent draws from one distribution."
    assert assumptions[2].endswith("the ledger pays for: dimension.")
    assert "Nothing is assumed" in issued(losses(), level="token").assumptions[1]


def test_a_certificate_names_its_inequality_and_what_that_chose() -> None:
    certificate = issued(losses(), inequality="kl-inverse")
    assert certificate.inequality == "kl-inverse"
    assert certificate.headline.settings.keys() == {"weight", "cap"}
    assert certificate.ledger.paid_inside_each_bound[0].name == "cap of the values"


def test_plain_losses_stand_in_their_three_units() -> None:
    found = losses()
    stated = issued(found).measured.adapted
    total = float(found.adapted.sum(dtype="float64"))
    assert stated.bits_per_token_over_tokens == pytest.approx(total / found.adapted.size)
    assert stated.bits_per_byte == pytest.approx(total / found.byte_count)
    each = found.of_documents(found.adapted) / found.lengths
    assert stated.bits_per_token_over_documents == pytest.approx(each.mean())


# Verification


@pytest.mark.parametrize("inequality", ["betting", "empirical-bernstein"])
def test_the_same_losses_confirm_to_the_last_bit(inequality: str) -> None:
    verification = recompute(issued(losses(), inequality=inequality), losses())
    assert verification.confirmed
    assert verification.sentence == "confirmed: every loss is the same to the last bit"


def test_another_machine_s_rounding_is_confirmed_and_told() -> None:
    found = losses()
    rounded = replace(found, adapted=found.adapted + 0.002)
    verification = recompute(issued(found), rounded)
    assert verification.confirmed
    assert verification.sentence == "confirmed: no number differs by more than 0.002"


def test_other_losses_are_named_in_one_line() -> None:
    found = losses()
    worse = replace(found, adapted=found.adapted + 0.1)
    verification = recompute(issued(found), worse)
    assert not verification.confirmed
    assert verification.sentence.startswith("differs: the measured gain is 0.2")


def test_losses_of_another_kind_are_told_apart() -> None:
    verification = recompute(issued(losses()), losses(frozen=False))
    assert verification.sentence == (
        "differs: the statements are not those of this kind of certificate"
    )


def test_a_tighter_inequality_than_the_one_named_is_found_out() -> None:
    forged = msgspec.structs.replace(issued(losses()), inequality="hoeffding")
    assert recompute(forged, losses()).sentence.startswith("differs: the measured gain is")


def test_words_and_payments_must_follow_from_the_numbers() -> None:
    good = issued(losses())
    cheaper = msgspec.structs.replace(good.ledger, bits=10.0)
    forgeries = {
        "sentence": {"sentence": "The adapted model is twice as good."},
        "list of assumptions": {"assumptions": ["Nothing is assumed."]},
        "ledger": {"ledger": cheaper},
    }
    for name, changes in forgeries.items():
        found = recompute(msgspec.structs.replace(good, **changes), losses())
        assert found.sentence == f"differs: file, choices and losses give another {name}"


def test_plain_losses_and_settings_must_be_those_measured() -> None:
    good = issued(losses())
    plain = msgspec.structs.replace(good.measured.adapted, bits_per_byte=0.1)
    measured = msgspec.structs.replace(good.measured, adapted=plain)
    forged = msgspec.structs.replace(good, measured=measured)
    assert recompute(forged, losses()).sentence.endswith("give another mean of the losses")
    head = msgspec.structs.replace(good.headline, settings={"weight": 0.5})
    forged = msgspec.structs.replace(good, statements=[head, *good.statements[1:]])
    assert recompute(forged, losses()).sentence.endswith("give another list of statements")


# Refusals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "must hold a Certificate"),
        ("[]", "Expected `object`, got `array`"),
        ("[" * 100_000, "must hold a Certificate"),
        ('{"schema": 1}', "missing required field `sentence`"),
        ('{"schema": 7}', r"Invalid enum value 7 - at `\$.schema`"),
    ],
)
def test_files_that_are_no_certificate_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as raised:
        parsed_record(text, Certificate, "c.json")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"level": "word"}, r"regex '\^\(document\|token\)\$' - at `\$.level`"),
        ({"delta": 1.0}, r"Expected `float` < 1.0 - at `\$.delta`"),
        ({"statements": []}, r"`array` of length >= 1 - at `\$.statements`"),
        ({"prior": {"kind": "magic", "name": "x"}}, r"random\)\$' - at `\$.prior.kind`"),
        ({"mood": "good"}, "unknown field `mood`"),
    ],
)
def test_an_impossible_entry_is_named_by_its_place(changes: dict[str, object], words: str) -> None:
    stored = msgspec.json.decode(record_json(issued(losses(50)))) | changes
    with pytest.raises(SpecError, match=words):
        parsed_record(msgspec.json.encode(stored), Certificate, "c.json")


def test_an_impossible_delta_is_refused() -> None:
    with pytest.raises(SpecError, match=r"strictly between 0 and 1; got 1.5"):
        issued(losses(50), delta=1.5)
