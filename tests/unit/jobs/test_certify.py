"""From a file to a certificate and back, on a model and a text that take a second."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hylorada.bounds import Certificate
from hylorada.errors import CheckpointError, SpecError
from hylorada.files import read_record
from hylorada.jobs.certify import certify, verify
from hylorada.specs.evaluation import CertifySpec
from hylorada.text.tokens import without_end_marks
from tests.unit.evaluation.models import store
from tests.unit.jobs.certified import write_file, write_place

QUIET = {"progress": False, "max_length": 32}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a corpus of short documents and a compressed adapter."""
    return write_place(tmp_path_factory.mktemp("certify"))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def issued(place: Path, out: Path, **settings: object) -> Certificate:
    spec = CertifySpec(**QUIET | settings)
    return certify(place / "adapter.hyl", str(place / "text"), out, spec)


@pytest.mark.parametrize("level", ["document", "token"])
def test_a_certificate_is_confirmed_to_the_last_bit(
    place: Path, tmp_path: Path, level: str
) -> None:
    out = tmp_path / "certificate.json"
    certificate = issued(place, out, level=level, choices={"dimension": 4})
    assert certificate.prior.kind == "pretrained"
    assert [one.name for one in certificate.statements[:3]] == ["gain", "frozen_loss", "loss"]
    assert certificate.data.documents == certificate.data.documents_read == 60
    assert read_record(out, Certificate) == certificate
    verdict = verify(out, str(place / "text"), file=place / "adapter.hyl", progress=False)
    assert verdict.confirmed
    assert verdict.sentence == "confirmed: every loss is the same to the last bit"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("level", "inequality"),
    [("document", "kl-inverse"), ("document", "hoeffding"), ("token", "empirical-bernstein")],
)
def test_another_inequality_is_named_and_confirmed(
    place: Path, tmp_path: Path, level: str, inequality: str
) -> None:
    out = tmp_path / "certificate.json"
    certificate = issued(place, out, level=level, inequality=inequality)
    assert certificate.inequality == json.loads(out.read_text())["inequality"] == inequality
    assert verify(out, str(place / "text"), file=place / "adapter.hyl", progress=False).confirmed


def test_an_inequality_that_does_not_hold_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    spec = CertifySpec(**QUIET, level="token", inequality="kl-inverse")
    with pytest.raises(SpecError, match="kl-inverse needs independent values"):
        certify(tmp_path / "none.hyl", "none", tmp_path / "c.json", spec)


def test_draws_are_counted_against_the_corpus(place: Path, tmp_path: Path) -> None:
    certificate = issued(place, tmp_path / "c.json", samples=20, seed=5)
    assert certificate.data.documents == 60
    assert certificate.data.documents_read <= 20
    assert certificate.data.samples == 20


def test_the_beginning_of_a_text_is_read_at_token_level(place: Path, tmp_path: Path) -> None:
    certificate = issued(place, tmp_path / "c.json", samples=10, level="token")
    assert certificate.data.documents_read == 10


def test_a_model_from_a_seed_is_compared_with_a_uniform_guess(place: Path, tmp_path: Path) -> None:
    base = f"random:{place / 'model'},seed=3,tokenizer={place / 'model'}"
    write_file(tmp_path, base)
    spec = CertifySpec(**QUIET, samples=10, base=base)
    certificate = certify(tmp_path / "adapter.hyl", str(place / "text"), tmp_path / "c.json", spec)
    assert certificate.prior.kind == "random"
    assert certificate.statements[0].name == "loss"
    assert certificate.measured.frozen is None
    assert verify(tmp_path / "c.json", str(place / "text"), progress=False).confirmed


# What verification finds


@pytest.fixture(scope="module")
def certificate_file(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate with its file beside it."""
    folder = tmp_path_factory.mktemp("issued")
    shutil.copy(place / "adapter.hyl", folder)
    issued(place, folder / "c.json", samples=12)
    return folder / "c.json"


def changed(path: Path, *keys: str | int, value: object) -> Path:
    """Write a copy of a certificate in which one entry differs."""
    stored = json.loads(path.read_text())
    inner = stored
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    forged = path.with_name("forged.json")
    forged.write_text(json.dumps(stored))
    return forged


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("statements", 0, "bound"), 3.0, "the bound gain is"),
        (("statements", 2, "measured"), 0.5, "the measured loss is"),
        (("ledger", "message_bits"), 8, "the certificate says 8"),
        (("message", "sha256"), "0" * 64, "another file"),
        (("data", "fingerprint"), "f" * 32, "the text is another one"),
        (("model", "base_sha256"), "e" * 64, "the base model is another one"),
        (("statements", 0, "name"), "magic", "not those of this kind"),
        (("delta",), 0.5, "the bound"),
        (("inequality",), "hoeffding", "gain is"),
        (("sentence",), "All is well.", "give another sentence"),
    ],
)
def test_a_forged_certificate_is_found_out(
    place: Path, certificate_file: Path, keys: tuple, value: object, words: str
) -> None:
    forged = changed(certificate_file, *keys, value=value)
    verdict = verify(forged, str(place / "text"), progress=False)
    assert not verdict.confirmed
    assert words in verdict.sentence
    assert "\n" not in verdict.sentence


def test_the_file_is_looked_for_beside_its_certificate(place: Path, certificate_file: Path) -> None:
    assert verify(certificate_file, str(place / "text"), progress=False).confirmed


def test_text_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a certificate that hylorada bound wrote is needed"):
        verify(tmp_path / "none.json", "sotu")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SpecError, match="missing required field `sentence`; verify it with the"):
        verify(tmp_path / "other.json", "sotu")


@pytest.mark.parametrize(("part", "name"), [("message", "file"), ("data", "split")])
def test_a_certificate_that_says_too_little_is_refused(
    certificate_file: Path, part: str, name: str
) -> None:
    kept = json.loads(certificate_file.read_text())[part]
    del kept[name]
    forged = changed(certificate_file, part, value=kept)
    with pytest.raises(SpecError, match=rf"missing required field `{name}` - at `\$.{part}`"):
        verify(forged, "sotu")


def test_a_file_elsewhere_is_not_looked_for(certificate_file: Path) -> None:
    forged = changed(certificate_file, "message", "file", value="/elsewhere/none.hyl")
    with pytest.raises(SpecError, match=f"needed; got {certificate_file.parent}/none.hyl"):
        verify(forged, "sotu")


# Refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": "word"}, "level must be one of document, token; got 'word'"),
        ({"dtype": "int8"}, "dtype must be one of float32, bfloat16, autocast; got 'int8'"),
        ({"samples": 1}, "samples must be at least 2; got 1"),
        ({"delta": 0.0}, "strictly between 0 and 1; got 0.0"),
        ({"choices": {"dimension": 0}}, "the options of 'dimension' must be at least 1; got 0"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        CertifySpec(**settings)


def test_a_device_that_is_not_there_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="device must be one this machine has"):
        issued(place, tmp_path / "c.json", device="abacus")


def test_a_base_model_of_another_shape_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises((SpecError, CheckpointError), match="model"):
        issued(place, tmp_path / "c.json", base="tiny")


# The text alone


def test_marks_at_the_end_of_documents_are_left_out() -> None:
    texts = without_end_marks(store([5, 6, 9], [9], [], [7, 9]), 9)
    assert texts.tokens.tolist() == [5, 6, 7]
    assert texts.offsets.tolist() == [0, 2, 2, 2, 3]
    assert texts.fingerprint == "test/text"


@pytest.mark.parametrize("mark", [None, 8])
def test_documents_without_marks_stay_as_they_are(mark: int | None) -> None:
    texts = store([5, 6, 8], [7])
    assert without_end_marks(texts, mark) is texts
    assert np.array_equal(texts.tokens, [5, 6, 8, 7])
