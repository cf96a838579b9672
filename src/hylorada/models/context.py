"""Wider contexts: rotary positions rescaled before a model is built, learned ones interpolated.

Rotary frequencies are computed when a model is constructed, so a scaling written into the config of
a finished model changes nothing; everything here goes through the config first.
"""

import copy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from hylorada.errors import SpecError, UnsupportedModelError
from hylorada.models.anatomy import WIDENED
from hylorada.names import require_one_of

SCALINGS = ("linear", "dynamic", "yarn")
# Gemma rescales only its global layers: local ones never look further than their window.
GLOBAL_LAYERS = "full_attention"
POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings", "position_embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSpec:
    """How far and by which rule a model's context is widened.

    Attributes:
        length: Tokens the model shall accept.
        scaling: For rotary positions "linear" (positions divided by the factor), "dynamic" (an NTK
            base that grows with the text, exact within the original context) or "yarn" (low
            frequencies interpolated, high ones kept). Learned positions know only "linear".
        factor: How much to stretch; None is `length` over the model's own context.
    """

    length: int
    scaling: str = "linear"
    factor: float | None = None

    def __post_init__(self) -> None:
        if self.length < 2:
            raise SpecError(f"context length must be at least 2; got {self.length}")
        require_one_of("scaling", self.scaling, SCALINGS)
        if self.factor is not None and not 1 <= self.factor < inf:
            raise SpecError(f"context factor must be finite and at least 1; got {self.factor}")


def has_rotary_positions(config: PreTrainedConfig) -> bool:
    """Return whether a model of this config rotates queries and keys by their positions."""
    return bool(getattr(config.get_text_config(), "rope_parameters", None))


def widened_config(config: PreTrainedConfig, spec: ContextSpec) -> PreTrainedConfig:
    """Return a copy of a rotary model's config whose models accept `spec.length` tokens.

    Under "dynamic" scaling `max_position_embeddings` stays the original length, because the rule
    computes its base from it; the wider one is `widened_context` under every rule.
    """
    if not has_rotary_positions(config):
        raise UnsupportedModelError(f"{config.model_type} has no rotary positions to rescale")
    widened = copy.deepcopy(config)
    text = widened.get_text_config()
    original = int(text.max_position_embeddings)
    factor = _factor(spec, original)
    for parameters in _rope_dictionaries(text.rope_parameters):
        _rescale(parameters, spec.scaling, factor, original)
    if spec.scaling != "dynamic":
        text.max_position_embeddings = spec.length
    setattr(text, WIDENED, spec.length)
    return widened


def with_longer_table(model: PreTrainedModel, spec: ContextSpec) -> PreTrainedModel:
    """Return a model with learned positions rebuilt for `spec.length`, its table interpolated.

    Row `p` of the old table becomes row `factor * p` of the new one, so a text whose positions are
    spread by the factor is read as before.
    """
    if spec.scaling != "linear":
        raise SpecError(
            f"scaling {spec.scaling!r} needs rotary positions, {model.config.model_type} learns "
            f"them; use 'linear'"
        )
    name, table = _position_table(model)
    original = int(model.config.max_position_embeddings)
    factor = _factor(spec, original)
    config = copy.deepcopy(model.config)
    config.max_position_embeddings = spec.length
    setattr(config, WIDENED, spec.length)
    # Masks and other buffers depend on the length too, so the model is built anew.
    rebuilt = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    state = model.state_dict()
    reserved = table.num_embeddings - original  # OPT keeps two rows before position 0
    old = table.weight.detach()
    rows = _interpolated(old[reserved:], spec.length, factor)
    state[f"{name}.weight"] = torch.cat([old[:reserved], rows])
    rebuilt.load_state_dict(state)
    return rebuilt.eval()


def _factor(spec: ContextSpec, original: int) -> float:
    if spec.length <= original:
        raise SpecError(
            f"context length must exceed the model's own, {original}; got {spec.length}; "
            f"a shorter text needs no wider context"
        )
    return spec.factor if spec.factor is not None else spec.length / original


def _rope_dictionaries(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rope settings to rescale: the only ones, or those of the global layers."""
    if "rope_type" in parameters:
        return [parameters]
    if isinstance(parameters.get(GLOBAL_LAYERS), dict):
        return [parameters[GLOBAL_LAYERS]]
    raise UnsupportedModelError(
        f"rotary positions are set per layer type ({', '.join(parameters)}) and none is "
        f"{GLOBAL_LAYERS!r}"
    )


def _rescale(parameters: dict[str, Any], scaling: str, factor: float, original: int) -> None:
    if parameters["rope_type"] != "default":
        raise UnsupportedModelError(
            f"this model's rotary positions are already scaled ({parameters['rope_type']}); "
            f"use it at its own context"
        )
    parameters |= {"rope_type": scaling, "factor": factor}
    if scaling == "yarn":
        parameters["original_max_position_embeddings"] = original


def _position_table(model: PreTrainedModel) -> tuple[str, nn.Embedding]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in POSITION_TABLES:
            return name, module
    raise UnsupportedModelError(
        f"{model.config.model_type} has neither rotary nor learned positions, so its context "
        f"cannot be widened"
    )


def _interpolated(
    table: Float[Tensor, "old dim"], length: int, factor: float
) -> Float[Tensor, "new dim"]:
    places = (torch.arange(length, dtype=torch.float64) / factor).clamp(max=len(table) - 1)
    below = places.floor().long()
    above = (below + 1).clamp(max=len(table) - 1)
    share = (places - below).to(table)[:, None]
    return torch.lerp(table[below], table[above], share)
