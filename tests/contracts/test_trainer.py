"""`transformers.Trainer` trains every parameter, and resumes to the same weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from hylorada.training.audit import AuditCallback
from tests.families import adapt, build, logits, tokens, trainable


class Rows(Dataset[dict[str, Tensor]]):
    """Sixteen rows of random tokens."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = tokens(batch=1, time=16, seed=index)[0]
        return {"input_ids": row, "labels": row.clone(), "attention_mask": torch.ones_like(row)}


def train(model: PeftModel, folder: Path, *, resume: Path | None = None, **more: Any) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        max_steps=6,
        save_steps=3,
        logging_steps=1,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        seed=0,
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        **more,
    )
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=[AuditCallback()])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "changes", [{}, {"use_dora": True, "landmark_design": "per_layer", "share_factors": "A"}]
)
def test_a_resumed_training_ends_with_the_same_weights(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = adapt(family, perturbed=False, **changes)
    history = train(model, tmp_path / "whole").state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0]
    resumed = adapt(family, perturbed=False, **changes)
    train(resumed, tmp_path / "resumed", resume=tmp_path / "whole" / "checkpoint-3")
    expected = trainable(model)
    for name, parameter in trainable(resumed).items():
        torch.testing.assert_close(parameter, expected[name], msg=name)


def test_a_checkpoint_of_the_trainer_is_an_adapter(tmp_path: Path) -> None:
    model = adapt("llama", perturbed=False)
    train(model, tmp_path)
    loaded = PeftModel.from_pretrained(build("llama"), tmp_path / "checkpoint-6").eval()
    assert torch.equal(logits(loaded, tokens()), logits(model.eval(), tokens()))


def test_training_with_checkpointing_ends_with_the_same_weights(tmp_path: Path) -> None:
    plain, saving = (adapt("llama", perturbed=False) for _ in range(2))
    train(plain, tmp_path / "plain")
    train(
        saving,
        tmp_path / "saving",
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    expected = trainable(plain)
    for name, parameter in trainable(saving).items():
        torch.testing.assert_close(parameter, expected[name], atol=1e-4, rtol=1e-3, msg=name)
