"""What happens inside a subspace while it trains: gates, norms of gradients, annealed masks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hylorada.errors import SpecError
from hylorada.files import write_atomically
from hylorada.subspace.core import Subspace
from hylorada.subspace.model import SubLoRAModel

TRACE = "subspace.jsonl"


def find_subspace(model: nn.Module) -> Subspace | None:
    """Return the subspace of the active adapter or of an `IDModule`; None where there is none."""
    if isinstance(model, PeftModel) and isinstance(model.base_model, SubLoRAModel):
        return model.base_model.subspace(model.active_adapter)
    found = [part for part in model.modules() if isinstance(part, Subspace)]
    return found[0] if len(found) == 1 else None


@torch.no_grad()
def gradient_norms(subspace: Subspace) -> dict[str, Any]:
    """Return the norms of the last step's gradient, before clipping; it must have been kept.

    "A" and "B" are norms with respect to the coordinates of each factor. Under "uniform" they are
    the two parts that add up to the vector's gradient. "layers" has the norms with respect to the
    factors themselves.
    """
    gradient = subspace.parameter_gradient()
    if gradient is None:
        raise SpecError("no gradient was kept; set keeps_gradient before the backward pass")
    allocation = subspace.allocation
    norms: dict[str, Any] = {}
    for side, part in (("A", slice(0, allocation.a_size)), ("B", slice(allocation.a_size, None))):
        alone = torch.zeros_like(gradient)
        alone[part] = gradient[part]
        norms[side] = float(allocation.projection.multiply_transposed(alone).norm())
    norms["layers"] = {}
    pieces = gradient.split([target.size for target in allocation.layout])
    for target, piece in zip(allocation.layout, pieces, strict=True):
        squares = norms["layers"].setdefault(target.layer, {"A": 0.0, "B": 0.0})
        squares[target.side] += float(piece.square().sum())
    for squares in norms["layers"].values():
        squares |= {side: value**0.5 for side, value in squares.items()}
    return norms


class SubspaceTrace(TrainerCallback):
    """Writes gates and gradient norms as JSON lines; under several processes, those of the first.

    Args:
        path: The file, `TRACE` in a run's folder; a resumed run continues it.
        every: Steps between lines.
    """

    def __init__(self, path: Path, every: int = 10) -> None:
        if every < 1:
            raise SpecError(f"a trace needs at least one step between lines; got {every}")
        self.path = path
        self.every = every

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the lines up to the step that is continued from."""
        if state.is_world_process_zero:
            kept = [line for line in self._lines() if line["step"] <= state.global_step]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask for the gradient of a step that is due."""
        subspace = find_subspace(kwargs["model"])
        if subspace is not None:
            subspace.keeps_gradient = state.is_world_process_zero and self._is_due(state)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write a line if one is due."""
        subspace = find_subspace(kwargs["model"])
        if subspace is None or not subspace.keeps_gradient:
            return
        line = {
            "step": state.global_step + 1,
            "gradient_norm": gradient_norms(subspace),
            "vector_norm": float(subspace.vector.detach().norm()),
            "shares": subspace.shares(),
            "sharpness": subspace.sharpness,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop keeping gradients."""
        subspace = find_subspace(kwargs["model"])
        if subspace is not None:
            subspace.keeps_gradient = False

    def _is_due(self, state: TrainerState) -> bool:
        step = state.global_step + 1
        return step == 1 or step % self.every == 0

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield what was written, but for half a line that a killed process may have left."""
        if self.path.is_file():
            lines = self.path.read_text().splitlines(keepends=True)
            yield from (json.loads(line) for line in lines if line.endswith("\n"))


class GateAnnealing(TrainerCallback):
    """Moves the sharpness of the soft masks from its start to its end over the training."""

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the progress of the step that begins."""
        subspace = find_subspace(kwargs["model"])
        if subspace is not None:
            subspace.progress = state.global_step / max(1, state.max_steps - 1)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the masks as they will be used."""
        subspace = find_subspace(kwargs["model"])
        if subspace is not None:
            subspace.progress = 1.0


def subspace_callbacks(model: nn.Module, folder: Path, every: int = 10) -> list[TrainerCallback]:
    """Return what watches and anneals a model's subspace; nothing for a model without one."""
    if find_subspace(model) is None:
        return []
    return [GateAnnealing(), SubspaceTrace(folder / TRACE, every)]
