"""What a training writes about its subspace; whole trainings are in `tests/contracts`."""

from pathlib import Path

import msgspec
import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hylorada.errors import SpecError
from hylorada.records.runs import GradientNorms, TraceLine
from hylorada.subspace.trace import SubspaceTrace, gradient_norms
from tests.unit.subspace.small import adapt, space


def line(step: int) -> str:
    norms = GradientNorms(A=0.0, B=1.0, layers={})
    record = TraceLine(step=step, gradient_norm=norms, vector_norm=0.0, shares={}, sharpness=10.0)
    return msgspec.json.encode(record).decode() + "\n"


def test_a_resumed_trace_drops_later_lines_and_the_half_that_a_killed_process_left(
    tmp_path: Path,
) -> None:
    path = tmp_path / "subspace.jsonl"
    path.write_text(line(1) + line(10) + line(9)[:20])
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    trace = SubspaceTrace(space(adapt("gpt2")), path)
    trace.on_train_begin(arguments, TrainerState(global_step=9), TrainerControl())
    assert path.read_text() == line(1)


def test_a_trace_needs_a_step_between_lines(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at least one step between lines; got 0"):
        SubspaceTrace(space(adapt("gpt2")), tmp_path / "subspace.jsonl", every=0)


def test_norms_need_a_gradient_that_was_kept() -> None:
    with pytest.raises(SpecError, match="no gradient was kept; set keeps_gradient"):
        gradient_norms(space(adapt("gpt2")))
