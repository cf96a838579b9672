"""Train the adapter of a model: exact when resumed, loud when something did not train."""

import os
import shutil
from collections.abc import Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.utils.data import Dataset, default_collate
from transformers import TrainerCallback

from hylorada.errors import SpecError
from hylorada.models.anatomy import find_decoder
from hylorada.specs.run import OptimisationSpec, TrainingSpec
from hylorada.training.audit import LOW_PRECISION, AuditReport
from hylorada.training.loop import (
    AdapterTrainer,
    Collate,
    Item,
    Penalty,
    checkpoints,
    last_intact,
    load_parameters,
)
from hylorada.training.loss import chunked_loss
from hylorada.training.shifted_attention import use_shifted_attention


@contextmanager
def compiled_blocks(model: nn.Module, *, backend: str = "inductor") -> Iterator[None]:
    """Compile each block of a model inside the block of code.

    All blocks but the first share a compilation: they differ in their weights, and in their number,
    by which a position bias knows them. What lies between blocks, such as the generation of a
    subspace's factors, stays as it is.
    """
    blocks = find_decoder(model).layers
    for block in blocks:
        block.compile(backend=backend)
    try:
        # Else a graph would hold the number of its block, and serve no other.
        with torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
            yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """What a training came to; losses in nats per token.

    Attributes:
        train_loss: Mean over all steps.
        valid_loss: Of the weights the model ends with, token-weighted; None without data.
        best_step: The step those weights are from, where the best were kept.
        seconds: Time in this process, without what a resumed training had done before.
    """

    steps: int
    train_loss: float
    valid_loss: float | None
    valid_tokens: int
    best_step: int | None
    seconds: float
    audit: AuditReport


def train(
    model: nn.Module,
    train_data: Dataset[Item],
    *,
    training: TrainingSpec,
    folder: Path,
    optimisation: OptimisationSpec | None = None,
    valid_data: Dataset[Item] | None = None,
    collate: Collate = default_collate,
    callbacks: Sequence[TrainerCallback] = (),
    penalty: Penalty | None = None,
) -> TrainingOutcome:
    """Train the trainable parameters of a model and return what came of it.

    Checkpoints go to `folder`; the latest intact one there is continued, to the same numbers as
    a training that was never interrupted. Raises `UntrainedParameterError` at the end if any
    trainable parameter did not train. A `penalty` is added to the loss of every step.
    """
    _check_precision(model)
    if valid_data is not None and len(cast(Sized, valid_data)) == 0:
        raise SpecError("validation data must have at least one item; got none; pass None instead")
    trainer = AdapterTrainer(
        model,
        folder,
        training=training,
        optimisation=optimisation or OptimisationSpec(),
        train_data=train_data,
        valid_data=valid_data,
        collate=collate,
        callbacks=callbacks,
        penalty=penalty,
    )
    start = last_intact(folder)
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        for damaged in takewhile(lambda path: path != start, checkpoints(folder)):
            shutil.rmtree(damaged)
    with (
        _repeatable(training.deterministic),
        _loss_in_chunks(model, training),
        use_shifted_attention(model, group_size=training.shifted_group)
        if training.shifted_group
        else nullcontext(),
        compiled_blocks(model) if training.compile else nullcontext(),
    ):
        output = trainer.train(resume_from_checkpoint=None if start is None else str(start))
        if trainer.best:
            load_parameters(model, trainer.best, "the best evaluation")
        valid = trainer.evaluate() if valid_data is not None else {}
    return TrainingOutcome(
        steps=output.global_step,
        train_loss=output.training_loss,
        valid_loss=valid.get("eval_loss"),
        valid_tokens=int(valid.get("eval_tokens", 0)),
        best_step=trainer.state.best_global_step if trainer.best else None,
        seconds=output.metrics["train_runtime"],
        audit=trainer.audit.report,
    )


def validation_loss(
    model: nn.Module,
    data: Dataset[Item],
    *,
    training: TrainingSpec,
    folder: Path,
    collate: Collate = default_collate,
) -> tuple[float, int]:
    """Return the mean loss over all valid tokens, in nats, and their count, without training."""
    trainer = AdapterTrainer(
        model,
        folder,
        training=training,
        optimisation=OptimisationSpec(),
        valid_data=data,
        collate=collate,
    )
    with _loss_in_chunks(model, training):
        metrics = trainer.evaluate()
    return metrics["eval_loss"], int(metrics["eval_tokens"])


@contextmanager
def _repeatable(wanted: bool) -> Iterator[None]:
    """Prefer kernels that give the same bits every time inside the block, if wanted.

    Where there is no such kernel the usual one serves, with a warning; fused attention on a GPU
    takes this for a preference and may still add up in any order.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:  # cuBLAS asks for a workspace of fixed size; whoever set one knows better
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


@contextmanager
def _loss_in_chunks(model: nn.Module, training: TrainingSpec) -> Iterator[None]:
    device = next(model.parameters()).device.type
    with ExitStack() as stack:
        if tokens := training.chunk_tokens:
            # Entering probes the model, in the precision it will be trained in.
            with torch.autocast(device, torch.bfloat16, training.precision == "autocast"):
                stack.enter_context(chunked_loss(model, tokens, compiled=training.compile))
        yield


def _check_precision(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype in LOW_PRECISION:
            raise SpecError(
                "trained parameters must be float32, because half precision rounds small steps "
                f"away; {name} is {parameter.dtype}; use get_peft_model's autocast_adapter_dtype"
            )
