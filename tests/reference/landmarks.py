"""The landmark designs token by token in float64: slow, obvious, the yardstick of the modules."""

import itertools
import math

import torch
from torch import Tensor

from hylorada import LearnableBucketLandmark, OriginalLandmark, PositionAdaptiveLandmark


def mixture(gate_logits: Tensor, landmarks: Tensor, scale: Tensor) -> Tensor:
    """Return `scale * softmax(gate_logits) L` for one token."""
    weights = gate_logits.exp() / gate_logits.exp().sum()
    mixed = torch.zeros(landmarks.shape[1], dtype=torch.float64)
    for weight, landmark in zip(weights, landmarks, strict=True):
        mixed += weight * landmark
    return scale * mixed


@torch.no_grad()
def position_adaptive(
    module: PositionAdaptiveLandmark, states: Tensor, positions: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Return `h + scale * softmax(P[bucket(p)] + W_c h) L`."""
    factor = (module.scale[0] if scale is None else scale).double()
    found = states.double().clone()
    for b, t in _tokens(states):
        place = int(positions.expand(states.shape[:2])[b, t])
        bucket = module.bucket_of_position[min(place, len(module.bucket_of_position) - 1)]
        content = module.content_gate.weight.double() @ states[b, t].double()
        gate = module.position_gate[bucket].double() + content
        found[b, t] += mixture(gate, module.landmarks.double(), factor)
    return found


@torch.no_grad()
def learnable(module: LearnableBucketLandmark, states: Tensor, positions: Tensor) -> Tensor:
    """Return the same with `P`-logits `u P`, `u` the soft shares of the buckets."""
    widths = [*(math.exp(float(logit)) for logit in module.boundaries.double()), 1.0]
    boundaries = [sum(widths[: i + 1]) / sum(widths) for i in range(len(widths) - 1)]
    found = states.double().clone()
    for b, t in _tokens(states):
        share = float(positions.expand(states.shape[:2])[b, t]) / module.max_positions
        beyond = [1.0]
        beyond += [1 / (1 + math.exp((edge - share) / module.temperature)) for edge in boundaries]
        beyond += [0.0]
        gate = module.content_gate.weight.double() @ states[b, t].double()
        for row, (near, far) in enumerate(itertools.pairwise(beyond)):
            gate = gate + (near - far) * module.position_gate[row].double()
        found[b, t] += mixture(gate, module.landmarks.double(), module.scale[0].double())
    return found


@torch.no_grad()
def original(module: OriginalLandmark, states: Tensor, positions: Tensor) -> Tensor:
    """Return `h + scale * softmax(W_g mean of the document so far) L`."""
    found = states.double().clone()
    means = causal_mean(states, positions)
    for b, t in _tokens(states):
        gate = module.content_gate.weight.double() @ means[b, t]
        found[b, t] += mixture(gate, module.landmarks.double(), module.scale[0].double())
    return found


def causal_mean(states: Tensor, positions: Tensor) -> Tensor:
    """Return the mean of each token's document up to and with that token."""
    found = torch.empty_like(states, dtype=torch.float64)
    for b, t in _tokens(states):
        first = max(0, t - int(positions.expand(states.shape[:2])[b, t]))
        found[b, t] = states[b, first : t + 1].double().mean(dim=0)
    return found


def _tokens(states: Tensor) -> list[tuple[int, int]]:
    return [(b, t) for b in range(states.shape[0]) for t in range(states.shape[1])]
