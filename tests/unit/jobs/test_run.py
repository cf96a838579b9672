"""One run, one folder: what lies in it, and when it is used again."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.utils.data import Subset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
)

from hylorada.cli.train import parse
from hylorada.errors import SpecError
from hylorada.files import alone_in
from hylorada.jobs.assembly import add_adapter, load_data, load_model, modules_to_train
from hylorada.jobs.pipeline import train_run
from hylorada.jobs.run import environment, training_spec
from hylorada.specs.adapters import LoRASection
from hylorada.specs.run import RunConfig
from hylorada.text.corpus import documents
from hylorada.text.tokens import tokenise
from tests.small_run import small_arguments


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return small_arguments(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def finished(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(parse([*small, f"--out={folder}"]))
    return folder


class Interrupting(TrainerCallback):
    """Interrupts a training after its first step."""

    def on_step_end(self, *given: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt


class Refusing(TrainerCallback):
    """Refuses a training after its first step."""

    def on_step_end(self, *given: Any, **kwargs: Any) -> None:
        raise SpecError("too late")


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_a_run_leaves_its_five_parts(finished: Path) -> None:
    visible = sorted(path.name for path in finished.iterdir() if not path.name.startswith("."))
    assert visible == ["adapter", "config.yaml", "environment.json", "metrics.jsonl", "result.json"]


def test_the_result_has_a_schema_and_honest_counts(finished: Path) -> None:
    result = read(finished, "result.json")
    assert result["schema"] == 1
    assert result["steps"] == 12
    assert result["valid_tokens"] == 4 * 23
    assert result["audit"].startswith("all ")
    weights = load_file(finished / "adapter" / "adapter_model.safetensors")
    assert result["trainable_parameters"] == sum(tensor.numel() for tensor in weights.values())


def test_the_stored_configuration_gives_the_same_run(finished: Path, small: list[str]) -> None:
    stored = parse([f"--config={finished / 'config.yaml'}"])
    assert stored == parse([*small, f"--out={finished}"])


def test_the_metrics_hold_numbers_and_no_times(finished: Path) -> None:
    entries = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [5, 10, 12, 12]
    assert not [key for entry in entries for key in entry if "runtime" in key or "per_s" in key]


def test_the_saved_adapter_has_the_reported_loss(finished: Path, small: list[str]) -> None:
    config = parse(small)
    base = AutoModelForCausalLM.from_pretrained(config.model.source)
    model = PeftModel.from_pretrained(base, finished / "adapter").eval()
    data = load_data(config, AutoTokenizer.from_pretrained(config.model.source))
    assert isinstance(data.valid, Subset)
    batch = data.collate([data.valid[index] for index in range(len(data.valid))])
    with torch.no_grad():
        loss = float(model(**batch).loss)
    assert loss == pytest.approx(read(finished, "result.json")["valid_loss"], rel=1e-6)


def test_the_same_configuration_gives_the_same_bytes(
    finished: Path, small: list[str], tmp_path: Path
) -> None:
    train_run(parse([*small, f"--out={tmp_path / 'again'}"]))
    first, second = (
        (folder / "adapter" / "adapter_model.safetensors").read_bytes()
        for folder in (finished, tmp_path / "again")
    )
    assert first == second


def test_a_folder_of_another_run_is_refused(finished: Path, small: list[str]) -> None:
    with pytest.raises(SpecError, match=r"differs in its config; choose another folder"):
        train_run(parse([*small, "--seed=7", f"--out={finished}"]))


def test_a_result_of_another_schema_is_refused(
    finished: Path, small: list[str], tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_text('{"schema": 0}')
    with pytest.raises(SpecError, match=r"must hold a RunResult .*`\$\.schema`; choose another"):
        train_run(parse([*small, f"--out={tmp_path}"]))


def test_without_a_folder_a_run_is_named_by_its_id(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = train_run(parse([*small, "--adapter.method=none"]))
    assert (tmp_path / "runs" / result.id / "result.json").is_file()


def test_a_resumed_run_has_no_time(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert train_run(parse([*small, f"--out={tmp_path}"])).seconds is None
    assert read(tmp_path, "result.json")["seconds"] is None


def test_a_refused_run_removes_nothing_that_was_there(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(SpecError, match="r must not exceed"):
        train_run(parse([*small, "--adapter.r=100000", f"--out={tmp_path}"]))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [".lock", "checkpoints", "letter.txt"]


def test_a_run_that_is_resumed_and_refused_keeps_its_files(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse([*small, f"--out={tmp_path / 'run'}"])
    with pytest.raises(KeyboardInterrupt):
        train_run(config, callbacks=[Interrupting()])
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert "environment.json" in before

    def refuse(*given: object) -> None:
        raise SpecError("no")

    monkeypatch.setattr("hylorada.jobs.run.add_adapter", refuse)
    with pytest.raises(SpecError, match="no"):
        train_run(config)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_run_refused_after_a_step_keeps_what_it_logged(small: list[str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="too late"):
        train_run(parse([*small, f"--out={tmp_path / 'run'}"]), callbacks=[Refusing()])
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_a_module_that_no_adapter_fits_is_one_line(small: list[str], tmp_path: Path) -> None:
    words = ["--adapter.method=lora", "--target_modules=[norm]", f"--out={tmp_path / 'run'}"]
    with pytest.raises(SpecError, match="the adapter must fit the model; PEFT says: ") as caught:
        train_run(parse([*small, *words]))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_refused(small: list[str], tmp_path: Path) -> None:
    with alone_in(tmp_path, "a run"), pytest.raises(SpecError, match="in use by another process"):
        train_run(parse([*small, f"--out={tmp_path}"]))


def test_the_frozen_model_is_evaluated_without_training(small: list[str], tmp_path: Path) -> None:
    result = train_run(parse([*small, "--adapter.method=none", f"--out={tmp_path}"]))
    assert (result.steps, result.trainable_parameters) == (0, 0)
    assert result.valid_loss == pytest.approx(5.55, abs=0.05)  # ln 257, and a little noise
    assert not (tmp_path / "adapter").exists()


def test_a_frozen_model_without_validation_data_is_refused(
    small: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="needs validation data"):
        train_run(parse([*small, "--adapter.method=none", "--num_val=0", f"--out={tmp_path}"]))


def test_the_environment_names_versions_and_hardware() -> None:
    found = environment(processes=3)
    assert found.packages["torch"] == torch.__version__
    assert found.processes == 3
    assert found.commit is None or len(found.commit) == 40


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    assert environment().commit is None


def test_the_adapter_depends_on_the_seed_alone(small: list[str]) -> None:
    config = parse(small)

    def first_values(config: RunConfig) -> torch.Tensor:
        torch.rand(3)
        model = add_adapter(load_model(config).model, config)
        return next(p for n, p in model.named_parameters() if "lora_A" in n)

    assert torch.equal(first_values(config), first_values(config))
    other = replace(config, training=replace(config.training, seed=1))
    assert not torch.equal(first_values(config), first_values(other))


def test_buckets_cover_the_sequences_trained_on(small: list[str]) -> None:
    config = parse(small)
    assert add_adapter(load_model(config).model, config).peft_config["default"].max_positions == 24
    chosen = parse([*small, "--max_positions=50"])
    assert add_adapter(load_model(chosen).model, chosen).peft_config["default"].max_positions == 50


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_norms_and_embeddings_are_trained_and_saved(
    small: list[str], tmp_path: Path, precision: str
) -> None:
    arguments = ["--train_norms=true", "--train_embeddings=true", f"--precision={precision}"]
    result = train_run(parse([*small, *arguments, f"--out={tmp_path}"]))
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys()
    for part in ("embed_tokens", "lm_head", "input_layernorm", "model.norm"):
        assert any(part in name for name in names)
    assert result.audit is not None
    assert result.audit.startswith("all ")


def test_a_tied_head_is_trained_with_the_embeddings_it_reads(
    small: list[str], tmp_path: Path
) -> None:
    config = parse([*small, "--train_embeddings=true", "--steps=4", f"--out={tmp_path / 'run'}"])
    tokenizer = AutoTokenizer.from_pretrained(config.model.source)
    tokenizer.save_pretrained(tmp_path / "tied")
    sizes = {"vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tied = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=256, eos_token_id=256))
    tied.save_pretrained(tmp_path / "tied")
    config = replace(config, model=replace(config.model, source=str(tmp_path / "tied")))
    model = add_adapter(load_model(config).model, config)
    head = model.get_base_model().lm_head.modules_to_save["default"].weight
    assert head is model.get_base_model().transformer.wte.modules_to_save["default"].weight
    audit = train_run(config).audit
    assert audit is not None
    assert audit.startswith("all ")


def test_a_model_without_norms_cannot_train_them() -> None:
    class Bare(GPT2LMHeadModel):
        def named_modules(self, *_: Any, **__: Any) -> Any:
            return iter([("", self)])

    model = Bare(GPT2Config(vocab_size=5, n_embd=4, n_layer=1, n_head=1))
    with pytest.raises(SpecError, match="no norm to train"):
        modules_to_train(model, LoRASection(train_norms=True))


def test_bfloat16_without_extra_modules_needs_no_autocast() -> None:
    assert training_spec(parse(["--precision=bfloat16"])).precision == "bfloat16"


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_other_packings_train(small: list[str], tmp_path: Path, packing: str) -> None:
    arguments = ["--lines=documents", f"--packing={packing}", "--num_train=1", "--steps=4"]
    result = train_run(parse([*small, *arguments, "--batch_size=1", f"--out={tmp_path}"]))
    assert result.steps == 4


def test_more_sequences_than_there_are_is_refused(small: list[str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="num_train must not exceed the"):
        train_run(parse([*small, "--num_train=100000", f"--out={tmp_path}"]))


def test_prepared_tokens_are_used_as_they_are(small: list[str], tmp_path: Path) -> None:
    config = parse(small)
    tokenizer = load_model(config).tokenizer
    for split in ("train", "valid"):
        texts = documents(config.data.source, split, config.data)
        tokenise(texts, tokenizer, tmp_path / "prepared" / split, progress=False)
    prepared = replace(config, data=replace(config.data, source=str(tmp_path / "prepared")))
    assert load_data(prepared, tokenizer).fingerprint == load_data(config, tokenizer).fingerprint


def test_edited_text_is_tokenised_anew(small: list[str], tmp_path: Path) -> None:
    config = parse([*small, "--num_val=0"])
    tokenizer = load_model(config).tokenizer
    text = tmp_path / "train.txt"
    edited = replace(config, data=replace(config.data, source=str(text)))
    text.write_text("one two three four five six seven. " * 20)
    first = load_data(edited, tokenizer).fingerprint
    text.write_text("one two three four five six eight. " * 20)
    assert load_data(edited, tokenizer).fingerprint != first


def test_the_cache_folder_can_be_set_for_all_runs(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path))
    config = parse([*small, "--num_val=0"])
    load_data(replace(config, data=replace(config.data, cache=None)), load_model(config).tokenizer)
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_padding_needs_a_pad_token(small: list[str]) -> None:
    config = parse([*small, "--packing=padded"])
    tokenizer = load_model(config).tokenizer
    tokenizer.pad_token = None
    with pytest.raises(SpecError, match="needs a tokenizer with a pad token"):
        load_data(config, tokenizer)
