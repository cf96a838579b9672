"""LoRA and DoRA as their papers write them, in whatever precision the tensors have."""

from torch import Tensor


def lora(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    down: Tensor,
    up: Tensor,
    scaling: float,
    gain: Tensor | float = 1.0,
) -> Tensor:
    """Return `W x + gain * s * B A x + bias`; `gain` is one number or one per token."""
    update = scaling * (x @ down.T @ up.T)
    result = x @ weight.T + _per_token(gain) * update
    return result if bias is None else result + bias


def dora(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    down: Tensor,
    up: Tensor,
    scaling: float,
    magnitude: Tensor,
    gain: Tensor | float = 1.0,
) -> Tensor:
    """Return `m / |W + s B A| * (W x + gain * s * B A x) + bias`, the row norm detached."""
    norm = row_norm(weight, down, up, scaling).detach()
    result = magnitude / norm * lora(x, weight, None, down, up, scaling, gain)
    return result if bias is None else result + bias


def row_norm(weight: Tensor, down: Tensor, up: Tensor, scaling: float) -> Tensor:
    """Return the norm of each row of `W + s B A`, formed in full."""
    return (weight + scaling * up @ down).square().sum(dim=1).sqrt()


def _per_token(gain: Tensor | float) -> Tensor | float:
    return gain[..., None] if isinstance(gain, Tensor) else gain
