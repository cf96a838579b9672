"""What a training does, and how `transformers.Trainer` is told."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers import TrainingArguments

from hylorada.errors import SpecError
from hylorada.training.optimisation import OptimisationSpec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """What a training does; a step is one update of the optimiser.

    Attributes:
        epochs: Passes over the training data; ignored if `steps` is given.
        steps: Updates of the optimiser; None counts `epochs`.
        batch_size: Sequences per step over all processes: 1 × 8 and 2 × 4 are the same training.
        accumulation: Pieces of a batch computed one after the other, to save memory.
        precision: "bfloat16" expects the frozen weights in bfloat16, "autocast" computes in it from
            float32 weights; trained parameters are float32 in every case.
        gradient_checkpointing: Recompute blocks in the backward pass, to save memory.
        chunk_tokens: Rows of logits that exist at a time; 0 uses the model's own loss.
        shifted_group: Tokens in a group of shifted sparse attention while training; None attends
            to everything. Evaluation always does.
        evaluate_every: Steps between evaluations; None evaluates at the end only.
        evaluation_batch_size: Sequences in a batch of validation.
        keep_best: End with the weights of the best evaluation instead of the last ones.
        checkpoint_every: Steps between checkpoints; None writes one at the end only.
        checkpoints_kept: Newest checkpoints kept while training.
        log_every: Steps between lines of metrics.jsonl.
        workers: Processes that load data; 0 loads in the training's own.
        report_to: Trackers of transformers, such as tensorboard or wandb.
        progress: Show progress bars, on standard error.
        cpu: Stay on the CPU where there is an accelerator.
        deterministic: Prefer kernels that give the same bits every time; a CPU always has them, an
            accelerator is a little slower for it.
        compile: Compile blocks and loss: half a minute at the start, then faster steps on a GPU.
        seed: Of the sequences drawn, their order, the adapter's first values and dropout.
    """

    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 8
    accumulation: int = 1
    precision: Literal["float32", "bfloat16", "autocast"] = "float32"
    gradient_checkpointing: bool = False
    chunk_tokens: int = 1024
    shifted_group: int | None = None
    evaluate_every: int | None = None
    evaluation_batch_size: int = 8
    keep_best: bool = False
    checkpoint_every: int | None = 100
    checkpoints_kept: int = 2
    log_every: int = 10
    workers: int = 0
    report_to: tuple[str, ...] = ()
    progress: bool = True
    cpu: bool = False
    deterministic: bool = False
    compile: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        """Check every field."""
        if not 0.0 < self.epochs < math.inf:
            raise SpecError(f"epochs must be positive and finite; got {self.epochs}")
        for name in ("steps", "batch_size", "accumulation", "evaluate_every", "checkpoint_every"):
            self._at_least(name, 1)
        for name in ("evaluation_batch_size", "checkpoints_kept", "log_every"):
            self._at_least(name, 1)
        self._at_least("shifted_group", 2)
        for name in ("chunk_tokens", "workers", "seed"):
            self._at_least(name, 0)
        if self.batch_size % self.accumulation:
            raise SpecError(
                f"batch_size must be a multiple of accumulation, {self.accumulation}; "
                f"got {self.batch_size}"
            )
        if self.keep_best and self.evaluate_every is None:
            raise SpecError("keep_best needs evaluations during training; set evaluate_every")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and value < least:
            raise SpecError(f"{name} must be at least {least}; got {value}")


def trainer_arguments(
    training: TrainingSpec, optimisation: OptimisationSpec, folder: Path, *, evaluates: bool
) -> TrainingArguments:
    """Return the arguments of `transformers.Trainer` that carry out the two specs."""
    during = evaluates and training.evaluate_every is not None
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=training.epochs,
        max_steps=-1 if training.steps is None else training.steps,
        gradient_accumulation_steps=training.accumulation,
        learning_rate=optimisation.learning_rate,
        max_grad_norm=optimisation.max_gradient_norm,
        bf16=training.precision == "autocast",
        gradient_checkpointing=training.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        eval_strategy="steps" if during else "no",
        eval_steps=training.evaluate_every,
        metric_for_best_model="loss",
        greater_is_better=False,
        save_strategy="steps",
        save_steps=training.checkpoint_every or 10**9,
        logging_steps=training.log_every,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        report_to=list(training.report_to),
        disable_tqdm=not training.progress,
        use_cpu=training.cpu,
        seed=training.seed,
    )
    pieces = training.accumulation * arguments.world_size
    arguments.per_device_train_batch_size = training.batch_size // pieces
    if arguments.n_gpu > 1:
        logger.warning("one process uses one GPU; launch with torchrun to use %d", arguments.n_gpu)
        arguments._n_gpu = 1
    return arguments
