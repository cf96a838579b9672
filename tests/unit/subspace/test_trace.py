"""What a training writes about its subspace; whole trainings are in `tests/contracts`."""

from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hylorada.errors import SpecError
from hylorada.subspace.trace import SubspaceTrace, gradient_norms
from tests.unit.subspace.small import adapt, space


def test_a_resumed_trace_drops_later_lines_and_the_half_that_a_killed_process_left(
    tmp_path: Path,
) -> None:
    path = tmp_path / "subspace.jsonl"
    path.write_text('{"step": 1}\n{"step": 10}\n{"st')
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True)
    SubspaceTrace(path).on_train_begin(arguments, TrainerState(global_step=9), TrainerControl())
    assert path.read_text() == '{"step": 1}\n'


def test_a_trace_needs_a_step_between_lines(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="at least one step between lines; got 0"):
        SubspaceTrace(tmp_path / "subspace.jsonl", every=0)


def test_norms_need_a_gradient_that_was_kept() -> None:
    with pytest.raises(SpecError, match="no gradient was kept; set keeps_gradient"):
        gradient_norms(space(adapt("gpt2")))
