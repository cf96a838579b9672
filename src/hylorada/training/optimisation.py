"""What steps how fast: the Trainer's arguments, parameter groups by component, the schedule."""

import logging
import math
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments

from hylorada.adapters.designs import DESIGNS, RATE_MULTIPLIER
from hylorada.adapters.landmarks import LearnableBucketLandmark
from hylorada.errors import SpecError
from hylorada.specs.run import OptimisationSpec, TrainingSpec

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

# Decay pulls these towards a value that means something else than "no change".
UNDECAYED = re.compile(r"(bias|gates?|scale|gain|table|boundaries|magnitude_vector)\b")


logger = logging.getLogger(__name__)


def trainer_arguments(
    training: TrainingSpec, optimisation: OptimisationSpec, folder: Path, *, evaluates: bool
) -> TrainingArguments:
    """Return the arguments of `transformers.Trainer` that carry out the two specs."""
    during = evaluates and training.evaluate_every is not None
    # Transformers 5.23 gave it another name and warns of the old one.
    renamed = "activation_checkpointing" in {spec.name for spec in fields(TrainingArguments)}
    checkpointing = "activation_checkpointing" if renamed else "gradient_checkpointing"
    more: dict[str, Any] = {
        checkpointing: training.gradient_checkpointing,
        f"{checkpointing}_kwargs": {"use_reentrant": False},
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=training.epochs,
        max_steps=-1 if training.steps is None else training.steps,
        gradient_accumulation_steps=training.accumulation,
        learning_rate=optimisation.learning_rate,
        max_grad_norm=optimisation.max_gradient_norm,
        bf16=training.precision == "autocast",
        **more,
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


def component_rates(spec: OptimisationSpec, landmark_design: str) -> dict[Component, float]:
    """Return the highest learning rate of each component."""
    has_own = landmark_design in DESIGNS
    measured = DESIGNS[landmark_design].rate_multiplier if has_own else RATE_MULTIPLIER
    landmarks = spec.learning_rate * (spec.landmark_multiplier or measured)
    return {
        "factors": spec.learning_rate,
        "subspace": spec.learning_rate * spec.subspace_multiplier,
        "gates": spec.learning_rate * spec.gate_multiplier,
        "landmarks": landmarks,
        "boundaries": spec.boundary_learning_rate or landmarks,
        "position_bias": spec.learning_rate * spec.position_bias_multiplier,
        "norms": spec.learning_rate * spec.norm_multiplier,
        "embeddings": spec.learning_rate * spec.embedding_multiplier,
    }


def component_of(name: str, model: nn.Module) -> Component:
    """Return the component a trainable parameter belongs to, from its full name."""
    if shared := re.search(r"\.lora_shared\.[^.]+\.(\w+)\.", name):
        part = "boundaries" if name.endswith(".boundaries") else shared.group(1)
        if part not in get_args(Component):
            raise SpecError(
                f"unknown component {part!r} of the adapter in {name!r}; give it a rate"
            )
        return cast(Component, part)
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
    rates = component_rates(spec, landmark_design)
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
    inner = [bank.relative_boundaries() for bank in banks]
    widths = [pad(cuts, (0, 1), value=1.0) - pad(cuts, (1, 0)) for cuts in inner]
    return torch.stack([-(width * width.numel()).log().mean() for width in widths]).sum()
