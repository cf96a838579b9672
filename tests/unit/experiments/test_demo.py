"""The demonstration: arms that share data and seeds, and sentences that follow the intervals."""

import io
import json
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hylorada.cli import main
from hylorada.evaluation.statistics import Estimate
from hylorada.experiments import demo as module
from hylorada.experiments.config import DataSection
from hylorada.experiments.demo import ARMS, BASELINE, Arm, _arm, _comparison, _gain, _slug, demo
from tests.small_run import write_text

NAMES = ("rsLoRA", "+ landmarks", "+ low-rank control")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the demonstration a matter of seconds and return an empty folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYLORADA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "200")
        patch.setattr(module, "SEEDS", (1, 2))
        patch.setattr(module, "SEQUENCES", 24)
        patch.setattr(module, "LENGTH", 32)
        write_text(text := tmp_path_factory.mktemp("source") / "text")
        patch.setattr(module, "DataSection", partial(DataSection, source=str(text)))
        yield tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def said(small: Path) -> str:
    """Return what a demonstration prints."""
    with redirect_stdout(io.StringIO()) as text:
        assert main(["demo", "--out", str(small / "out")]) == 0
    return text.getvalue()


@pytest.fixture(scope="module")
def result(small: Path, said: str) -> dict[str, Any]:
    return json.loads((small / "out" / "result.json").read_text())


def test_the_arms_are_a_baseline_the_landmarks_and_a_control() -> None:
    assert tuple(ARMS) == NAMES
    assert NAMES[0] == BASELINE


def test_an_arm_trains_the_embedded_model_on_the_embedded_text() -> None:
    config = module._config(ARMS["+ landmarks"], 42, Path("somewhere"))
    assert (config.model.source, config.data.source) == ("tiny", "sotu")
    assert (config.adapter, config.training.seed) == (ARMS["+ landmarks"], 42)
    assert config.out == "somewhere"


def test_the_report_names_every_arm_and_the_frozen_model(small: Path, said: str) -> None:
    report = (small / "out" / "report.md").read_text()
    for name in ("frozen", *NAMES):
        assert report.count(f"| {name} |") == 1
        assert name in said


def test_the_report_tells_what_it_was_made_of(small: Path, said: str) -> None:
    report = (small / "out" / "report.md").read_text()
    assert "32 tokens of context, 24 training sequences" in report
    frozen = json.loads((small / "out" / "frozen" / "result.json").read_text())
    assert f"validation on {frozen['valid_tokens']:,} tokens" in report
    assert report.count(": all ") == 3  # the audit of every arm


def test_the_report_says_what_the_terminal_says(small: Path, said: str) -> None:
    report = (small / "out" / "report.md").read_text()
    sentence = next(line for line in report.splitlines() if line.startswith("Landmarks change"))
    assert " ".join(sentence.split()) in " ".join(said.split())
    assert str(small / "out" / "report.md") in said


def test_every_arm_has_a_run_for_each_seed(result: dict[str, Any], small: Path) -> None:
    for name in NAMES:
        assert [run["seed"] for run in result["arms"][name]["runs"]] == [1, 2]
    folders = sorted(path.name for path in (small / "out").iterdir() if path.is_dir())
    arms = ("landmarks", "low-rank-control", "rslora")
    assert folders == ["frozen", *(f"{arm}-{seed}" for arm in arms for seed in (1, 2))]


def test_arms_share_data_and_the_control_has_the_size_of_the_landmarks(
    result: dict[str, Any],
) -> None:
    runs = [arm["runs"] for arm in result["arms"].values()]
    assert len({run["data"] for arm in runs for run in arm}) == 1
    plain, landmarks, control = (arm[0]["trainable_parameters"] for arm in runs)
    assert plain < landmarks
    assert abs(control - landmarks) < 0.1 * (landmarks - plain)


def test_only_the_baseline_has_no_gain(result: dict[str, Any]) -> None:
    gains = {name: arm["gain_percent"] for name, arm in result["arms"].items()}
    assert gains[BASELINE] is None
    assert all(gains[name]["clusters"] == 2 for name in NAMES[1:])


def test_a_second_demonstration_reuses_the_runs(small: Path, said: str) -> None:
    results = sorted((small / "out").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    report = (small / "out" / "report.md").read_text()
    assert demo(small / "out", Console(file=io.StringIO())) == small / "out" / "report.md"
    assert len(results) == 7
    assert [path.stat().st_mtime_ns for path in results] == before
    assert (small / "out" / "report.md").read_text() == report


def estimate(value: float, reach: float | None) -> Estimate:
    interval = None if reach is None else (value - reach, value + reach)
    return Estimate(value=value, standard_error=None, interval=interval, clusters=3)


@pytest.mark.parametrize(
    ("landmarks", "control", "answer"),
    [
        (estimate(2.0, 1.0), estimate(0.5, 0.1), "more than the control"),
        (estimate(2.0, 1.0), estimate(3.0, 9.0), "the control of the same size explains the gain"),
        (estimate(2.0, 1.0), estimate(2.0, 1.0), "the control of the same size explains the gain"),
        (estimate(2.0, 2.5), estimate(0.5, 0.1), "not told apart from nothing"),
        (estimate(2.0, 2.0), estimate(0.5, 0.1), "not told apart from nothing"),
        (estimate(2.0, None), estimate(0.5, None), "not told apart from nothing"),
    ],
    ids=["more", "explained", "tie", "crosses zero", "touches zero", "one seed"],
)
def test_the_comparison_follows_the_intervals(
    landmarks: Estimate, control: Estimate, answer: str
) -> None:
    assert answer in _comparison(landmarks, control)


def test_a_gain_is_shown_as_a_change_of_perplexity() -> None:
    assert _gain(estimate(2.0, 0.5)) == "-2.00 % [-2.50, -1.50]"
    assert _gain(estimate(-1.0, 3.0)) == "+1.00 % [-2.00, +4.00]"


def runs(parameters: int, *perplexities: float) -> list[dict[str, Any]]:
    return [
        {
            "valid_loss": math.log(value),
            "valid_perplexity": value,
            "trainable_parameters": parameters,
        }
        for value in perplexities
    ]


def test_a_gain_is_the_mean_of_paired_percentages() -> None:
    arm = _arm("+ landmarks", runs(150, 18.0, 9.0), runs(100, 20.0, 10.0))
    assert arm.gain is not None
    assert arm.gain.value == pytest.approx(10.0)
    assert arm.gain.interval == pytest.approx((10.0, 10.0))
    assert arm.per_percent == pytest.approx(5.0)
    assert (arm.parameters, arm.perplexities) == (150, [18.0, 9.0])


def test_unequal_gains_have_the_interval_of_a_paired_t() -> None:
    arm = _arm("+ landmarks", runs(150, 19.0, 9.7), runs(100, 20.0, 10.0))
    assert arm.gain is not None
    assert arm.gain.value == pytest.approx(4.0)  # of 5 % and 3 %
    reach = 12.706204736  # times the standard error, 1
    assert arm.gain.interval == pytest.approx((4.0 - reach, 4.0 + reach))


def test_a_loss_has_no_price() -> None:
    arm = _arm("+ landmarks", runs(150, 21.0, 11.0), runs(100, 20.0, 10.0))
    assert arm.per_percent is None


def test_the_baseline_is_compared_with_nothing() -> None:
    results = runs(100, 20.0, 10.0)
    assert _arm(BASELINE, results, results) == Arm(
        name=BASELINE, results=results, gain=None, per_percent=None
    )


def test_a_folder_is_named_by_letters_and_hyphens() -> None:
    assert [_slug(name) for name in NAMES] == ["rslora", "landmarks", "low-rank-control"]
