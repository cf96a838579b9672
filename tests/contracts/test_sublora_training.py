"""SubLoRA under `transformers.Trainer` and this library's own: one projection a step, traced."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hylorada.specs.run import OptimisationSpec, TrainingSpec
from hylorada.subspace import create_intrinsic_model
from hylorada.subspace.trace import subspace_callbacks
from hylorada.training.audit import AuditCallback
from hylorada.training.optimisation import parameter_groups
from hylorada.training.trainer import train
from tests.families import build, logits, tokens
from tests.unit.subspace.small import MODES, Stack, adapt, space

HEAD: dict[str, Any] = {"target_modules": ["c_attn", "lm_head"]}


class Rows(Dataset[dict[str, Tensor]]):
    """Twenty-four rows of random tokens."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = tokens(batch=1, time=16, seed=index)[0]
        return {"input_ids": row, "labels": row.clone()}


def trained(model: PeftModel, folder: Path, *, resume: Path | None = None, **more: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 1,
        "learning_rate": 5e-2,
        "max_grad_norm": 1.0,
        "seed": 0,
        "report_to": [],
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(str(folder), **defaults | more)
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[AuditCallback()])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("mode", MODES)
def test_accumulated_steps_are_those_of_whole_batches_with_one_projection_each(
    mode: str, tmp_path: Path
) -> None:
    whole, pieces = (adapt("gpt2", moved=False, allocation_mode=mode, **HEAD) for _ in range(2))
    expected = losses(trained(whole, tmp_path / "whole"))
    found = trained(
        pieces,
        tmp_path / "pieces",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=4,
    )
    assert expected[-1] < expected[0]
    assert losses(found) == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(space(pieces).vector, space(whole).vector, atol=1e-4, rtol=1e-3)
    assert space(pieces).projections == {"apply": 6, "adjoint": 6}


def test_vector_and_gates_step_at_their_own_rates() -> None:
    spec = OptimisationSpec(learning_rate=1e-3, subspace_multiplier=4.0, gate_multiplier=7.0)
    peft_model = adapt("gpt2", allocation_mode="learned")
    wrapped = create_intrinsic_model(Stack(), 12, "learned")
    halved = adapt("gpt2", allocation_mode="learned")
    parametrize.register_parametrization(space(halved), "vector", torch.nn.Identity())
    for model in (peft_model, wrapped, halved):
        subspace, gates = parameter_groups(model, spec)
        assert (subspace["component"], gates["component"]) == ("subspace", "gates")
        assert (subspace["lr"], gates["lr"]) == pytest.approx((4e-3, 7e-3))
        # Decay pulls the vector to the model before training, gates to an even split.
        assert (subspace["weight_decay"], gates["weight_decay"]) == (0.01, 0.0)


def test_a_resumed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    model = adapt("gpt2", moved=False, allocation_mode="learned", lora_dropout=0.1, **HEAD)
    trained(model, tmp_path / "whole")
    resumed = adapt("gpt2", moved=False, allocation_mode="learned", lora_dropout=0.1, **HEAD)
    trained(resumed, tmp_path / "resumed", resume=tmp_path / "whole" / "checkpoint-3")
    for one, two in zip(space(model).parameters(), space(resumed).parameters(), strict=True):
        assert torch.equal(one, two)
    loaded = PeftModel.from_pretrained(build("gpt2"), tmp_path / "whole" / "checkpoint-6").eval()
    assert torch.equal(logits(loaded, tokens()), logits(model.eval(), tokens()))


def own_training(model: PeftModel, folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Train in chunks, with a trace, and return its lines."""
    spec = TrainingSpec(
        **{"steps": 6, "batch_size": 4, "progress": False, "cpu": True, "log_every": 1} | changes
    )
    train(
        model,
        Rows(),
        training=spec,
        optimisation=OptimisationSpec(learning_rate=5e-3),
        folder=folder / "checkpoints",
        callbacks=subspace_callbacks(model, folder, every=2),
    )
    return [json.loads(line) for line in (folder / "subspace.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_our_own_trainer_agrees_too_and_traces_gates_and_gradients(
    mode: str, tmp_path: Path
) -> None:
    whole, pieces = (adapt("gpt2", moved=False, allocation_mode=mode, **HEAD) for _ in range(2))
    lines = own_training(whole, tmp_path / "whole")
    again = own_training(pieces, tmp_path / "pieces", accumulation=2, chunk_tokens=9)
    torch.testing.assert_close(space(pieces).vector, space(whole).vector, atol=1e-4, rtol=1e-3)
    assert space(pieces).projections["adjoint"] == 6
    assert [line["step"] for line in lines] == [1, 2, 4, 6]
    for one, two in zip(lines, again, strict=True):
        for side in "AB":
            # While B is zero, A has no gradient.
            first = one["step"] == 1 and side == "A"
            assert (one["gradient_norm"][side] < 1e-6) == first
            assert two["gradient_norm"][side] == pytest.approx(
                one["gradient_norm"][side], rel=1e-2, abs=1e-6
            )
    layers = [*(f"transformer.h.{n}" for n in range(3)), "rest"]
    assert sorted(lines[0]["gradient_norm"]["layers"]) == sorted(layers)
    assert list(lines[-1]["shares"]) == (layers if mode == "learned" else [])
    if mode == "learned":
        assert all(share == 0.5 for share in lines[0]["shares"].values())
        assert all(share != 0.5 for share in lines[-1]["shares"].values())
    assert not space(whole).keeps_gradient


def test_a_resumed_trace_continues_and_annealing_ends_sharp(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"allocation_mode": "learned", "gate_sharpness_start": 0.1, **HEAD}
    model = adapt("gpt2", moved=False, **changes)
    lines = own_training(model, tmp_path / "whole", checkpoint_every=3)
    sharpness = [line["sharpness"] for line in lines]
    assert sharpness == pytest.approx([0.1 * 100 ** (step / 5) for step in (0, 1, 3, 5)])
    assert space(model).progress == 1.0
    checkpoints = tmp_path / "whole" / "checkpoints"
    for folder in checkpoints.glob("*-6"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    resumed = adapt("gpt2", moved=False, **changes)
    assert own_training(resumed, tmp_path / "whole", checkpoint_every=3) == lines


def test_models_without_a_subspace_have_nothing_to_watch(tmp_path: Path) -> None:
    assert subspace_callbacks(build("gpt2"), tmp_path) == []
