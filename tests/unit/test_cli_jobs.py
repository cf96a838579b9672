"""The jobs of the command line: text to tokens, a run, and numbers about it."""

import json
import shutil
from pathlib import Path

import pytest

from hylorada.cli import main
from hylorada.models.pretrained import load_tokenizer
from hylorada.text.tokens import TokenStore
from tests.small_run import small_arguments
from tests.unit.command_line import Output, evaluation, refusal


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a text and a finished run."""
    folder = tmp_path_factory.mktemp("place")
    assert main(["train", *small_arguments(folder), f"--out={folder / 'run'}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the home folder and the repository out of reach of what a command writes."""
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


# Prepare


def test_prepare_writes_a_store_for_each_split(place: Path, tmp_path: Path, capsys: Output) -> None:
    words = ["--data", place / "text", "--tokenizer", place / "model", "--out", tmp_path / "tokens"]
    assert main(["prepare", *map(str, words)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["train", "valid", "test"]
    for line in lines:
        split = line.partition(":")[0]
        store = TokenStore.open(tmp_path / "tokens" / split)
        text = (place / "text" / f"{split}.txt").read_text()
        assert len(store.tokens) == len(text) + 1  # a token a byte, and the end
        assert line == f"{split}: 1 documents, {len(text) + 1:,} tokens"


def test_prepared_tokens_are_trained_and_measured_on(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    tokens = tmp_path / "tokens"
    words = ["--data", place / "text", "--tokenizer", place / "model", "--out", tokens]
    assert main(["prepare", *map(str, words)]) == 0
    capsys.readouterr()
    measured = []
    for data in (place / "text", tokens):
        assert main(evaluation(place, place / "run", "--data", data, "--json", "-")) == 0
        measured.append(json.loads(capsys.readouterr().out)["metrics"])
    assert measured[0] == measured[1]
    assert main(["train", *small_arguments(place), f"--data.source={tokens}", "--out=run"]) == 0
    first, second = (
        json.loads((folder / "result.json").read_text()) for folder in (place / "run", Path("run"))
    )
    assert first["valid_loss"] == second["valid_loss"]
    assert first["data"] == second["data"]


def test_tokens_of_another_tokenizer_are_refused(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    tokens = tmp_path / "tokens"
    words = ["--data", place / "text", "--tokenizer", place / "model", "--out", tokens]
    assert main(["prepare", *map(str, words)]) == 0
    capsys.readouterr()
    assert main(["evaluate", "tiny", "--data", str(tokens), "--metrics", "ppl"]) == 2
    assert "tokens of another tokenizer" in capsys.readouterr().err


def test_an_interrupted_command_ends_without_a_traceback(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hylorada.jobs.pipeline.load_data", interrupt)
    assert main(["train", *small_arguments(place), "--out=interrupted"]) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("hylorada: interrupted")


def test_prepare_writes_only_the_splits_asked_for(place: Path, tmp_path: Path) -> None:
    words = ["--data", place / "text", "--tokenizer", place / "model", "--out", tmp_path / "tokens"]
    assert main(["prepare", *map(str, words), "--splits", "test"]) == 0
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["test"]


def test_prepare_reads_rows_lines_and_replacements_as_training_does(tmp_path: Path) -> None:
    Path("rows.jsonl").write_text('{"body": "a<unk>", "text": 1}\n{"body": "b", "text": 2}\n')
    Path("lines.txt").write_text("one\n\ntwo\nthree\n")
    words = ["prepare", "--splits", "all", "--tokenizer", "tiny"]
    fields = ["--text-field", "body", "--replace", '{"<unk>": "?"}']
    assert main([*words, "--data", "rows.jsonl", "--out", "rows", *fields]) == 0
    assert main([*words, "--data", "lines.txt", "--out", "lines", "--lines", "documents"]) == 0
    tokenizer = load_tokenizer("tiny")
    stores = [TokenStore.open(Path(name) / "all") for name in ("rows", "lines")]
    assert [len(store) for store in stores] == [2, 3]
    assert tokenizer.decode(stores[0].tokens, skip_special_tokens=True) == "a?b"


def test_prepare_writes_nothing_if_one_split_is_missing(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    shutil.copytree(place / "text", tmp_path / "text")
    (tmp_path / "text" / "test.txt").unlink()
    words = ["--data", tmp_path / "text", "--tokenizer", place / "model", "--out", "tokens"]
    assert "has no test split; it has train, valid" in refusal(capsys, "prepare", *words)
    assert not Path("tokens").exists()


# Train


def test_a_file_and_options_make_a_run_folder(place: Path, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model:\n  source: {place / 'model'}\n"
        f"data:\n  source: {place / 'text'}\n  length: 24\n  num_train: 8\n  num_val: 2\n"
        "training:\n  batch_size: 4\n  progress: false\n  cpu: true\n  epochs: 5\n"
    )
    words = ["--config", str(file), "--training.epochs=2", "--out", str(tmp_path / "a run")]
    assert main(["train", *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "a run" / "result.json").read_text())
    assert result["steps"] == 4
    assert line.startswith(f"run {result['id']}: 4 steps, ")
    assert f"validation perplexity {result['valid_perplexity']:.3f} on 46 tokens" in line
    assert line.endswith(f"→ {tmp_path / 'a run'}")
    assert (tmp_path / "a run" / "adapter" / "adapter_config.json").is_file()


def test_a_second_start_only_answers(place: Path, capsys: Output) -> None:
    words = ["train", *small_arguments(place), f"--out={place / 'run'}"]
    before = {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*")}
    said = []
    for _ in range(2):
        assert main(words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*")} == before


def test_a_run_without_validation_says_so(place: Path, capsys: Output) -> None:
    assert main(["train", *small_arguments(place), "--num_val=0", "--epochs=1"]) == 0
    line = capsys.readouterr().out
    assert "validation perplexity not measured on 0 tokens" in line
    assert line.rstrip().endswith(f"→ runs/{next(Path('runs').iterdir()).name}")


def test_a_folder_of_another_run_is_refused(place: Path, capsys: Output) -> None:
    assert main(["train", *small_arguments(place), "--seed=7", f"--out={place / 'run'}"]) == 2
    assert "choose another folder with --out" in capsys.readouterr().err.splitlines()[-1]


# Evaluate


@pytest.mark.parametrize("subject", ["model", "run", "run/adapter"])
def test_evaluate_takes_a_model_a_run_and_an_adapter(
    subject: str, place: Path, capsys: Output
) -> None:
    assert main(evaluation(place, place / subject)) == 0
    shown = capsys.readouterr().out
    assert "ppl" in shown
    assert "95 % interval" in shown


def test_evaluate_writes_all_numbers_to_a_file(place: Path, tmp_path: Path, capsys: Output) -> None:
    target = tmp_path / "result.json"
    assert main(evaluation(place, place / "run", "--json", target)) == 0
    result = json.loads(target.read_text())
    assert result["subject"]["adapter"] == str(place / "run")
    assert f"{result['metrics']['ppl']['value']:.4g}" in capsys.readouterr().out
    assert list(tmp_path.glob(".*")) == []


def test_standard_output_can_be_pure_json(place: Path, capfd: Output) -> None:
    assert main(evaluation(place, place / "model", "--json", "-")) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["metrics"]["ppl"]["tokens"] == 10 * 23
    assert result["subject"]["adapter"] is None


def test_one_block_of_text_is_shown_without_an_interval(place: Path, capsys: Output) -> None:
    assert main(evaluation(place, place / "model", "--max_tokens", "24")) == 0
    assert "│ ppl" in capsys.readouterr().out


def test_a_run_that_is_not_finished_is_refused(place: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(place / "run" / "config.yaml", tmp_path / "run")
    said = refusal(capsys, *evaluation(place, tmp_path / "run", "--json", tmp_path / "file"))
    assert "is not finished; start hylorada train again to resume it" in said
    assert not (tmp_path / "file").exists()


def test_a_moved_base_is_named_with_model(place: Path, tmp_path: Path, capsys: Output) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    shutil.copytree(place / "model", tmp_path / "moved")
    for name in ("config.yaml", "adapter/adapter_config.json"):
        file = tmp_path / "run" / name
        file.write_text(file.read_text().replace(str(place / "model"), str(tmp_path / "gone")))
    for subject in ("run", "run/adapter"):
        words = evaluation(place, tmp_path / subject, "--json", "-")
        assert "name it with --model" in refusal(capsys, *words)
        assert main([*words, "--model", str(tmp_path / "moved")]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["subject"]["model"] == str(tmp_path / "moved")


def test_a_split_that_does_not_exist_is_refused(place: Path, capsys: Output) -> None:
    assert main(evaluation(place, place / "model", "--split", "tset")) == 2
    assert "got 'tset'" in capsys.readouterr().err.splitlines()[-1]


def test_the_embedded_model_is_measured_on_the_embedded_text(capsys: Output) -> None:
    words = ["--max_length", "64", "--max_tokens", "512", "--metrics", "ppl", "--json", "-"]
    assert main(["evaluate", "tiny", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["subject"] == {"model": "tiny", "adapter": None, "data": "sotu", "split": "test"}
    assert 1 < result["metrics"]["ppl"]["value"] < 2000  # far from the vocabulary's 4,096
