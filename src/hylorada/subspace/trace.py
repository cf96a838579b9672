"""What happens inside a subspace while it trains: gates annealed, gradient norms written down."""

from pathlib import Path

import msgspec
import torch
from torch import nn
from transformers import TrainerCallback, TrainerState

from hylorada.errors import SpecError
from hylorada.files import parsed_record, write_atomically
from hylorada.records.runs import GradientNorms, SideNorms, TraceLine
from hylorada.subspace.allocation import SIDES
from hylorada.subspace.core import Subspace
from hylorada.subspace.model import find_subspace

TRACE = "subspace.jsonl"


def subspace_callbacks(model: nn.Module, folder: Path, every: int = 10) -> list[TrainerCallback]:
    """Return what anneals and traces a model's subspace; nothing for a model without one."""
    subspace = find_subspace(model)
    return [] if subspace is None else [SubspaceTrace(subspace, folder / TRACE, every)]


class SubspaceTrace(TrainerCallback):
    """Writes gates and gradient norms as JSON lines, and sharpens the gates' masks on the way.

    Under several processes the first one writes. A resumed training continues the file. There are
    `every` steps between lines; the first step has one too.
    """

    def __init__(self, subspace: Subspace, path: Path, every: int = 10) -> None:
        if every < 1:
            raise SpecError(f"a trace needs at least one step between lines; got {every}")
        self.subspace, self.path, self.every = subspace, path, every

    def on_train_begin(
        self, args: object, state: TrainerState, control: object, **_: object
    ) -> None:
        """Keep the lines up to the step that is continued from."""
        if state.is_world_process_zero:
            text = self.path.read_text() if self.path.is_file() else ""
            # A killed process may have left half a line.
            whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            lines = [(line, parsed_record(line, TraceLine, str(self.path))) for line in whole]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = (line for line, record in lines if record.step <= state.global_step)
            write_atomically(self.path, "".join(kept))

    def on_step_begin(
        self, args: object, state: TrainerState, control: object, **_: object
    ) -> None:
        """Set the sharpness of the step, and ask for its gradient if a line is due."""
        step = state.global_step + 1
        is_due = step == 1 or step % self.every == 0
        self.subspace.progress = state.global_step / max(1, state.max_steps - 1)
        self.subspace.keeps_gradient = state.is_world_process_zero and is_due

    def on_pre_optimizer_step(
        self, args: object, state: TrainerState, control: object, **_: object
    ) -> None:
        """Write a line if one is due."""
        if not self.subspace.keeps_gradient:
            return
        line = TraceLine(
            step=state.global_step + 1,
            gradient_norm=gradient_norms(self.subspace),
            vector_norm=float(self.subspace.vector.detach().norm()),
            shares=self.subspace.shares(),
            sharpness=self.subspace.sharpness,
        )
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def on_train_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """Leave the masks as they will be used, and stop keeping gradients."""
        self.subspace.progress, self.subspace.keeps_gradient = 1.0, False


@torch.no_grad()
def gradient_norms(subspace: Subspace) -> GradientNorms:
    """Return the norms of the last step's gradient, before clipping; it must have been kept.

    A and B are norms with respect to the coordinates of each factor. Under "uniform" they are the
    two parts that add up to the vector's gradient. Layers have the norms with respect to the
    factors themselves.
    """
    gradient, allocation = subspace.gradient, subspace.allocation
    if gradient is None:
        raise SpecError("no gradient was kept; set keeps_gradient before the backward pass")
    is_a = torch.arange(allocation.full, device=gradient.device) < allocation.a_size
    pull_back = allocation.projection.multiply_transposed
    squares: dict[str, dict[str, float]] = {}
    pieces = gradient.split([target.size for target in allocation.layout])
    for target, piece in zip(allocation.layout, pieces, strict=True):
        of_layer = squares.setdefault(target.layer, dict.fromkeys(SIDES, 0.0))
        of_layer[target.side] += float(piece.square().sum())
    return GradientNorms(
        A=float(pull_back(gradient.where(is_a, 0.0)).norm()),
        B=float(pull_back(gradient.where(~is_a, 0.0)).norm()),
        layers={name: SideNorms(A=s["A"] ** 0.5, B=s["B"] ** 0.5) for name, s in squares.items()},
    )
