"""What a run ends in: a compressed file, a certificate that verifies, and the record of both."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from hylorada.errors import SpecError
from hylorada.evaluation.risk import RiskSpec, token_risks
from hylorada.files import read_record
from hylorada.jobs import certify
from hylorada.jobs.assembly import Workshop
from hylorada.jobs.certify import verify
from hylorada.jobs.engine import STATIONS
from hylorada.jobs.pipeline import Job, address, perform
from hylorada.records.certificates import Certificate, CertifiedRun
from hylorada.specs.evaluation import CertificateSpec
from hylorada.studies import plan_of
from tests.small_study import small_allocation


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("source")


@pytest.fixture(scope="module", autouse=True)
def _cache(source: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(source / "cache"))
        yield


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop()


def quietly(station: str, share: float) -> None:
    """Tell nobody how far a job is."""


def job_of(source: Path, arm: str = "learned", **more: Any) -> Job:
    planned = plan_of("allocation", small_allocation(source, **more)).arm(f"{arm} d=12")
    return Job(
        config=planned.config, evaluation=planned.evaluation, certificate=planned.certificate
    )


@pytest.fixture(scope="module")
def job(source: Path) -> Job:
    return job_of(source)


@pytest.fixture(scope="module")
def done(job: Job, workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    perform(job, folder, workshop, quietly)
    return folder


def record(folder: Path) -> CertifiedRun:
    (path,) = folder.glob("certified-*.json")
    return read_record(path, CertifiedRun)


def certificate(folder: Path) -> Certificate:
    return read_record(folder / "certificate.json", Certificate)


def test_a_run_ends_in_a_file_a_certificate_and_a_record(done: Path, job: Job) -> None:
    assert (done / "adapter.hyl").stat().st_size == record(done).file_bytes
    assert (done / "certificate.json").is_file()
    assert all((done / name).is_file() for name in address(job, "text").files)
    assert not list(done.glob("*.partial*"))


def test_all_stations_are_told_in_order(job: Job, workshop: Workshop, tmp_path: Path) -> None:
    told: list[str] = []
    perform(job, tmp_path, workshop, tell=lambda station, _: told.append(station))
    assert list(dict.fromkeys(told)) == [*STATIONS, "result"]


def test_the_certificate_is_confirmed_to_the_last_bit(done: Path, job: Job) -> None:
    verification = verify(done / "certificate.json", job.config.data.source, progress=False)
    assert verification.sentence == "confirmed: every loss is the same to the last bit"


def test_the_record_says_what_the_certificate_says(done: Path) -> None:
    stated, found = certificate(done), record(done)
    loss = next(one for one in stated.statements if one.name == "loss")
    assert found.bound == loss.bound
    assert found.bits == stated.ledger.message_bits
    assert found.paid_bits == stated.ledger.bits
    assert [one.name for one in stated.ledger.choices] == ["configuration"]
    assert found.complexity == pytest.approx(found.bound - found.risk.value)
    assert found.gain is not None
    assert found.gain.bound == stated.headline.bound  # a pretrained base
    assert (found.documents, found.population) == (30, 30)
    assert stated.model.max_length == job_length(done)


def job_length(folder: Path) -> int:
    text = (folder / "config.yaml").read_text()
    return int(next(line for line in text.splitlines() if "length:" in line).split()[-1])


def test_the_risk_before_quantisation_is_that_of_the_stored_adapter(
    done: Path, job: Job, workshop: Workshop
) -> None:
    base = workshop.model(job.config)
    store = workshop.text(job.config, "train", certified=True)
    model = PeftModel.from_pretrained(base.model, str(done / "adapter")).eval()
    spec = RiskSpec(max_length=job.config.data.length)
    risks = token_risks(model, store, np.arange(30), spec)
    model.unload()
    starts = np.cumsum(risks.lengths) - risks.lengths
    each = np.add.reduceat(risks.adapted, starts, dtype=np.float64) / risks.lengths
    found = record(done)
    assert found.risk_unquantised.value == pytest.approx(each.mean(), rel=1e-6)
    assert found.risk_unquantised.standard_error == pytest.approx(each.std() / np.sqrt(30))
    assert found.risk.value != found.risk_unquantised.value


def test_gates_are_recorded_by_layer_before_and_after_quantisation(done: Path) -> None:
    found = record(done).allocation
    assert found.layers == ["model.layers.0", "model.layers.1", "rest"]
    assert sum(found.slices) == 12
    pairs = zip(found.gamma, found.slices, strict=True)
    assert found.share_of_b == pytest.approx(sum(g * d for g, d in pairs) / 12)
    assert found.gamma != found.gamma_quantised
    assert found.gamma == pytest.approx(found.gamma_quantised, abs=0.1)


def test_fixed_and_uniform_divisions_have_a_share_of_b_without_gates(
    source: Path, workshop: Workshop, tmp_path: Path
) -> None:
    shares = {}
    for arm in ("B-heavy", "uniform"):
        perform(
            job_of(source, arm, designs=("B-heavy", "uniform")), tmp_path / arm, workshop, quietly
        )
        found = record(tmp_path / arm).allocation
        assert found.gamma == found.layers == []
        shares[arm] = found.share_of_b
    assert shares["B-heavy"] == 9 / 12
    assert shares["uniform"] == pytest.approx(1284 / 1604)


def test_a_kept_model_is_as_it_was_after_a_certificate(
    done: Path, job: Job, workshop: Workshop, tmp_path: Path
) -> None:
    fresh = Workshop()
    model, again = (one.model(job.config).model.state_dict() for one in (workshop, fresh))
    assert model.keys() == again.keys()
    assert all(torch.equal(model[name], again[name]) for name in again)
    assert workshop.weights(job.config) == fresh.weights(job.config)


def test_fewer_documents_are_drawn_with_replacement(
    source: Path, workshop: Workshop, tmp_path: Path
) -> None:
    job = job_of(source, certified_documents=10)
    perform(job, tmp_path, workshop, quietly)
    found, stated = record(tmp_path), certificate(tmp_path)
    assert (found.documents, found.population) == (10, 30)
    assert (stated.data.samples, stated.data.seed) == (10, 0)
    assert verify(tmp_path / "certificate.json", job.config.data.source, progress=False).confirmed


def test_mixed_precision_is_certified_as_it_was_trained(source: Path, tmp_path: Path) -> None:
    job = job_of(source, precision="autocast")
    perform(job, tmp_path, Workshop(), quietly)
    assert certificate(tmp_path).model.dtype == "autocast"
    verification = verify(tmp_path / "certificate.json", job.config.data.source, progress=False)
    assert verification.confirmed, verification.sentence


def test_a_job_stopped_before_its_record_certifies_again_without_training(
    done: Path, job: Job, workshop: Workshop
) -> None:
    (path,) = done.glob("certified-*.json")
    before = record(done)
    times = {name: (done / name).stat().st_mtime_ns for name in ("result.json",)}
    path.unlink()
    (done / "certificate.json").unlink()
    perform(job, done, workshop, quietly)
    assert record(done) == before
    assert {name: (done / name).stat().st_mtime_ns for name in times} == times


def test_a_half_read_certificate_goes_on_from_its_shards(
    done: Path, job: Job, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record(done)
    with monkeypatch.context() as patch:
        patch.setattr(certify, "write_record", _killed)
        for path in done.glob("certif*.json"):
            path.unlink()
        with pytest.raises(KeyboardInterrupt):
            perform(job, done, workshop, quietly)
    assert len(list(done.glob("certificate.json.partial*/*.npz"))) == 2
    with monkeypatch.context() as patch:
        patch.setattr("hylorada.evaluation.risk._read", _killed)  # nothing is read again
        perform(job, done, workshop, quietly)
    assert record(done) == before
    assert not list(done.glob("*.partial*"))


def _killed(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_how_a_run_is_certified_decides_the_name_of_its_record(job: Job) -> None:
    assert job.certificate is not None
    plain = address(job, "text")
    others = [
        address(replace(job, certificate=None), "text"),
        address(replace(job, certificate=replace(job.certificate, documents=7)), "text"),
        address(replace(job, certificate=replace(job.certificate, choices={"x": 2})), "text"),
    ]
    assert len({plain.id, *(other.id for other in others)}) == 4
    assert {other.folder for other in others} == {plain.folder}


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(SpecError, match="certified documents must be at least 2; got 1"):
        CertificateSpec(documents=1)
