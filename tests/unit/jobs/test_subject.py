"""What can be evaluated: a model, an adapter on its base, a run."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from transformers import GPT2Config, GPT2LMHeadModel

from hylorada.cli.train import parse
from hylorada.errors import CheckpointError, SpecError
from hylorada.jobs.evaluate import Predictor, chosen_device, evaluate_subject, load_subject
from hylorada.jobs.pipeline import train_run
from hylorada.records.evaluations import Evaluation, Perplexity, Subject
from hylorada.specs.evaluation import EvaluationSpec
from tests.small_run import small_arguments, write_model

SPEC = EvaluationSpec(max_length=24, max_tokens=480, progress=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a text and a finished run."""
    folder = tmp_path_factory.mktemp("place")
    train_run(parse([*small_arguments(folder), "--learning_rate=0.01", f"--out={folder / 'run'}"]))
    return folder


@pytest.fixture(autouse=True)
def own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYLORADA_CACHE", str(place / "cache"))


@torch.no_grad()
def logits(subject: Predictor) -> torch.Tensor:
    return subject.model(input_ids=torch.arange(3, 20)[None]).logits


def measured(place: Path, source: Path, **more: Any) -> Evaluation:
    data = str(place / "text")
    return evaluate_subject(
        str(source), data=data, split="test", metrics=["ppl"], spec=SPEC, **more
    )


def perplexity(found: Evaluation) -> Perplexity:
    ppl = found.metrics["ppl"]
    assert isinstance(ppl, Perplexity)
    return ppl


def rewritten(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_model_is_loaded_as_it_is(place: Path) -> None:
    subject = load_subject(str(place / "model"))
    assert (subject.base, subject.adapter) == (str(place / "model"), None)
    assert not isinstance(subject.model, PeftModel)
    assert not subject.model.training


def test_an_adapter_is_put_on_the_model_it_names(place: Path) -> None:
    subject = load_subject(str(place / "run" / "adapter"), device="cpu")
    assert isinstance(subject.model, PeftModel)
    assert subject.base == str(place / "model")
    assert subject.adapter == str(place / "run" / "adapter")
    assert not subject.model.training


def test_a_run_is_its_adapter_on_its_model(place: Path) -> None:
    by_run, by_adapter, bare = (
        logits(load_subject(str(place / name))) for name in ("run", "run/adapter", "model")
    )
    assert torch.equal(by_run, by_adapter)
    assert not torch.allclose(by_run, bare)


def test_a_run_has_the_validation_loss_it_reported(place: Path) -> None:
    result = json.loads((place / "run" / "result.json").read_text())
    spec = EvaluationSpec(max_length=24, max_tokens=4 * 24, progress=False)
    found = evaluate_subject(
        str(place / "run"), data=str(place / "text"), split="valid", metrics=["ppl"], spec=spec
    )
    assert perplexity(found).tokens == result["valid_tokens"] == 4 * 23
    assert perplexity(found).value == pytest.approx(result["valid_perplexity"], rel=1e-5)


def test_an_adapted_model_has_a_lower_perplexity_than_its_base(place: Path) -> None:
    before, after = (perplexity(measured(place, place / name)).value for name in ("model", "run"))
    assert after < before


def test_the_answer_says_what_was_measured_on_what(place: Path) -> None:
    assert measured(place, place / "run").subject == Subject(
        model=str(place / "model"),
        adapter=str(place / "run"),
        data=str(place / "text"),
        split="test",
    )


def test_the_rule_for_lines_reaches_the_text(place: Path, tmp_path: Path) -> None:
    text = tmp_path / "test.txt"
    text.write_text("one line\n\nanother line\n" * 9)
    model, data = str(place / "model"), str(text)
    kept, split = (
        evaluate_subject(
            model, data=data, split="test", metrics=["ppl"], spec=SPEC, lines=lines
        ).data
        for lines in ("keep", "documents")
    )
    assert (kept["documents"], split["documents"]) == (1, 18)


def test_a_run_that_is_not_finished_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copy(place / "run" / "config.yaml", tmp_path)
    with pytest.raises(SpecError, match="is not finished; start hylorada train again"):
        load_subject(str(tmp_path))


def test_a_run_without_an_adapter_is_its_frozen_model(place: Path, tmp_path: Path) -> None:
    train_run(parse([*small_arguments(place), "--adapter.method=none", f"--out={tmp_path}"]))
    subject = load_subject(str(tmp_path))
    assert (subject.base, subject.adapter) == (str(place / "model"), None)
    assert not isinstance(subject.model, PeftModel)


@pytest.mark.parametrize("source", ["run", "run/adapter"])
def test_a_run_with_a_wider_context_is_loaded_with_it(
    place: Path, tmp_path: Path, source: str
) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    config["model"] |= {"context": 128, "scaling": "linear"}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    subject = load_subject(str(tmp_path / source))
    assert subject.model.config.max_position_embeddings == 128


@pytest.mark.parametrize("source", ["run", "run/adapter"])
def test_a_moved_base_is_named_by_the_caller(place: Path, tmp_path: Path, source: str) -> None:
    shutil.copytree(place / "model", tmp_path / "moved")
    subject = load_subject(str(place / source), base=str(tmp_path / "moved"))
    assert subject.base == str(tmp_path / "moved")
    assert torch.equal(logits(subject), logits(load_subject(str(place / "run"))))


def test_a_lost_base_is_asked_for(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run" / "adapter", tmp_path / "adapter")
    gone = str(tmp_path / "gone")
    rewritten(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path=gone)
    with pytest.raises(SpecError, match=r"no model at .*gone.*; .* name it with --model"):
        load_subject(str(tmp_path / "adapter"))
    with pytest.raises(SpecError, match="no model at") as error:
        load_subject(str(tmp_path / "adapter"), base=str(tmp_path / "also gone"))
    assert "--model" not in str(error.value)


def test_an_adapter_without_a_named_base_asks_for_it(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run" / "adapter", tmp_path / "adapter")
    rewritten(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(SpecError, match="does not name its base model; give it with --model"):
        load_subject(str(tmp_path / "adapter"))
    found = load_subject(str(tmp_path / "adapter"), base=str(place / "model"))
    assert torch.equal(logits(found), logits(load_subject(str(place / "run"))))


def other_family(folder: Path) -> None:
    write_model(folder)
    sizes = {"vocab_size": 257, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 256, "eos_token_id": 256}
    GPT2LMHeadModel(GPT2Config(**sizes, **ends)).save_pretrained(folder)


def test_an_adapter_on_another_family_is_one_line(place: Path, tmp_path: Path) -> None:
    other_family(tmp_path / "other")
    with pytest.raises(CheckpointError, match="must fit its base model") as error:
        load_subject(str(place / "run"), base=str(tmp_path / "other"))
    assert "\n" not in str(error.value)


def test_a_damaged_adapter_is_one_line(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run" / "adapter", tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="must fit its base model") as error:
        load_subject(str(tmp_path / "adapter"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 100])
def test_an_adapter_that_was_cut_off_is_one_line(place: Path, tmp_path: Path, size: int) -> None:
    shutil.copytree(place / "run" / "adapter", tmp_path / "adapter")
    os.truncate(tmp_path / "adapter" / "adapter_model.safetensors", size)
    with pytest.raises(CheckpointError, match="weights that can be read; they are damaged"):
        load_subject(str(tmp_path / "adapter"))


@pytest.mark.parametrize("text", ["something: else\n", "", "model: {sauce: tiny}\n", "a: [\n"])
def test_a_folder_with_a_configuration_of_something_else_is_one_line(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(
        SpecError, match=r"config\.yaml must hold the configuration of a run"
    ) as error:
        load_subject(str(tmp_path))
    assert "\n" not in str(error.value)


def test_an_adapter_beside_something_else_is_an_adapter(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run" / "adapter", tmp_path / "adapter")
    (tmp_path / "environment.json").write_text("{}")
    assert load_subject(str(tmp_path / "adapter")).base == str(place / "model")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_an_adapter_with_a_damaged_configuration_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(SpecError, match="must hold an adapter's configuration in JSON"):
        load_subject(str(tmp_path))


def test_a_model_folder_with_a_yaml_of_its_own_is_a_model(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "model" / "config.yaml").write_text("something: else\n")
    assert load_subject(str(tmp_path / "model")).adapter is None


@pytest.mark.parametrize(
    ("gpus", "there"), [(0, "cpu"), (1, "cpu or cuda or cuda:0"), (2, "cuda:0 or cuda:1")]
)
@pytest.mark.parametrize("name", ["nonsense", "mps:0", "cuda:2"])
def test_a_device_that_is_not_there_is_refused(
    gpus: int, there: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(SpecError, match=f"device must be .*{there}; got '{name}'"):
        chosen_device(name)


def test_a_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for gpus in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        found.append(chosen_device(None))
    assert found == ["cpu", "cuda"]
    assert chosen_device("cuda:1") == "cuda:1"
