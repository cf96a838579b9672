"""What steps how fast: parameter groups by component, the schedule, and aids for boundaries."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hylorada.adapters.landmarks import LearnableBucketLandmark
from hylorada.errors import SpecError

Component = Literal[
    "factors",
    "subspace",
    "gates",
    "landmarks",
    "boundaries",
    "position_bias",
    "norms",
    "embeddings",
]

# Measured with SmolLM2-135M on WikiText-2: landmarks gain 0.04 % at the rate of LoRA and 3.5 % at
# thirty times that rate; the low-rank control gains most at ten times.
LANDMARK_MULTIPLIER = 30.0
DESIGN_MULTIPLIERS = {"low_rank": 10.0}

# Decay pulls these towards a value that means something else than "no change".
UNDECAYED = re.compile(r"(bias|gates?|scale|gain|table|boundaries|magnitude_vector)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisationSpec:
    """How AdamW steps; rates are per step, multipliers are relative to `learning_rate`.

    Attributes:
        learning_rate: Highest rate of the LoRA factors, per step.
        weight_decay: Of matrices; biases, gates, scales, tables and boundaries do not decay.
        landmark_multiplier: Rate of landmarks; None takes the one measured best for the design.
        subspace_multiplier: Rate of a subspace's vector; at 10 and the default rate it is 5e-3.
        gate_multiplier: Rate of the gates that divide a subspace between A and B.
        position_bias_multiplier: Rate of the position bias.
        norm_multiplier: Rate of norms, where they are trained.
        embedding_multiplier: Rate of embeddings, where they are trained.
        boundary_learning_rate: Absolute rate of learnable boundaries; None: that of landmarks.
        boundary_frozen_steps: Steps with fixed buckets before the boundaries may move.
        diversity_weight: Weight of the loss that spreads clustered boundaries; zero is off.
        warmup_share: Share of all steps over which the rates rise, before they fall to zero.
        max_gradient_norm: Longer gradients are scaled down to this norm; zero is off.
    """

    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    landmark_multiplier: float | None = None
    subspace_multiplier: float = 10.0
    gate_multiplier: float = 20.0
    position_bias_multiplier: float = 1.0
    norm_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    boundary_learning_rate: float | None = None
    boundary_frozen_steps: int = 0
    diversity_weight: float = 0.0
    warmup_share: float = 0.03
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        rates = [name for name in self.__slots__ if name.endswith(("rate", "multiplier"))]
        for name in rates:
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise SpecError(f"{name} must be positive and finite; got {value}")
        for name in ("weight_decay", "boundary_frozen_steps", "diversity_weight"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} must not be negative; got {getattr(self, name)}")
        if self.max_gradient_norm < 0:
            raise SpecError(
                f"max_gradient_norm must not be negative (0 is off); got {self.max_gradient_norm}"
            )
        if not 0.0 <= self.warmup_share < 1.0:
            raise SpecError(f"warmup_share must be in [0, 1); got {self.warmup_share}")

    def rates(self, landmark_design: str) -> dict[Component, float]:
        """Return the highest learning rate of each component."""
        measured = DESIGN_MULTIPLIERS.get(landmark_design, LANDMARK_MULTIPLIER)
        landmarks = self.learning_rate * (self.landmark_multiplier or measured)
        return {
            "factors": self.learning_rate,
            "subspace": self.learning_rate * self.subspace_multiplier,
            "gates": self.learning_rate * self.gate_multiplier,
            "landmarks": landmarks,
            "boundaries": self.boundary_learning_rate or landmarks,
            "position_bias": self.learning_rate * self.position_bias_multiplier,
            "norms": self.learning_rate * self.norm_multiplier,
            "embeddings": self.learning_rate * self.embedding_multiplier,
        }


def component_of(name: str, model: nn.Module) -> Component:
    """Return the component a trainable parameter belongs to, from its full name."""
    if shared := re.search(r"\.lora_shared\.[^.]+\.(\w+)\.", name):
        if name.endswith(".boundaries"):
            return "boundaries"
        return _named(shared.group(1), name)
    if subspace := re.search(r"(?:\.sublora_subspace\.[^.]+|^subspace|\.subspace)\.(.+)", name):
        return "gates" if "gates" in subspace.group(1).split(".") else "subspace"
    if re.search(r"\.lora_(A|B|embedding_A|embedding_B|magnitude_vector)\b", name):
        return "factors"
    owner = model.get_submodule(name.rpartition(".")[0])
    if "norm" in type(owner).__name__.lower():
        return "norms"
    is_head = name.split(".modules_to_save")[0].endswith(("lm_head", "embed_out"))
    if isinstance(owner, nn.Embedding) or is_head:
        return "embeddings"
    raise SpecError(
        "every trainable parameter must belong to a component (LoRA factors, subspace, landmarks, "
        f"position bias, norms, embeddings); got {name!r}; freeze it, or save it as a norm or "
        "embedding"
    )


def parameter_groups(
    model: nn.Module, spec: OptimisationSpec, landmark_design: str = ""
) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups: each trainable parameter in exactly one of them."""
    rates = spec.rates(landmark_design)
    groups: dict[tuple[Component, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        component = component_of(name, model)
        # A subspace's vector is a vector in form only: zero is the model before training.
        is_matrix = parameter.ndim > 1 or component == "subspace"
        decays = is_matrix and component != "norms" and not UNDECAYED.search(name)
        decay = spec.weight_decay if decays else 0.0
        fresh = {"params": [], "lr": rates[component], "weight_decay": decay}
        group = groups.setdefault((component, decay), fresh | {"component": component})
        group["params"].append(parameter)
    if not groups:
        raise SpecError("training needs at least one trainable parameter; the model has none")
    # The reported learning rate is that of the first group, so the adapter proper leads.
    leading = ("factors", "subspace")
    return sorted(groups.values(), key=lambda group: group["component"] not in leading)


def build_optimizer(
    model: nn.Module, spec: OptimisationSpec, landmark_design: str = ""
) -> Optimizer:
    """Return AdamW over the model's parameter groups."""
    return AdamW(parameter_groups(model, spec, landmark_design), lr=spec.learning_rate)


def build_schedule(optimizer: Optimizer, spec: OptimisationSpec, steps: int) -> LambdaLR:
    """Return a schedule that rises over the warm-up, falls to zero, and holds boundaries first."""
    warm = math.ceil(spec.warmup_share * steps)

    def factor(step: int) -> float:
        # Counted from one: a first step at rate zero would be a batch thrown away.
        if step < warm:
            return (step + 1) / (warm + 1)
        return max(0.0, (steps - step) / max(1, steps - warm))

    def held(step: int) -> float:
        return 0.0 if step < spec.boundary_frozen_steps else factor(step)

    factors: list[Callable[[int], float]] = [
        held if group.get("component") == "boundaries" else factor
        for group in optimizer.param_groups
    ]
    return LambdaLR(optimizer, factors)


def diversity_loss(model: nn.Module) -> Float[Tensor, ""]:
    """Return how unevenly learnable boundaries cut the context, in nats; zero if evenly.

    The divergence of the bucket widths from equal ones, `mean_i -ln(B w_i)`, summed over the
    adapters: a bucket that shrinks to nothing costs without limit.
    """
    banks = [part for part in model.modules() if isinstance(part, LearnableBucketLandmark)]
    if not banks:
        raise SpecError(
            "a diversity loss needs learnable boundaries; set landmark_design to 'learnable' or "
            "diversity_weight to 0"
        )
    return torch.stack([_unevenness(bank.relative_boundaries()) for bank in banks]).sum()


def _unevenness(boundaries: Float[Tensor, " inner"]) -> Float[Tensor, ""]:
    ends = nn.functional.pad(boundaries, (1, 0)), nn.functional.pad(boundaries, (0, 1), value=1.0)
    widths = ends[1] - ends[0]
    return -(widths * widths.numel()).log().mean()


def _named(component: str, name: str) -> Component:
    if component == "landmarks":
        return "landmarks"
    if component == "position_bias":
        return "position_bias"
    if component == "factors":
        return "factors"
    raise SpecError(f"unknown component {component!r} of the adapter in {name!r}; give it a rate")
