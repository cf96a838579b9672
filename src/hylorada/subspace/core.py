"""One vector for many tensors: `θ = θ0 + P u(w, γ)`, generated once per optimiser step.

A step of several micro-batches generates θ at the first, adds up the gradients of θ, and pulls
them back through the projection at the last. Which micro-batch is the last is what accelerate's
`GradientState` says, so `transformers.Trainer` and `Accelerator` need nothing; other loops say it
with `holding_gradients`, or pull back at every backward pass, which is as exact.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from accelerate.state import GradientState
from jaxtyping import Float
from torch import Tensor, nn

from hylorada.errors import RunError
from hylorada.subspace.allocation import Allocation

Key = tuple[object, ...]  # equal as long as nothing that decides the tensors was written to
# What one forward pass keeps; it belongs to the pass, not to a copy of the module.
TRANSIENT = dict.fromkeys(("_pass", "_prepared", "_values", "_pending", "gradient"))


class Subspace(nn.Module):
    """The trained coordinates and the tensors they stand for.

    Attributes:
        vector: The coordinates w, zero at the start.
        gates: One logit for each layer in "learned" mode, zero at the start; None otherwise.
        projections: How often θ was generated or a gradient pulled back, for tests and benches.
        gradient: The last step's gradient of all parameters, if `keeps_gradient` is set.
    """

    vector: Tensor
    gates: Tensor | None
    gradient: Tensor | None
    _pass: "_Pass | None"
    _prepared: "_Pass | None"
    _values: Tensor | None
    _pending: tuple[Key, Tensor] | None

    def __init__(self, allocation: Allocation, initial: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(allocation.settings.intrinsic_dim))
        count = len(allocation.slices)
        self.gates = nn.Parameter(torch.zeros(count)) if count else None
        self.allocation = allocation
        flat = [tensor.flatten().float() for tensor in initial or ()]
        self.initial = torch.cat(flat) if flat else None
        self.progress = 1.0
        self.projections = {"apply": 0, "adjoint": 0}
        self.keeps_gradient = self._holding = False
        self._places: dict[torch.device, Tensor] = {}
        self.__dict__ |= TRANSIENT

    @property
    def sharpness(self) -> float:
        """C of the soft mask at the present `progress` of the training."""
        settings = self.allocation.settings
        start, end = settings.gate_sharpness_start, settings.gate_sharpness
        return float(end if start is None else start * (end / start) ** self.progress)

    def shares(self) -> dict[str, float]:
        """Return γ, B's share of the coordinates, of each layer; empty without gates."""
        if self.gates is None:
            return {}
        values = self.gates.detach().sigmoid().tolist()
        return dict(zip(self.allocation.slices, values, strict=True))

    def fingerprint(self, *facts: str) -> str:
        """Return a hash of all that turns the vector into parameters, and of further facts."""
        digest = hashlib.sha256("\n".join([*self.allocation.describe(), *facts]).encode())
        if self.initial is not None:
            digest.update(self.initial.numpy().tobytes())
        return digest.hexdigest()[:16]

    def generate(self) -> Float[Tensor, " full"]:
        """Return all parameters, flat, in float32, as a plain function of vector and gates."""
        return self._from_start(self.allocation.projection.apply(self._coordinates()))

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return every target by name; within a pass the same objects, generated once."""
        if not torch.compiler.is_compiling():  # whoever compiles prepares each pass
            self._refresh()
        pieces = self._pass or _Pass(_Ticket(()), self.generate(), self.allocation)
        return pieces.tensors(dtype)

    def prepare(self) -> bool:
        """Generate the targets of a pass; return whether they are others than last time."""
        if torch.compiler.is_compiling():
            self._pass = _Pass(_Ticket(()), self.generate(), self.allocation)
            return True
        before = self._prepared
        self._refresh()
        self._prepared = self._pass
        return self._prepared is not before

    @contextmanager
    def holding_gradients(self) -> Iterator[None]:
        """Add up gradients in the block without pulling them back: for all but the last backward.

        For loops of your own with gradient accumulation; accelerate says this by itself.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | TRANSIENT | {"_places": {}}

    def _coordinates(self) -> Tensor:
        vector = self.vector.float()
        gates = None if self.gates is None else self.gates.float()
        return self.allocation.coordinates(vector, gates, self.sharpness)

    def _refresh(self) -> None:
        leaves: list[Tensor] = [p for p in self._parameters.values() if p is not None]
        if "vector" not in self._parameters:  # a parametrization computes it from others
            leaves = [*self.parameters(), *self.buffers()]
        wants = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
        # What changes when a tensor is written to, replaced or moved.
        marks = [(id(t), t._version, t.data_ptr(), t.device, t.requires_grad) for t in leaves]
        ticket = _Ticket((wants, torch.is_inference_mode_enabled(), self.progress, *marks))
        if self._pass is not None and self._pass.ticket == ticket:
            return
        if wants:
            self._settle_pending(ticket.key, leaves)
            if self._pending is None:
                self._values = None  # another step; some optimisers write without a new version
            apply = cast(Callable[..., Tensor], _Generate.apply)
            flat = apply(self._coordinates(), self, ticket)
        else:
            self.projections["apply"] += 1
            with torch.no_grad():
                flat = self.generate()
        self._pass = _Pass(ticket, flat, self.allocation)

    def _settle_pending(self, key: Key, leaves: Sequence[Tensor]) -> None:
        """Drop gradients that were set to zero; refuse to go on if they were stepped over."""
        if self._pending is None:
            return
        if all(leaf.grad is None for leaf in leaves):
            self._pending = None
        elif self._pending[0] != key:
            self._pending = None
            raise RunError(
                "the vector changed while gradients of a micro-batch were waiting to be pulled "
                "back to it; step only after a backward pass with accelerate's sync_gradients on"
            )

    def _from_start(self, moved: Tensor) -> Tensor:
        if self.initial is None:
            return moved
        if moved.device not in self._places:
            self._places[moved.device] = self.initial.to(moved.device)
        return self._places[moved.device] + moved

    # Called by the graph

    def values_at(self, coordinates: Tensor) -> Tensor:
        """Return the parameters at these coordinates, remembered within a step."""
        if self._values is None:
            self.projections["apply"] += 1
            self._values = self._from_start(self.allocation.projection.multiply(coordinates))
        return self._values.view_as(self._values)

    def pull_back(self, gradient: Tensor, key: Key) -> Tensor:
        """Return the coordinates' gradient of a whole step, or zeros before its last backward."""
        total = gradient.float() if self._pending is None else self._pending[1].add_(gradient)
        if self._holding or not GradientState().sync_gradients:
            # The first gradient may be shared with the graph: it is not ours to add to.
            self._pending = (key, total.clone() if self._pending is None else total)
            return gradient.new_zeros(self.allocation.projection.dim)
        self._pending = None
        self.projections["adjoint"] += 1
        if self.keeps_gradient:
            self.gradient = total.detach().clone()
        return self.allocation.projection.multiply_transposed(total)


class _Generate(torch.autograd.Function):
    """Coordinates to parameters, with the parameters remembered and the gradients gathered."""

    @staticmethod
    def forward(ctx: Any, coordinates: Tensor, subspace: Subspace, ticket: "_Ticket") -> Tensor:
        ctx.subspace, ctx.ticket = subspace, ticket
        return subspace.values_at(coordinates)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.ticket.used = True
        return ctx.subspace.pull_back(gradient, ctx.ticket.key), None, None


@dataclass(slots=True)
class _Ticket:
    """What a pass was generated from, and whether a backward pass has gone through it."""

    key: Key
    used: bool = False


@dataclass(eq=False)
class _Pass:
    """The parameters of one forward pass: flat, cast to the dtypes asked for, and cut apart."""

    ticket: _Ticket
    flat: Tensor
    allocation: Allocation
    by_dtype: dict[torch.dtype, dict[str, Tensor]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Stay behind: its tensors belong to the graph of the original."""

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the targets in a dtype: one cast for all of them."""
        if dtype not in self.by_dtype:
            layout = self.allocation.layout
            pieces = self.flat.to(dtype).split([target.size for target in layout])
            pairs = zip(layout, pieces, strict=True)
            self.by_dtype[dtype] = {one.name: piece.view(one.shape) for one, piece in pairs}
        return self.by_dtype[dtype]
