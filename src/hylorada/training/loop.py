"""The training loop: `transformers.Trainer` with our order, groups, loss and checkpoints."""

import math
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Subset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from hylorada.errors import RunError, SpecError
from hylorada.files import written_atomically
from hylorada.seeds import generator
from hylorada.training.audit import AuditCallback
from hylorada.training.checkpoints import PREFIX, prune
from hylorada.training.continuation import (
    PAYLOAD,
    load_parameters,
    process_state,
    restore_random_state,
    trainable_parameters,
)
from hylorada.training.loss import IGNORED
from hylorada.training.optimisation import (
    OptimisationSpec,
    build_optimizer,
    build_schedule,
    diversity_loss,
)
from hylorada.training.order import DealtBatches
from hylorada.training.settings import TrainingSpec

Collate = Callable[[list[Any]], dict[str, Tensor]]


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
        arguments: TrainingArguments,
        *,
        training: TrainingSpec,
        optimisation: OptimisationSpec,
        train_data: Dataset[Any] | None,
        valid_data: Dataset[Any] | None,
        collate: Collate,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        self.training_spec = training
        self.optimisation_spec = optimisation
        self.audit = AuditCallback()
        self.best: dict[str, Tensor] = {}
        self.resumed: dict[str, Any] | None = None
        self._last_finite = math.nan
        self._order = None if train_data is None else self._dealt(train_data, arguments)
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

    # Data

    def _dealt(self, data: Dataset[Any], arguments: TrainingArguments) -> DealtBatches:
        return DealtBatches(
            len(cast(Sized, data)),
            self.training_spec.batch_size,
            accumulation=self.training_spec.accumulation,
            seed=self.training_spec.seed,
            process=arguments.process_index,
            processes=arguments.world_size,
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return this process's micro-batches."""
        return self._loader(self.train_dataset, batch_sampler=self._order)

    def _loader(self, data: Any, **batching: Any) -> DataLoader[Any]:
        # A generator of its own, because starting a loader would draw from the global one.
        return DataLoader(
            data,
            collate_fn=self.data_collator,
            num_workers=self.training_spec.workers,
            pin_memory=torch.cuda.is_available(),
            generator=generator(self.training_spec.seed, "loader"),
            **batching,
        )

    # Steps

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Return AdamW with a group per component."""
        if self.optimizer is None:
            design = _landmark_design(self.model)
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

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of a micro-batch, with its share of the diversity loss."""
        loss: Any = super().compute_loss(model, inputs, *args, **kwargs)
        weight = self.optimisation_spec.diversity_weight
        if weight == 0.0:
            return loss
        return loss + weight * diversity_loss(self.model) / self.current_gradient_accumulation_steps

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Run forward and backward, and stop at a loss that is no number."""
        loss: Tensor = super().training_step(model, *args, **kwargs)
        value = float(loss)
        if not math.isfinite(value):
            raise DivergenceError(self._diagnosis(f"the loss is {value}"))
        self._last_finite = value
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        measure = cast(Callable[..., Any], super()._get_grad_norm)
        norm = measure(model, grad_norm=grad_norm)
        if not math.isfinite(float(norm)):
            named = ((n, p.grad) for n, p in self.model.named_parameters() if p.grad is not None)
            culprits = [name for name, grad in named if not bool(grad.isfinite().all())]
            raise DivergenceError(
                self._diagnosis(f"the gradient is {float(norm)}, first in {culprits[:3]}")
            )
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

    # Evaluation

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
        metrics = {f"{metric_key_prefix}_loss": nats / tokens}
        metrics[f"{metric_key_prefix}_tokens"] = tokens
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        improved = super()._determine_best_metric(metrics=metrics, trial=trial)
        if improved and self.training_spec.keep_best:
            self.best = trainable_parameters(self.model)
        return improved

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.store_flos()
        processes = _gathered(process_state(self._tr_loss))
        if self.is_world_process_zero():
            assert self.audit.watch is not None
            payload = {
                "parameters": trainable_parameters(self.model),
                "best": self.best,
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.lr_scheduler.state_dict(),
                "audit": self.audit.watch.state_dict(),
                "processes": processes,
                "logged": {"step": self._globalstep_last_logged, "loss": self._total_loss_scalar},
            }
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
        self.resumed = torch.load(path, map_location="cpu", weights_only=True)
        load_parameters(self.model, self.resumed["parameters"], str(path))
        self.best = self.resumed["best"]
        self.audit.earlier = self.resumed["audit"]

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
        self._globalstep_last_logged = self.resumed["logged"]["step"]
        self._total_loss_scalar = self.resumed["logged"]["loss"]
        self._initial_global_step = 0


class _Follow(TrainerCallback):
    """Tells the trainer where its loop is."""

    def __init__(self, trainer: AdapterTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._restore_progress()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        order = self._trainer._order
        assert order is not None
        order.epoch = int(state.epoch or 0)


def _landmark_design(model: nn.Module) -> str:
    """Return the landmark design of the active adapter, or an empty string without one."""
    if not isinstance(model, PeftModel):
        return ""
    return str(getattr(model.peft_config[model.active_adapter], "landmark_design", ""))


def _gathered(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all processes, in order, to every process."""
    if not distributed.is_initialized():
        return [state]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, state)
    return states
