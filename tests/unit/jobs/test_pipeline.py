"""One job, station by station: what is stored, what is reused, and what decides a name."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import ConcatDataset, Subset

from hylorada.errors import SpecError
from hylorada.files import read_record
from hylorada.jobs.assembly import Workshop
from hylorada.jobs.evaluate import as_trained, stored_dtypes, valid_share
from hylorada.jobs.ledger import Address
from hylorada.jobs.pipeline import Job, address, perform
from hylorada.records.runs import RunEvaluation, RunResult
from hylorada.specs.adapters import AdapterSection, LoRASection
from hylorada.specs.run import ModelSection
from hylorada.text.batches import IGNORED
from tests.small_study import LENGTH, small_job


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("source")


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="module")
def job(source: Path) -> Job:
    return small_job(source, landmark_enabled=True, landmark_design="learnable")


@pytest.fixture(scope="module")
def done(job: Job, workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    perform(job, folder, workshop)
    return folder


def measured(folder: Path) -> RunEvaluation:
    (path,) = folder.glob("evaluation-*.json")
    return read_record(path, RunEvaluation)


def result(folder: Path) -> RunResult:
    return read_record(folder / "result.json", RunResult)


def test_a_job_leaves_a_run_and_what_was_measured_of_it(done: Path, job: Job) -> None:
    assert all((done / name).is_file() for name in address(job, "text").files)


def test_the_stations_are_told_in_order(job: Job, workshop: Workshop, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    perform(job, tmp_path, workshop, tell=lambda *news: told.append(news))
    stations = ["train", "evaluate", "result"]  # no certificate is asked for
    assert list(dict.fromkeys(station for station, _ in told)) == stations
    assert [share for station, share in told if station == "train"] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_perplexity_is_that_of_the_clusters(done: Path) -> None:
    found = measured(done)
    clusters = found.clusters
    loss = sum(clusters.nats) / sum(clusters.tokens)
    assert found.ppl.value == pytest.approx(math.exp(loss), rel=1e-6)
    assert sum(clusters.tokens) == 12 * (LENGTH - 1)
    assert (clusters.unit, len(clusters.nats)) == ("block", 12)


def test_a_context_too_short_for_questions_has_no_evidence(done: Path) -> None:
    assert measured(done).evidence is None


def test_learned_boundaries_and_gates_are_stored(done: Path) -> None:
    found = measured(done)
    assert found.boundaries is not None
    assert len(found.boundaries) == 23
    assert found.boundaries == sorted(found.boundaries)
    assert found.gates is not None
    assert found.gates.columns == ["landmark 1", "landmark 2"]


def test_the_cost_counts_the_tokens_of_every_step(done: Path) -> None:
    cost = measured(done).cost
    tokens = 4 * 4 * LENGTH
    assert cost.tokens_per_second is not None
    assert cost.train_seconds is not None
    assert cost.tokens_per_second * cost.train_seconds == pytest.approx(tokens)
    weights = done / "adapter" / "adapter_model.safetensors"
    assert cost.adapter_bytes == weights.stat().st_size


def test_a_finished_job_is_not_done_again(done: Path, job: Job, workshop: Workshop) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*.json")}
    perform(job, done, workshop)
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*.json")} == before


def test_a_job_killed_before_its_measurement_measures_the_stored_adapter(
    done: Path, job: Job
) -> None:
    (path,) = done.glob("evaluation-*.json")
    before, trained = json.loads(path.read_text()), (done / "result.json").stat().st_mtime_ns
    path.unlink()
    perform(job, done, Workshop())
    assert json.loads(path.read_text()) == before
    assert (done / "result.json").stat().st_mtime_ns == trained


def test_a_workshop_model_is_as_it_was_loaded(source: Path, tmp_path: Path) -> None:
    workshop, wanted = Workshop(), small_job(source, landmark_enabled=True, position_bias=True)
    before = {n: v.clone() for n, v in workshop.model(wanted.config).model.state_dict().items()}
    model = workshop.model(wanted.config).model
    perform(wanted, tmp_path, workshop)
    assert workshop.base is not None
    assert workshop.base.model is model
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_job_on_a_workshop_model_gives_the_bits_of_one_on_a_fresh_model(
    done: Path, job: Job, tmp_path: Path
) -> None:
    perform(job, tmp_path, Workshop())
    files = [folder / "adapter" / "adapter_model.safetensors" for folder in (done, tmp_path)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert measured(tmp_path).clusters == measured(done).clusters


def test_models_with_other_tokenizers_have_other_tokens(source: Path) -> None:
    workshop, config = Workshop(), small_job(source).config
    counts = []
    for tokenizer in (str(source / "model"), "tiny"):
        section = ModelSection(source="random", shape="gpt2-micro", tokenizer=tokenizer)
        random = replace(config, model=section)
        counts.append(len(workshop.text(random, "train").tokens))
    assert counts[0] > counts[1]  # bytes, and pieces of words


def test_a_failed_job_leaves_no_model_behind(source: Path, tmp_path: Path) -> None:
    workshop, job = Workshop(), small_job(source)
    (tmp_path / "result.json").write_text('{"schema": 0}')
    with pytest.raises(SpecError, match="must hold a RunResult"):
        perform(job, tmp_path, workshop)
    assert workshop.base is None


def test_a_sequence_beyond_the_models_context_is_refused(source: Path, tmp_path: Path) -> None:
    job = small_job(source)
    data = replace(job.config.data, length=65)
    job = replace(job, config=replace(job.config, data=data))
    with pytest.raises(SpecError, match="must not exceed the model's context, 64"):
        perform(job, tmp_path, Workshop())


def test_a_repetition_shares_data_and_first_values_in_another_order(
    source: Path, workshop: Workshop, tmp_path: Path
) -> None:
    plain = small_job(source, steps=1)
    optimisation = replace(plain.config.optimisation, learning_rate=1e-30)
    plain = replace(plain, config=replace(plain.config, optimisation=optimisation))
    losses, first = [], []
    for number in (0, 1):
        folder = tmp_path / str(number)
        perform(replace(plain, repetition=number), folder, workshop)
        losses.append(result(folder).train_loss)
        first.append(load_file(folder / "adapter" / "adapter_model.safetensors"))
    assert losses[0] != losses[1]
    assert all(torch.allclose(first[0][name], first[1][name], atol=1e-9) for name in first[0])


def test_a_run_without_measurement_only_validates(
    source: Path, workshop: Workshop, tmp_path: Path
) -> None:
    perform(replace(small_job(source), evaluation=None), tmp_path, workshop)
    assert not list(tmp_path.glob("evaluation-*.json"))
    assert result(tmp_path).valid_loss is not None


def test_the_frozen_model_is_measured_too(source: Path, workshop: Workshop, tmp_path: Path) -> None:
    job = small_job(source)
    frozen = replace(job, config=replace(job.config, adapter=AdapterSection()))
    perform(frozen, tmp_path, workshop)
    found = measured(tmp_path)
    assert (found.adapter_dtypes, found.boundaries, found.gates) == ([], None, None)
    assert found.cost.train_seconds is None


def test_mixed_precision_is_measured_as_it_was_trained(source: Path, tmp_path: Path) -> None:
    job = small_job(source)
    training = replace(job.config.training, precision="autocast")
    mixed = replace(job, config=replace(job.config, training=training))
    workshop = Workshop()
    with as_trained(mixed.config, workshop.model(mixed.config)):
        assert torch.is_autocast_enabled("cpu")
    with as_trained(job.config, workshop.model(job.config)):
        assert not torch.is_autocast_enabled("cpu")


def test_a_resumed_training_has_no_time_even_if_it_was_killed_before_its_measurement(
    source: Path, workshop: Workshop, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").mkdir()
    job = small_job(source)
    perform(replace(job, evaluation=None), tmp_path, workshop)
    perform(job, tmp_path, workshop)
    assert measured(tmp_path).cost.train_seconds is None


def test_what_decides_a_number_decides_the_address(job: Job) -> None:
    plain = address(job, "text")
    assert job.evaluation is not None
    others = [
        address(job, "other text"),
        address(replace(job, repetition=1), "text"),
        address(replace(job, replica=1), "text"),
        address(replace(job, evaluation=replace(job.evaluation, max_tokens=1)), "text"),
        address(replace(job, evaluation=None), "text"),
    ]
    assert len({plain.id, *(other.id for other in others)}) == 6
    assert others[2].folder == f"{plain.folder}-again1"
    assert others[3].folder == others[4].folder == plain.folder


def test_a_progress_bar_decides_nothing(job: Job) -> None:
    assert job.evaluation is not None
    shown = replace(job, evaluation=replace(job.evaluation, progress=True))
    assert address(shown, "text") == address(job, "text")


def test_an_address_is_named_by_run_and_measurement() -> None:
    assert Address(folder="a", files=("result.json",)).id == "a"
    assert Address(folder="a", files=("result.json", "b.json")).id == "a/b.json"


@pytest.mark.parametrize("left", ["norms", "checkpointing"])
def test_a_model_with_traces_of_a_job_is_not_kept(source: Path, left: str) -> None:
    workshop, config = Workshop(), small_job(source).config
    workshop.model(config)
    workshop.put_back(config)
    assert workshop.base is not None
    if left == "norms":
        config = replace(config, adapter=LoRASection(train_norms=True))
    else:
        config = replace(config, training=replace(config.training, gradient_checkpointing=True))
    workshop.put_back(config)
    assert workshop.base is None


def test_the_valid_share_counts_labels() -> None:
    half = {"labels": torch.tensor([1, 2, IGNORED, IGNORED])}
    rows: ConcatDataset[Any] = ConcatDataset([Subset([half], [0]), Subset([half, half], [1])])
    assert valid_share(rows) == 0.5


def test_an_adapter_that_is_not_there_has_no_dtypes(done: Path, tmp_path: Path) -> None:
    name = "adapter_model.safetensors"
    assert stored_dtypes(tmp_path / name) == []
    assert stored_dtypes(done / "adapter" / name) == ["F32"]
