"""True token positions for modules that the base model does not hand them to.

A position is what the caller passed as `position_ids`, else what the attention mask says (left
padding), else the length of the cache plus 0 .. T-1. So one full pass, cached decoding, padded
and packed batches agree. Nothing falls back silently: without positions there is an error.
"""

import inspect
from collections.abc import Callable, Hashable
from functools import partial
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache

from hylorada.errors import UnsupportedModelError
from hylorada.models.anatomy import Decoder

Positions = Int[Tensor, "#batch time"]


class PositionContext:
    """The positions and the cache of the forward pass that is running, read by hooks.

    Hooks are bound methods of this one object, so that `copy.deepcopy` and `pickle` carry them.
    """

    def __init__(self) -> None:
        self.current: Tensor | None = None
        self.derived: dict[Hashable, Any] = {}
        self.cache: Cache | None = None
        self.mixed_batch: list[str] | None = None
        self.handles: list[RemovableHandle] = []
        self.arguments: list[str] = []
        self.checkpointed: list[nn.Module] = []
        self.running = False
        self.thread: int | None = None

    def attach(self, decoder: Decoder) -> None:
        """Listen to the decoder and its blocks."""
        self.detach()
        self.arguments = list(inspect.signature(decoder.module.forward).parameters)
        if not {"position_ids", "past_key_values"} & set(self.arguments):
            raise UnsupportedModelError(
                f"{type(decoder.module).__name__} knows no token positions while decoding (a "
                "recurrent model?); set landmark_enabled=False and position_bias=False"
            )
        self.checkpointed = [decoder.module, *decoder.layers]
        self.handles = [
            decoder.module.register_forward_pre_hook(self._enter_decoder, with_kwargs=True),
            decoder.module.register_forward_hook(self._leave_decoder, always_call=True),
            *(
                layer.register_forward_pre_hook(self._enter_layer, with_kwargs=True)
                for layer in decoder.layers
            ),
        ]

    def detach(self) -> None:
        """Stop listening."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for layer in self.checkpointed:
            inner = getattr(layer, "_gradient_checkpointing_func", None)
            if isinstance(inner, CheckpointWithPositions) and inner.context is self:
                _set_checkpointing(layer, inner.inner)

    def rows(self, adapter: str) -> list[int] | None:
        """Return the sequences of a mixed batch that `adapter` serves, or None for all."""
        if self.mixed_batch is None:
            return None
        return [row for row, name in enumerate(self.mixed_batch) if name == adapter]

    def start(self, positions: Tensor | None) -> None:
        """Make these the positions in flight, and forget what was derived from others."""
        self.current = positions
        self.derived = {}

    def require(self, tokens: Float[Tensor, "*batch dim"]) -> Positions:
        """Return the positions of the tokens in flight, or say why they are unknown.

        A matrix holds the tokens of all sequences, one after another, as in OPT's MLP.
        """
        if self.current is None:
            raise UnsupportedModelError(
                "token positions are unknown here: call the model through model(...), not through "
                "a decoder's forward, and checkpoint with model.gradient_checkpointing_enable()"
            )
        known, length = self.current.shape[-1], tokens.shape[-2]
        if length % known if tokens.ndim == 2 else length != known:
            raise UnsupportedModelError(
                f"got {known} positions for {length} tokens; pass position_ids of the input's own "
                "length"
            )
        return self.current

    def _enter_decoder(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._take_turn()
        inputs = dict(zip(self.arguments, args, strict=False)) | kwargs
        self.start(resolve_positions(inputs))
        self.cache = None
        for layer in self.checkpointed:
            if getattr(layer, "gradient_checkpointing", False):
                self._carry_into_recomputation(layer)

    def _leave_decoder(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.running and self.thread != get_ident():
            return  # refused by _take_turn
        self.running = False
        self.start(None)
        self.cache = None

    def _take_turn(self) -> None:
        """Refuse a pass while another thread is in one: its positions would be mixed up."""
        if torch.compiler.is_compiling():
            return
        if self.running and self.thread != get_ident():
            raise UnsupportedModelError(
                "a model with landmarks or position bias serves one forward pass at a time, and "
                "another thread is in one; give each thread a copy.deepcopy of the model"
            )
        self.running, self.thread = True, get_ident()

    def _enter_layer(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for value in (*kwargs.values(), *args):
            if isinstance(value, Cache):
                self.cache = value

    def _carry_into_recomputation(self, layer: nn.Module) -> None:
        """Make a checkpointed block recompute with the positions of its own forward pass.

        By then another pass may have run (two forwards before one backward), and not every
        architecture hands `position_ids` to its blocks.
        """
        inner = getattr(layer, "_gradient_checkpointing_func", None)
        if inner is not None and not isinstance(inner, CheckpointWithPositions):
            _set_checkpointing(layer, CheckpointWithPositions(self, inner))


class CheckpointWithPositions:
    """A checkpointing function whose recomputation sees the positions of the original pass."""

    def __init__(self, context: PositionContext, inner: Callable[..., Any]) -> None:
        self.context = context
        self.inner = inner

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checkpoint `function`, bound to the positions that are current now."""
        return self.inner(partial(self._run, self.context.current, function), *args, **kwargs)

    def _run(self, positions: Tensor | None, function: Callable[..., Any], *args: Any) -> Any:
        outside, derived = self.context.current, self.context.derived
        self.context.start(positions)
        try:
            return function(*args)
        finally:
            self.context.current, self.context.derived = outside, derived


def _set_checkpointing(layer: nn.Module, function: Callable[..., Any]) -> None:
    """Set it past nn.Module's bookkeeping: a function, not a parameter or a module."""
    object.__setattr__(layer, "_gradient_checkpointing_func", function)


def resolve_positions(inputs: dict[str, Any]) -> Positions | None:
    """Return the positions that a decoder's inputs describe, or None without tokens."""
    given = inputs.get("position_ids")
    if given is not None:
        return _two_dimensional(given)
    tokens = inputs.get("input_ids")
    if tokens is None:
        tokens = inputs.get("inputs_embeds")
    if tokens is None:
        return None
    length = tokens.shape[1]
    cache = inputs.get("past_key_values")
    past = 0 if cache is None else cache.get_seq_length()
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        counted = ((mask != 0).long().cumsum(dim=-1) - 1).clamp(min=0)
        if counted.shape[1] == length:
            return counted
        return counted[:, past : past + length]
    return past + torch.arange(length, device=tokens.device)[None]


def _two_dimensional(positions: Tensor) -> Tensor:
    """Return (batch, time) positions; axis 0 of a multi-axis RoPE is the text axis."""
    if positions.ndim == 1:
        return positions[None]
    return positions[0] if positions.ndim == 3 else positions
