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
from hylorada.specs.adapters import SubspaceFields
from hylorada.subspace.allocation import SIDES, Allocation, Target, layer_of, layer_stacks
from hylorada.subspace.core import Subspace

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
        self, module: nn.Module, settings: SubspaceFields, *, factor_of: FactorOf = lora_factor
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
            Target(name, tuple(parameter.shape), factor_of(name), layer_of(name, stacks))
            for name, parameter in chosen.items()
        ]
        self.subspace = Subspace(Allocation(targets, settings))
        self.subspace.to(next(iter(chosen.values())).device)
        for parameter in chosen.values():
            parameter.requires_grad_(False)
        self.module = module

    @property
    def subspace_params(self) -> Float[Tensor, " dim"]:
        """The coordinates w, the one trained tensor of every mode (beside the gates)."""
        return self.subspace.vector

    def generated(self) -> dict[str, Tensor]:
        """Return the tensors that stand in for the module's own, in their dtypes."""
        own, moved = dict(self.module.named_parameters()), self.subspace.tensors()
        return {name: own[name] + delta.to(own[name].dtype) for name, delta in moved.items()}

    def forward(self, *args: object, **kwargs: object) -> Any:
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
        self, module: nn.Module, settings: SubspaceFields, *, factor_of: FactorOf = lora_factor
    ) -> None:
        if settings.allocation_mode == "uniform":
            raise SpecError("allocation_mode 'uniform' has no structure; use IDModule")
        super().__init__(module, settings, factor_of=factor_of)

    @property
    def gates(self) -> Float[Tensor, " groups"] | None:
        """The logits of B's share of each layer, in "learned" mode."""
        return self.subspace.gates

    def shares(self) -> dict[str, float]:
        """Return γ of each layer: B's share of its coordinates."""
        return self.subspace.shares()


def create_intrinsic_model(
    module: nn.Module,
    intrinsic_dim: int = SubspaceFields.intrinsic_dim,
    allocation_mode: str = SubspaceFields.allocation_mode,
    *,
    factors: Sequence[str] | None = None,
    **settings: Any,
) -> IDModule:
    """Return the module with its trainable tensors in a random subspace.

    The module's trainable tensors are those that require gradients: LoRA factors of a PEFT model,
    HyLoRADA's landmarks, or every weight. They are frozen; only `subspace_params`, and the gates in
    "learned" mode, train. `allocation_mode` is "uniform", "fixed" or "learned"; `factors` are what
    the names of A and of B contain, by default lora_A and lora_B; `settings` are further fields of
    `SubspaceFields`, such as `allocation_ratio` or `projection`.
    """
    values = {"intrinsic_dim": intrinsic_dim, "allocation_mode": allocation_mode, **settings}
    build = IDModule if allocation_mode == "uniform" else StructuredIDModule
    if factors is None:
        return build(module, SubspaceFields(**values))
    if len(factors) != 2 or not all(factors):
        raise SpecError(f"factors must be two words, for A and for B; got {list(factors)}")

    def named_factor(name: str) -> str:
        return next((side for side, word in zip(SIDES, factors, strict=True) if word in name), "")

    return build(module, SubspaceFields(**values), factor_of=named_factor)
