"""The training loop: `transformers.Trainer` with our order, groups, loss and checkpoints.

A checkpoint holds all that a training needs to go on in another process as if nothing had happened.
"""

import logging
import math
import random
import shutil
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Sampler, Subset
from transformers import PrinterCallback, Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from hylorada.errors import CheckpointError, RunError, SpecError
from hylorada.files import PARTIAL, is_intact, written_atomically
from hylorada.seeds import generator
from hylorada.specs.run import OptimisationSpec, TrainingSpec
from hylorada.training.audit import AuditCallback, Seen
from hylorada.training.loss import IGNORED
from hylorada.training.optimisation import (
    build_optimizer,
    build_schedule,
    diversity_loss,
    trainer_arguments,
)

PAYLOAD, PREFIX = "training.pt", "checkpoint-"
Item = dict[str, Tensor]
Collate = Callable[[list[Item]], Item]
Penalty = Callable[[], Tensor]

logger = logging.getLogger(__name__)


class DealtBatches(Sampler[list[int]]):
    """The micro-batches one process computes, dealt from batches all processes agree on.

    A batch is cut into `accumulation` pieces and each piece into equal shares, one per process,
    so that any number of processes takes the same optimiser steps. The seed fixes the order of
    every epoch.
    """

    def __init__(
        self, items: int, training: TrainingSpec, process: int = 0, processes: int = 1
    ) -> None:
        if items < 1:
            raise SpecError(f"training needs at least one item; got {items}")
        if training.batch_size % (training.accumulation * processes):
            raise SpecError(
                "batch_size must be a multiple of accumulation × processes, "
                f"{training.accumulation} × {processes}; got {training.batch_size}"
            )
        if items % processes:
            raise SpecError(
                f"the training items must divide evenly among the {processes} processes; "
                f"got {items}; use {items - items % processes}"
            )
        self.share = training.batch_size // (training.accumulation * processes)
        self.epoch = 0
        self._items, self._seed = items, training.seed
        self._process, self._processes = process, processes

    def __len__(self) -> int:
        return -(-self._items // (self.share * self._processes))

    def __iter__(self) -> Iterator[list[int]]:
        stream = generator(self._seed, "training order", self.epoch)
        order = torch.randperm(self._items, generator=stream).tolist()
        piece = self.share * self._processes
        for start in range(0, self._items, piece):
            dealt = order[start : start + piece]
            share = len(dealt) // self._processes
            yield dealt[self._process * share : (self._process + 1) * share]


class ProcessState(TypedDict):
    """One process's random states, and the loss it has summed since the last log."""

    python: tuple[object, ...]
    numpy: tuple[Any, ...]
    torch: Tensor
    cuda: NotRequired[Tensor]
    loss: Tensor


class Checkpoint(TypedDict):
    """What a training needs to go on; `best` is empty unless the best weights are kept."""

    parameters: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[str, object]
    scheduler: dict[str, object]
    audit: Seen
    processes: list[ProcessState]
    logged: dict[str, float]


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return copies on the CPU of what training changes, by name."""
    return {n: tensor.detach().to("cpu", copy=True) for n, tensor in _trained(model).items()}


def _trained(model: nn.Module) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    # Quantisation remembers which coordinates are rounded for good.
    return found | {n: b for n, b in model.named_buffers() if ".parametrizations." in n}


@torch.no_grad()
def load_parameters(model: nn.Module, stored: dict[str, Tensor], source: str) -> None:
    """Copy stored values into the trainable parameters; names and shapes must agree."""
    present = _trained(model)
    if missing := sorted(present.keys() ^ stored.keys()):
        raise CheckpointError(
            f"the stored parameters must be those that are trained; {source} differs in "
            f"{missing[:3]}; train the adapter it was written for"
        )
    for name, parameter in present.items():
        if parameter.shape != stored[name].shape:
            raise CheckpointError(
                f"{name} must have shape {tuple(parameter.shape)}; "
                f"{source} has {tuple(stored[name].shape)}"
            )
        parameter.copy_(stored[name])


def process_state(loss: Tensor) -> ProcessState:
    """Return this process's random states and the loss it has summed since the last log."""
    name, words, *rest = np.random.get_state()
    state = ProcessState(
        python=random.getstate(),
        numpy=(name, np.asarray(words).tolist(), *rest),
        torch=torch.get_rng_state(),
        loss=loss.detach().to("cpu", copy=True),
    )
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(states: list[ProcessState], process: int) -> None:
    """Set this process's random states to the stored ones."""
    if process >= len(states):
        logger.warning(
            "the checkpoint was written by %d processes, process %d starts with fresh random "
            "states; the numbers will not be those of an uninterrupted training",
            len(states),
            process,
        )
        return
    state = states[process]
    random.setstate(state["python"])
    name, words, *rest = state["numpy"]
    np.random.set_state((name, np.array(words, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the latest step first, intact or not."""
    found = [path for path in folder.glob(f"{PREFIX}*") if path.name[len(PREFIX) :].isdigit()]
    return sorted(found, key=lambda path: int(path.name[len(PREFIX) :]), reverse=True)


def last_intact(folder: Path) -> Path | None:
    """Return the latest checkpoint whose files are as they were written, or None.

    Damaged ones are named in the log and passed over.
    """
    for path in checkpoints(folder):
        if is_intact(path):
            return path
        logger.warning("%s is damaged (its files do not match its manifest); passed over", path)
    return None


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest `keep` checkpoints, and what a killed process left half-written."""
    for path in (*checkpoints(folder)[keep:], *folder.glob(f"{PARTIAL}*")):
        shutil.rmtree(path)


class DivergenceError(RunError):
    """Raised when the loss or a gradient stops being a finite number."""


class AdapterTrainer(Trainer):
    """`transformers.Trainer` with this library's data order, groups, loss and checkpoints."""

    # Optional in the Trainer's own types, but there whenever these methods run.
    model: Any
    optimizer: Any
    lr_scheduler: Any
    eval_dataset: Any

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        *,
        training: TrainingSpec,
        optimisation: OptimisationSpec,
        train_data: Dataset[Item] | None = None,
        valid_data: Dataset[Item] | None = None,
        collate: Collate,
        callbacks: Sequence[TrainerCallback] = (),
        penalty: Penalty | None = None,
    ) -> None:
        self.training_spec, self.optimisation_spec = training, optimisation
        self.penalty = penalty
        self.audit = AuditCallback()
        self.best: dict[str, Tensor] = {}
        self.resumed: Checkpoint | None = None
        self._last_finite = math.nan
        during = train_data is not None and valid_data is not None
        arguments = trainer_arguments(training, optimisation, folder, evaluates=during)
        self._order = None
        if train_data is not None:
            place = arguments.process_index, arguments.world_size
            self._order = DealtBatches(len(cast(Sized, train_data)), training, *place)
        super().__init__(
            model,
            arguments,
            data_collator=collate,
            train_dataset=train_data,
            eval_dataset=valid_data,
            callbacks=[_Follow(self), self.audit, *callbacks],
        )
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = True
        self._loss_shifts_labels = True

    def get_train_dataloader(self) -> DataLoader[Item]:
        """Return this process's micro-batches."""
        return self._loader(self.train_dataset, batch_sampler=self._order)

    def _loader(self, data: Any, **batching: Any) -> DataLoader[Item]:
        # A generator of its own, because starting a loader would draw from the global one.
        return DataLoader(
            data,
            collate_fn=self.data_collator,
            num_workers=self.training_spec.workers,
            pin_memory=torch.cuda.is_available(),
            generator=generator(self.training_spec.seed, "loader"),
            **batching,
        )

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Return AdamW with a group per component."""
        if self.optimizer is None:
            design = ""
            if isinstance(self.model, PeftModel):
                config = self.model.peft_config[self.model.active_adapter]
                design = getattr(config, "landmark_design", "")
            self.optimizer = build_optimizer(self.model, self.optimisation_spec, design)
        return self.optimizer

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LambdaLR:
        """Return the schedule of all groups."""
        chosen = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = build_schedule(chosen, self.optimisation_spec, num_training_steps)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of a micro-batch, with its share of the penalties of a step."""
        loss = super().compute_loss(*args, **kwargs)
        assert isinstance(loss, Tensor)
        pieces = self.current_gradient_accumulation_steps
        if (weight := self.optimisation_spec.diversity_weight) != 0.0:
            loss = loss + weight * diversity_loss(self.model) / pieces
        return loss if self.penalty is None else loss + self.penalty() / pieces

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward, and stop at a loss that is no number."""
        loss: Tensor = super().training_step(*args, **kwargs)
        value = float(loss)
        if not math.isfinite(value):
            raise DivergenceError(self._diagnosis(f"the loss is {value}"))
        self._last_finite = value
        return loss

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        norm = super()._get_grad_norm(*args, **kwargs)
        if not math.isfinite(float(norm)):
            named = ((n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None)
            culprits = [name for name, grad in named if not bool(grad.isfinite().all())]
            found = f"the gradient is {float(norm)}, first in {culprits[:3]}"
            raise DivergenceError(self._diagnosis(found))
        return norm

    def _diagnosis(self, what: str) -> str:
        precision = self.training_spec.precision
        rates = {group["component"]: group["lr"] for group in self.optimizer.param_groups}
        shown = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())
        advice = "a lower learning_rate, a longer warmup_share, a smaller max_gradient_norm"
        if precision != "float32":
            advice += f", precision float32 instead of {precision}"
        return (
            f"{what} at step {self.state.global_step + 1} of {self.state.max_steps} (learning "
            f"rates: {shown}; last finite loss {self._last_finite:.4g}); try {advice}; "
            "if it is the first step, look for rows whose labels are all ignored"
        )

    @torch.no_grad()
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Return the mean loss over all valid tokens, in nats, and their count."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        mine = range(self.args.process_index, len(data), self.args.world_size)
        loader = self._loader(
            Subset(data, list(mine)), batch_size=self.training_spec.evaluation_batch_size
        )
        self.callback_handler.eval_dataloader = loader
        was_training = self.model.training
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        one = torch.ones((), dtype=torch.long, device=self.args.device)
        for batch in loader:
            inputs = self._prepare_inputs(batch)
            sums[0] += self.model(**inputs, num_items_in_batch=one).loss
            sums[1] += (inputs["labels"][:, 1:] != IGNORED).sum()
            self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        self.model.train(was_training)
        nats, tokens = self.accelerator.reduce(sums, "sum").tolist()
        if tokens == 0:
            raise SpecError("validation data must have a token to predict; all are ignored")
        prefix = metric_key_prefix
        metrics = {f"{prefix}_loss": nats / tokens, f"{prefix}_tokens": tokens}
        self.log(metrics)
        on_evaluate = self.callback_handler.on_evaluate
        self.control = on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: object) -> bool:
        improved = super()._determine_best_metric(metrics=metrics, trial=trial)
        if improved and self.training_spec.keep_best:
            self.best = trainable_parameters(self.model)
        return improved

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        self.store_flos()
        processes = [process_state(self._tr_loss)]
        if distributed.is_initialized():
            mine, processes = processes[0], processes * distributed.get_world_size()
            distributed.all_gather_object(processes, mine)
        if self.is_world_process_zero():
            assert self.audit.watch is not None
            payload = Checkpoint(
                parameters=trainable_parameters(self.model),
                best=self.best,
                optimizer=self.optimizer.state_dict(),
                scheduler=self.lr_scheduler.state_dict(),
                audit=self.audit.watch.state_dict(),
                processes=processes,
                logged={"step": self._globalstep_last_logged, "loss": self._total_loss_scalar},
            )
            folder = Path(str(self.args.output_dir))
            with written_atomically(folder / f"{PREFIX}{self.state.global_step}") as partial:
                torch.save(payload, partial / PAYLOAD)
                self.state.save_to_json(str(partial / TRAINER_STATE_NAME))
            prune(folder, self.training_spec.checkpoints_kept)
        self.accelerator.wait_for_everyone()

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        path = Path(resume_from_checkpoint) / PAYLOAD
        stored: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        load_parameters(self.model, stored["parameters"], str(path))
        self.resumed, self.best, self.audit.earlier = stored, stored["best"], stored["audit"]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.resumed is not None:
            self.optimizer.load_state_dict(self.resumed["optimizer"])
            self.lr_scheduler.load_state_dict(self.resumed["scheduler"])

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: bfloat16 and float32 need no gradient scaler."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self.resumed is not None:
            restore_random_state(self.resumed["processes"], self.args.process_index)

    def _restore_progress(self) -> None:
        """Give back the losses summed since the last log, which a plain resume forgets."""
        if self.resumed is None:
            return
        states = self.resumed["processes"]
        if len(states) == self.args.world_size:
            self._tr_loss = states[self.args.process_index]["loss"].to(self.args.device)
        self._globalstep_last_logged = int(self.resumed["logged"]["step"])
        self._total_loss_scalar = self.resumed["logged"]["loss"]
        self._initial_global_step = 0


class _Follow(TrainerCallback):
    """Tells the trainer where its loop is."""

    def __init__(self, trainer: AdapterTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: object, **__: object) -> None:
        self._trainer._restore_progress()

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        assert self._trainer._order is not None
        self._trainer._order.epoch = int(self._trainer.state.epoch or 0)
