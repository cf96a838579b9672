"""Quantisation-aware training: a trained run goes on with the coordinates that its file will hold.

The recipe of the published certificates: choose a codebook for the trained vector, then train
coordinates and codebook on, in small steps, with a price on every bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from peft import PeftModel
from torch import Tensor
from transformers import TrainerCallback, TrainerState

from hylorada.compression.quantise import DEFAULT_LEVELS, least_bits
from hylorada.compression.training import QuantizingWrapper, settle_gates
from hylorada.jobs.assembly import RunData
from hylorada.specs.evaluation import CompressionSpec
from hylorada.specs.run import QuantisationSpec, RunConfig, TrainingSpec
from hylorada.subspace.core import Subspace
from hylorada.subspace.model import find_subspace
from hylorada.training.trainer import TrainingOutcome, train

# In steps of the codebook: how far a coordinate may go in all, and at most at once.
STEPS_GONE, STEPS_AT_ONCE = 1.5, 0.06
FEWEST_LEVELS = 3


def train_quantised(
    model: PeftModel,
    data: RunData,
    before: TrainingOutcome,
    *,
    config: RunConfig,
    training: TrainingSpec,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
) -> TrainingOutcome:
    """Train a trained SubLoRA model on with quantised coordinates; return what both parts came to.

    The model is left with values that `hylorada compress` keeps as they are. Gates are put on
    their grid first, so that the coordinates adapt to them.
    """
    spec, subspace = config.quantisation, find_subspace(model)
    assert subspace is not None, "a run is quantised only with SubLoRA"
    if subspace.gates is not None:
        settle_gates(model, CompressionSpec().gate_bits)
    wrapper = _wrapped(model, subspace, spec)
    steps = max(1, round(spec.share * before.steps))
    rate = wrapper.spacing() * min(STEPS_AT_ONCE, STEPS_GONE / steps)

    def price() -> Tensor:
        bits = wrapper.bits()
        return spec.price * (bits - bits.detach())  # moves the weights, not the loss reported

    after = train(
        model,
        data.train,
        training=replace(training, steps=steps),
        optimisation=replace(
            config.optimisation, learning_rate=rate, subspace_multiplier=1.0, weight_decay=0.0
        ),
        folder=folder,
        valid_data=data.valid,
        collate=data.collate,
        callbacks=[*callbacks, *([_Settling(wrapper)] if spec.gradual else [])],
        penalty=price if spec.price > 0.0 else None,
    )
    wrapper.finish()
    subspace.requires_grad_(True)
    total, seconds = before.steps + after.steps, before.seconds + after.seconds
    mean = (before.steps * before.train_loss + after.steps * after.train_loss) / total
    return replace(after, steps=total, train_loss=mean, seconds=seconds, audit=before.audit)


def _wrapped(model: PeftModel, subspace: Subspace, spec: QuantisationSpec) -> QuantizingWrapper:
    """Return the model with its vector quantised: by as many values as asked for, or as pay off."""
    levels, step = spec.levels, None
    if levels is None and spec.kind == "symmetric":
        vector = subspace.vector.detach().float().cpu().numpy()
        codebook = least_bits(vector, CompressionSpec().distortion).quantised.codebook
        levels, step = max(FEWEST_LEVELS, codebook.levels), codebook.step
    return QuantizingWrapper(
        model,
        levels=levels or DEFAULT_LEVELS,
        kind=spec.kind,
        step=step,
        dead_zone=spec.dead_zone,
        gradual=spec.gradual,
    )


@dataclass(eq=False)
class _Settling(TrainerCallback):
    """Rounds a growing share of the coordinates for good: the square root of the progress."""

    wrapper: QuantizingWrapper

    def on_step_begin(
        self, args: object, state: TrainerState, control: object, **_: object
    ) -> None:
        self.wrapper.settle(sqrt(state.global_step / state.max_steps))

    def on_train_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        self.wrapper.settle(1.0)  # what is validated is what will be stored
