"""Any module in a random subspace: its trainable tensors become `θ0 + P w`, and only w trains."""

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from hylorada.errors import SpecError
from hylorada.subspace.allocation import Allocation, AllocationSpec, Target
from hylorada.subspace.core import Subspace
from hylorada.subspace.stacks import layer_of, layer_stacks

FACTOR = re.compile(r"(?:^|[._])lora_(?:embedding_)?([AB])(?:[._]|$)")

FactorOf = Callable[[str], str]


def lora_factor(name: str) -> str:
    """Return "A" or "B" for a tensor that LoRA names so, "" for any other."""
    found = FACTOR.search(name)
    return found.group(1) if found else ""


class IDModule(nn.Module):
    """A module whose trainable tensors are `θ0 + P w`: one projection over all of them.

    The module keeps its own tensors, frozen at θ0, and is called with the generated ones in their
    place: nothing is written into it, and `.train()`, `.eval()` and `.to()` reach all of it.
    Outputs equal the module's own until `subspace_params`, zero at the start, moves.
    """

    def __init__(
        self, module: nn.Module, spec: AllocationSpec, *, factor_of: FactorOf = lora_factor
    ) -> None:
        super().__init__()
        chosen = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not chosen:
            raise SpecError(
                f"a subspace needs tensors that train; {type(module).__name__} has none; set "
                "requires_grad on those to move"
            )
        stacks = layer_stacks(module)
        targets = [
            Target(
                name=name,
                shape=tuple(parameter.shape),
                factor=factor_of(name),
                layer=layer_of(name, stacks),
            )
            for name, parameter in chosen.items()
        ]
        self.subspace = Subspace(Allocation(targets, spec))
        self.subspace.to(next(iter(chosen.values())).device)
        for parameter in chosen.values():
            parameter.requires_grad_(False)
        self.module = module

    @property
    def subspace_params(self) -> Float[Tensor, " dim"]:
        """The coordinates w, the one trained tensor of every mode (beside the gates)."""
        return self.subspace.vector

    @property
    def allocation(self) -> Allocation:
        """Which coordinates move which tensors."""
        return self.subspace.allocation

    def generated(self) -> dict[str, Tensor]:
        """Return the tensors that stand in for the module's own, in their dtypes."""
        moved = self.subspace.tensors()
        own = dict(self.module.named_parameters())
        return {name: own[name] + delta.to(own[name].dtype) for name, delta in moved.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with the generated tensors."""
        return functional_call(self.module, self.generated(), args, kwargs, strict=False)

    @torch.no_grad()
    def settled(self) -> nn.Module:
        """Return a copy of the module that holds the generated tensors: to generate or to save."""
        copied = copy.deepcopy(self.module)
        own = dict(copied.named_parameters())
        for name, tensor in self.generated().items():
            own[name].copy_(tensor)
        return copied


class StructuredIDModule(IDModule):
    """An `IDModule` with separate projections for A and B: mode "fixed" or "learned"."""

    def __init__(
        self, module: nn.Module, spec: AllocationSpec, *, factor_of: FactorOf = lora_factor
    ) -> None:
        if spec.mode == "uniform":
            raise SpecError("allocation_mode 'uniform' has no structure; use IDModule")
        super().__init__(module, spec, factor_of=factor_of)

    @property
    def gates(self) -> Float[Tensor, " groups"] | None:
        """The logits of B's share of each layer, in "learned" mode."""
        return self.subspace.gates

    def shares(self) -> dict[str, float]:
        """Return γ of each layer: B's share of its coordinates."""
        return self.subspace.shares()


def create_intrinsic_model(
    module: nn.Module,
    intrinsic_dim: int = 1000,
    allocation_mode: str = "uniform",
    *,
    allocation_ratio: float = 0.5,
    gate_sharpness: float = 10.0,
    gate_sharpness_start: float | None = None,
    relative_sharpness: bool = False,
    projection: str = "grouped",
    projection_seed: int = 137,
    factors: Sequence[str] | None = None,
) -> IDModule:
    """Return the module with its trainable tensors in a random subspace.

    The module's trainable tensors are those that require gradients: LoRA factors of a PEFT model,
    HyLoRADA's landmarks, or every weight. They are frozen; only `subspace_params`, and the gates in
    "learned" mode, train.

    Args:
        module: Any module.
        intrinsic_dim: The number of coordinates d.
        allocation_mode: "uniform", "fixed" or "learned".
        allocation_ratio: B's share of the coordinates in "fixed" mode.
        gate_sharpness: C of the soft mask in "learned" mode.
        gate_sharpness_start: C at the start of training; None keeps it.
        relative_sharpness: Whether C is counted per slice instead of per coordinate.
        projection: dense, sparse, kron_qr, fastfood or grouped.
        projection_seed: The seed of all projections.
        factors: What the names of A and of B contain; None: lora_A and lora_B.
    """
    spec = AllocationSpec(
        dim=intrinsic_dim,
        mode=allocation_mode,
        ratio=allocation_ratio,
        sharpness=gate_sharpness,
        sharpness_start=gate_sharpness_start,
        relative_sharpness=relative_sharpness,
        projection=projection,
        seed=projection_seed,
    )
    factor_of = lora_factor if factors is None else _by_words(factors)
    if spec.mode == "uniform":
        return IDModule(module, spec, factor_of=factor_of)
    return StructuredIDModule(module, spec, factor_of=factor_of)


def _by_words(factors: Sequence[str]) -> FactorOf:
    if len(factors) != 2 or not all(factors):
        raise SpecError(f"factors must be two words, for A and for B; got {list(factors)}")
    first, second = factors

    def factor_of(name: str) -> str:
        if first in name:
            return "A"
        return "B" if second in name else ""

    return factor_of
