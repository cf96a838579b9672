"""The command line: one sub-command a job, and one line for every mistake."""

import errno
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hylorada.cli import COMMANDS, main
from hylorada.cli.command import parsed, underscored
from hylorada_benches import adapters
from tests.small_run import small_arguments, write_model, write_text
from tests.unit.command_line import Output, refusal

EVERY_COMMAND = (
    *("demo", "compare", "report", "prepare", "train", "evaluate"),
    *("compress", "decompress", "bound", "verify", "list", "bench"),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and a text."""
    folder = tmp_path_factory.mktemp("place")
    write_model(folder / "model")
    write_text(folder / "text")
    return folder


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the home folder and the repository out of reach of what a command writes."""
    monkeypatch.setenv("HYLORADA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


# Help


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]], ids=["nothing", "-h", "--help"])
def test_the_overview_names_every_command_and_a_start(words: list[str], capsys: Output) -> None:
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.match(r"  \S", line)]
    assert sorted(listed) == sorted(EVERY_COMMAND)
    path = [line.split()[1] for line in lines if line.startswith("    hylorada ")]
    six = ["train", "evaluate", "report", "compress", "bound", "verify"]
    assert path == ["demo", *six, "COMMAND"]


@pytest.mark.parametrize("name", EVERY_COMMAND)
def test_the_help_of_a_command_holds_an_example(name: str, capsys: Output) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: hylorada {name}")
    # On one line that can be copied.
    example = text.partition("\nExample:\n  ")[2].partition("\n")[0]
    assert example.split()[:2] == ["hylorada", name]
    assert example == COMMANDS[name].example


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_uses_options_that_exist(name: str) -> None:
    parsed(name, COMMANDS[name], COMMANDS[name].example.split()[2:])


def test_the_version_is_the_packages(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hylorada {version('hylorada')}\n"


def test_without_words_main_reads_its_own_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "argv", ["hylorada", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("hylorada ")


# Mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evalute"], "unknown command 'evalute'; did you mean 'evaluate'?"),
        (["xyzzy"], "unknown command 'xyzzy'; known are demo, compare, report, prepare, train,"),
        (["--verzion"], "unknown command '--verzion'"),
        (["evaluate"], "evaluate needs subject (a model, an adapter folder or a run folder)"),
        (["evaluate", "tiny", "--metrics", "pppl"], "unknown metric 'pppl'; did you mean 'ppl'?"),
        (["evaluate", "tiny", "--metricz", "ppl"], "did you mean '--metrics'?"),
        (["evaluate", "tiny", "--max_length", "many"], "must be a whole number; got 'many'"),
        (["evaluate", "tiny", "--max-length", "1"], "max_length must be at least 2; got 1"),
        (["evaluate", "tiny", "--lines", "all"], "lines must be one of"),
        (["evaluate", "tiny", "--device", "abacus"], "device must be"),
        (["evaluate", "./absent"], "no model at './absent'"),
        (["evaluate", "tiny", "--json", "absent/result.json"], "in a folder that exists"),
        (["evaluate", "tiny", "--json", "."], "--json must name a file"),
        (["bench"], "bench needs what (its name; hylorada list benches shows them)"),
        (["bench", "adapters", "--rounds", "x"], "--rounds must be a whole number; got 'x'"),
        (["bench", "adapters", "--rnds", "3"], "did you mean '--rounds'?"),
        (["bench", "adapters", "--rounds", "0"], "rounds must be at least 1; got 0"),
        (["bench", "adapters", "--json", "absent/result.json"], "in a folder that exists"),
        (["prepare"], "prepare needs --out (folder for the tokens, one per split)"),
        (["prepare", "--out", "there", "--data", "./absent"], "no text at './absent'"),
        (["prepare", "--out", "there", "--tokenizer", "./absent"], "no model at './absent'"),
        (["prepare", "--out", "there", "--splits", "train", "tset"], "got 'tset'"),
        (["demo", "--outt", "there"], "unrecognized arguments: --outt"),
        (["compare"], "compare needs study (its name; hylorada list studies shows them)"),
        (["compare", "landmark"], "unknown study 'landmark'; did you mean 'landmarks'?"),
        (["compare", "landmarks", "--designs", "origin"], "did you mean 'original'?"),
        (["compare", "landmarks", "--engine", "rai"], "did you mean 'ray'?"),
        (["compare", "landmarks", "--num_train", "0"], "num_train must be at least 1; got 0"),
        (["compare", "landmarks", "--model", "./absent"], "no model at './absent'"),
        (["compare", "landmarks", "--data", "./absent"], "no text at './absent'"),
        (["report", "./absent"], "absent"),
        (["report", "."], "study"),
        (["compress", "./absent", "--out", "a.hyl"], "an adapter's or a finished run's folder"),
        (["decompress", "./absent.hyl", "--out", "there"], "a file that hylorada compress wrote"),
        (["bound", "./absent.hyl", "--data", "sotu", "--out", "c.json"], "hylorada compress wrote"),
        (["verify", "./absent.json", "--data", "sotu"], "hylorada bound wrote"),
        (["train", "--config", "absent.yaml"], "absent.yaml"),
        (["train", "--lenght=3"], "did you mean '--data.length'?"),
        (["train", "--num_train=x"], "--data.num_train must be a whole number; got 'x'"),
        (["train", "--precision=f"], "must be one of float32, bfloat16, autocast; got 'f'"),
        (["train", "--target_modules=3"], "--adapter.target_modules must be a list"),
        (["prepare", "--out", "there", "--data", "absent.txt"], "no text at 'absent.txt'"),
        (["evaluate", "absent.safetensors"], "no model at 'absent.safetensors'"),
        (["train", "--adapter.r=0"], "r must be at least 1; got 0"),
        (["train", "--model.source=./absent"], "no model at './absent'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    words: list[str], message: str, capsys: Output, tmp_path: Path
) -> None:
    assert message in refusal(capsys, *words)
    assert list((tmp_path / "here").iterdir()) == []
    assert not (tmp_path / "cache").exists()


def test_a_mistyped_run_is_refused_before_any_network_is_asked(capsys: Output) -> None:
    Path("runs/first").mkdir(parents=True)
    line = refusal(capsys, "evaluate", "runs/frist")
    assert "holds no 'runs/frist'; did you mean 'runs/first'?" in line


@pytest.mark.parametrize("command", ["prepare", "demo", "train"])
def test_a_file_in_the_place_of_a_folder_is_refused(
    command: str, place: Path, tmp_path: Path, capsys: Output
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a letter")
    options = {
        "prepare": ["--data", str(place / "text"), "--tokenizer", str(place / "model")],
        "demo": [],
        "train": small_arguments(place),
    }[command]
    assert main([command, *options, "--out", str(taken)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"hylorada: cannot use {taken}")
    assert last.endswith("; name another")
    assert taken.read_text() == "a letter"


@pytest.mark.parametrize("command", ["prepare", "demo", "train"])
def test_a_place_where_nothing_can_be_written_is_one_line(
    command: str, place: Path, capsys: Output
) -> None:
    options = {
        "prepare": ["--data", str(place / "text"), "--tokenizer", str(place / "model")],
        "demo": [],
        "train": small_arguments(place),
    }[command]
    assert main([command, *options, "--out", "/proc/absent/there"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    expected = "hylorada: cannot use /proc/absent (no such file or directory); name another"
    assert last == expected


def test_a_full_disk_is_one_line_and_no_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def full(options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(COMMANDS, "demo", COMMANDS["demo"]._replace(work=full))
    assert main(["demo"]) == 1
    expected = "hylorada: the system refuses to read or write: No space left on device\n"
    assert capsys.readouterr().err == expected


def test_a_refused_run_leaves_its_folder_to_the_corrected_one(place: Path, capsys: Output) -> None:
    words = ["train", *small_arguments(place), "--out=deep/run"]
    for wrong, line in (
        ("--adapter.r=100000", "hylorada: r must not exceed"),
        ("--target_modules=[nothing]", "hylorada: target_modules must be ends of names"),
    ):
        assert main([*words, wrong]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
        assert not Path("deep").exists()
    assert main([*words, "--adapter.r=4"]) == 0


@pytest.mark.parametrize(("text", "held"), [("", "nothing"), ("- a", "- a")])
def test_a_configuration_without_options_says_what_it_holds(
    text: str, held: str, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    line = refusal(capsys, "train", "--config", tmp_path / "run.yaml")
    assert line.startswith("hylorada: --config must name a YAML file of options")
    assert line.endswith(f"; it holds {held}\n")


def test_a_run_that_diverges_is_one_line_and_exit_code_1(
    place: Path, tmp_path: Path, capsys: Output
) -> None:
    words = [*small_arguments(place), "--learning_rate=1e30", f"--out={tmp_path / 'run'}"]
    assert main(["train", *words]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("hylorada: the ")
    assert "try a lower learning_rate" in last
    assert not (tmp_path / "run" / "result.json").exists()


# Spellings


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--max-length", "--max_length"),
        ("--max-length=3-4", "--max_length=3-4"),
        ("--max_length", "--max_length"),
        ("a-b", "a-b"),
        ("-", "-"),
        ("-1", "-1"),
    ],
)
def test_only_the_name_of_an_option_changes(word: str, expected: str) -> None:
    assert underscored(word) == expected


def test_dashes_and_underscores_are_the_same_option(place: Path, capsys: Output) -> None:
    base = ["evaluate", str(place / "model"), f"--data={place / 'text'}", "--metrics", "ppl"]
    found = []
    for spelling in (
        ["--max-length=24", "--max-tokens", "96"],
        ["--max_length=24", "--max_tokens=96"],
    ):
        capsys.readouterr()
        assert main([*base, *spelling, "--json", "-"]) == 0
        result = json.loads(capsys.readouterr().out)
        found.append((result["settings"], result["metrics"]))
    assert found[0] == found[1]
    assert (found[0][0]["max_length"], found[0][0]["max_tokens"]) == (24, 96)


# Bench


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a bench of very small models writes: its numbers and what it prints."""
    folder = tmp_path_factory.mktemp("bench")
    sizes = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 50, "batch": 1, "length": 8}
    words = ["bench", "adapters", "--rounds", "1", "--json", str(folder / "result.json")]
    with pytest.MonkeyPatch.context() as patch, (folder / "shown.txt").open("w") as shown:
        for name in ("SMALL_GPT2", "SMALL_LLAMA", "WIDE_LLAMA"):
            patch.setattr(adapters, name, replace(getattr(adapters, name), **sizes))
        with redirect_stdout(shown):
            assert main(words) == 0
    return folder


@pytest.fixture
def result(measured: Path) -> dict[str, Any]:
    return json.loads((measured / "result.json").read_text())


def test_bench_shows_a_table_for_each_measurement(measured: Path, result: dict[str, Any]) -> None:
    shown = (measured / "shown.txt").read_text()
    assert shown.count("┏") == len(result["runs"]) == 6


def test_bench_covers_both_families_both_dtypes_and_decoding(result: dict[str, Any]) -> None:
    covered = [
        (run["what"].split()[0], run["shape"]["family"], run["dtype"], run["targets"])
        for run in result["runs"]
    ]
    assert covered == [
        ("forward", "gpt2", "float32", "attention"),
        ("forward", "llama", "float32", "attention"),
        ("forward", "gpt2", "bfloat16", "attention"),
        ("forward", "gpt2", "bfloat16", "all"),
        ("reading", "llama", "float32", "all"),
        ("decoding", "llama", "float32", "all"),
    ]


def test_bench_measures_the_rounds_asked_for_and_generates_at_least_three_times(
    result: dict[str, Any],
) -> None:
    assert [run["rounds"] for run in result["runs"]] == [1, 1, 1, 1, 3, 3]


def test_bench_names_machine_and_versions(result: dict[str, Any]) -> None:
    packages = ("torch", "transformers", "peft")
    assert result["versions"] == {name: version(name) for name in packages}
    assert result["machine"]["cores"] >= 1
    assert result["threads"] >= 1


def test_bench_can_write_pure_json(
    result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    asked = []

    def again(rounds: int) -> dict[str, Any]:
        asked.append(rounds)
        return result

    monkeypatch.setattr(adapters, "measure", again)  # once was enough
    assert main(["bench", "adapters", "--rounds=4", "--json=-"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert asked == [4]


# The process


def test_a_reader_who_closes_the_pipe_loses_no_numbers(tmp_path: Path) -> None:
    numbers = tmp_path / "coder.json"
    command = [sys.executable, "-m", "hylorada", "bench", "coder", "--rounds=1", "--json", numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.close()
    assert json.loads(numbers.read_text())["what"] == "coder"


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"]], ids=" ".join)
def test_a_reader_who_leaves_before_the_help_is_written_hears_nothing(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hylorada", *words]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == ""


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "hylorada", "report", "./absent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    expected = "hylorada: a report is made of a folder that exists; there is no absent\n"
    assert done.stderr == expected
