"""The demonstration: a small paired comparison of adapters on the embedded model and text.

Too small to settle anything, large enough to show how a question is asked: arms that share data,
order and seeds, a control of the same size, and a difference with its interval.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformers.utils import logging

from hylorada.evaluation.statistics import Estimate, mean_estimate, params_per_percent
from hylorada.experiments.config import AdapterSection, DataSection, TrainConfig
from hylorada.experiments.run import run
from hylorada.training.checkpoints import write_atomically
from hylorada.training.settings import TrainingSpec

SEEDS = (42, 123, 456)
LENGTH = 256
SEQUENCES = 160
PLAIN = AdapterSection(landmark_enabled=False, position_bias=False)
BASELINE = "rsLoRA"
ARMS = {
    BASELINE: PLAIN,
    "+ landmarks": replace(PLAIN, landmark_enabled=True),
    "+ low-rank control": replace(PLAIN, landmark_enabled=True, landmark_design="low_rank"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The runs of one arm, one a seed, and their paired gain over the baseline in per cent."""

    name: str
    results: list[dict[str, Any]]
    gain: Estimate | None
    per_percent: float | None

    @property
    def perplexities(self) -> list[float]:
        """Return the validation perplexity of each seed."""
        return [result["valid_perplexity"] for result in self.results]

    @property
    def parameters(self) -> int:
        """Return how many numbers were trained."""
        return int(self.results[0]["trainable_parameters"])


def demo(out: Path, console: Console) -> Path:
    """Run the comparison, print what was found, and return the path of the report.

    Finished runs are reused, so an interrupted demonstration goes on where it stopped.
    """
    console.print(
        f"Adapting the embedded model to State of the Union addresses: {len(ARMS)} arms, "
        f"{len(SEEDS)} seeds each, on the same text in the same order."
    )
    with _no_loading_bars():
        frozen, arms = _compared(out, console)
    report = out / "report.md"
    write_atomically(out / "result.json", json.dumps(_plain(frozen, arms), indent=1) + "\n")
    write_atomically(report, _report(frozen, arms))
    console.print(_table(frozen, arms))
    console.print(" ".join(_sentences(frozen, arms)))
    console.print(f"The report lies in {report}.", markup=False, soft_wrap=True)
    return report


def _compared(out: Path, console: Console) -> tuple[dict[str, Any], list[Arm]]:
    frozen = run(_config(AdapterSection(method="none"), SEEDS[0], out / "frozen"))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    columns = (TextColumn("{task.description:28s}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(ARMS) * len(SEEDS))
        for seed in SEEDS:
            for name, adapter in ARMS.items():
                progress.update(task, description=f"{name}, seed {seed}")
                folder = out / f"{_slug(name)}-{seed}"
                results[name].append(run(_config(adapter, seed, folder)))
                progress.advance(task)
    return frozen, [_arm(name, results[name], results[BASELINE]) for name in ARMS]


@contextmanager
def _no_loading_bars() -> Iterator[None]:
    """Keep the bars that transformers draws for each loaded model out of our own."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _config(adapter: AdapterSection, seed: int, folder: Path) -> TrainConfig:
    return TrainConfig(
        data=DataSection(length=LENGTH, num_train=SEQUENCES, num_val=64),
        adapter=adapter,
        training=TrainingSpec(seed=seed, progress=False, cpu=True, checkpoint_every=None),
        out=str(folder),
    )


def _arm(name: str, results: list[dict[str, Any]], baseline: list[dict[str, Any]]) -> Arm:
    if name == BASELINE:
        return Arm(name=name, results=results, gain=None, per_percent=None)
    logarithms = np.array(
        [
            base["valid_loss"] - result["valid_loss"]
            for base, result in zip(baseline, results, strict=True)
        ]
    )
    gain = mean_estimate(100 * -np.expm1(-logarithms))
    added = results[0]["trainable_parameters"] - baseline[0]["trainable_parameters"]
    without = math.exp(np.mean([result["valid_loss"] for result in baseline]))
    with_it = math.exp(np.mean([result["valid_loss"] for result in results]))
    return Arm(
        name=name,
        results=results,
        gain=gain,
        per_percent=params_per_percent(added, without, with_it),
    )


def _sentences(frozen: dict[str, Any], arms: list[Arm]) -> list[str]:
    baseline, landmarks, control = arms
    before = frozen["valid_perplexity"]
    after = float(np.mean(baseline.perplexities))
    assert landmarks.gain is not None
    assert control.gain is not None
    return [
        f"Adaptation with rsLoRA lowers perplexity from {before:.2f} to {after:.2f}.",
        f"Landmarks change it by a further {_gain(landmarks.gain)}, a plain low-rank map of the "
        f"same size and place by {_gain(control.gain)}: "
        + _comparison(landmarks.gain, control.gain),
    ]


def _comparison(landmarks: Estimate, control: Estimate) -> str:
    low, _ = landmarks.interval or (-math.inf, math.inf)
    if low <= 0:
        return "over these three seeds the landmarks are not told apart from nothing."
    if control.value >= landmarks.value:
        return "the landmarks help, and the control of the same size explains the gain."
    return "the landmarks help, and more than the control of the same size."


def _gain(gain: Estimate) -> str:
    low, high = gain.interval or (math.nan, math.nan)
    return f"{-gain.value:+.2f} % [{-high:+.2f}, {-low:+.2f}]"


def _rows(frozen: dict[str, Any], arms: list[Arm]) -> list[tuple[str, str, str, str, str]]:
    rows = [("frozen", "0", f"{frozen['valid_perplexity']:.3f}", "", "")]
    for arm in arms:
        shown = " ".join(f"{value:.3f}" for value in arm.perplexities)
        change = "" if arm.gain is None else _gain(arm.gain)
        cost = "" if arm.per_percent is None else f"{arm.per_percent:,.0f}"
        rows.append((arm.name, f"{arm.parameters:,}", shown, change, cost))
    return rows


HEADINGS = ("arm", "trained", "perplexity by seed", "change [95 % interval]", "per 1 %")


def _table(frozen: dict[str, Any], arms: list[Arm]) -> Table:
    table = Table(box=SIMPLE)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for row in _rows(frozen, arms):
        table.add_row(*row)
    return table


def _report(frozen: dict[str, Any], arms: list[Arm]) -> str:
    lines = [
        "# Do landmarks earn their place? A demonstration",
        "",
        *_sentences(frozen, arms),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(row) + " |" for row in _rows(frozen, arms)),
        "",
        f"Model `tiny`, text `sotu`, {LENGTH} tokens of context, {SEQUENCES} training sequences, "
        f"one epoch; validation on {frozen['valid_tokens']:,} tokens. Arms of one seed share data "
        "and order. The interval is a paired t over three seeds; it does not contain the noise "
        "of the validation text. Changes are against rsLoRA, negative ones improvements; the last "
        "column is the number of trained numbers added for each per cent.",
        "",
        "Every trained parameter was seen by the optimiser, got a gradient and moved:",
        *(f"- {arm.name}: {arm.results[0]['audit']}" for arm in arms),
        "",
    ]
    return "\n".join(lines)


def _plain(frozen: dict[str, Any], arms: list[Arm]) -> dict[str, Any]:
    return {
        "frozen": frozen,
        "arms": {
            arm.name: {
                "gain_percent": None if arm.gain is None else arm.gain.as_dict(),
                "parameters_per_percent": arm.per_percent,
                "runs": arm.results,
            }
            for arm in arms
        },
    }


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).split()).lower()
