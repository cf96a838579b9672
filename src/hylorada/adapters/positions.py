"""Where tokens stand and what came before them, for modules that the model does not tell.

A position is what the caller passed as `position_ids`, else what the attention mask says (left
padding), else the length of the cache plus 0 .. T-1. So one full pass, cached decoding, padded
and packed batches agree. Nothing falls back silently: without positions there is an error.
"""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache, DynamicLayer

from hylorada.errors import UnsupportedModelError
from hylorada.models.anatomy import Decoder
from hylorada.names import require_one_of, whole_number
from hylorada.specs.adapters import SPACINGS

Hidden = Float[Tensor, "batch time dim"]
Positions = Int[Tensor, "#batch time"]


def bucket_table(spacing: str, buckets: int, max_positions: int) -> Int[Tensor, " positions"]:
    """Return the bucket of each position 0 .. max_positions - 1.

    `uniform` cuts the positions into equal parts. `log` is exact for the first half of the
    buckets and logarithmic after it. Where the logarithm would leap over a bucket (short contexts)
    the spacing is uniform; where there are fewer positions than buckets each position is its own.
    """
    require_one_of("bucket spacing", spacing, SPACINGS)
    buckets = whole_number("the number of buckets", buckets)
    max_positions = whole_number("max_positions", max_positions, "give the context length")
    positions = torch.arange(max_positions)
    uniform = positions * min(buckets, max_positions) // max_positions
    if spacing == "uniform" or max_positions <= buckets:
        return uniform
    exact = max(buckets // 2, 1)
    growth = torch.log(positions.clamp(min=exact).double() / exact)
    scale = (buckets - exact) / torch.log(torch.tensor(max_positions / exact, dtype=torch.float64))
    logarithmic = (exact + (growth * scale).long()).clamp(max=buckets - 1)
    table = torch.where(positions < exact, positions, logarithmic)
    return table if table.unique().numel() == buckets else uniform


def read_bucket(
    table: Int[Tensor, " positions"], positions: Int[Tensor, "*shape"]
) -> Int[Tensor, "*shape"]:
    """Return the bucket of each position; positions beyond the table share its last bucket."""
    return table[positions.clamp(0, table.numel() - 1)]


class PositionContext:
    """The positions and the cache of the forward pass that is running, read by hooks.

    Hooks are bound methods of this one object, so that `copy.deepcopy` and `pickle` carry them.
    """

    def __init__(self) -> None:
        self.current: Tensor | None = None
        self.derived: dict[Hashable, Tensor | tuple[Tensor, ...]] = {}
        self.cache: Cache | None = None
        self.norm_calls = 0
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

    def _enter_decoder(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if not torch.compiler.is_compiling():
            if self.running and self.thread != get_ident():  # positions would be mixed up
                raise UnsupportedModelError(
                    "a model with landmarks or position bias serves one forward pass at a time, "
                    "and another thread is in one; give each thread a copy.deepcopy of the model"
                )
            self.running, self.thread = True, get_ident()
        inputs = dict(zip(self.arguments, args, strict=False)) | kwargs
        self.start(resolve_positions(inputs))
        self.cache, self.norm_calls = None, 0
        for layer in self.checkpointed:
            inner = getattr(layer, "_gradient_checkpointing_func", None)
            is_wrapped = isinstance(inner, CheckpointWithPositions)
            is_on = getattr(layer, "gradient_checkpointing", False)
            if is_on and inner is not None and not is_wrapped:
                _set_checkpointing(layer, CheckpointWithPositions(self, inner))

    def _leave_decoder(self, module: nn.Module, args: object, output: object) -> None:
        if self.running and self.thread != get_ident():
            return  # a pass that was refused
        self.running = False
        self.start(None)
        self.cache = None

    def _enter_layer(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        for value in (*kwargs.values(), *args):
            if isinstance(value, Cache):
                self.cache = value


@dataclass(eq=False)
class CheckpointWithPositions:
    """A checkpointing function whose recomputation sees the positions of the original pass.

    By then another pass may have run (two forwards before one backward), and not every architecture
    hands `position_ids` to its blocks.
    """

    context: PositionContext
    inner: Callable[..., object]

    def __call__(self, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Checkpoint `function`, bound to the positions that are current now."""
        context, positions = self.context, self.context.current

        def run(*inputs: object) -> object:
            outside, derived = context.current, context.derived
            context.start(positions)
            try:
                return function(*inputs)
            finally:
                context.current, context.derived = outside, derived

        return self.inner(run, *args, **kwargs)


def _set_checkpointing(layer: nn.Module, function: Callable[..., object]) -> None:
    """Set it past nn.Module's bookkeeping: a function, not a parameter or a module."""
    object.__setattr__(layer, "_gradient_checkpointing_func", function)


def resolve_positions(inputs: dict[str, Any]) -> Positions | None:
    """Return the positions that a decoder's inputs describe, or None without tokens."""
    given = inputs.get("position_ids")
    if given is not None:
        given = given[None] if given.ndim == 1 else given
        return given[0] if given.ndim == 3 else given  # the text's axis of a RoPE with several
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
        return counted if counted.shape[1] == length else counted[:, past : past + length]
    return past + torch.arange(length, device=tokens.device)[None]


class PrefixSums(DynamicLayer):
    """A layer of a model's cache that holds the running sums of hidden states at one site."""

    # A static cache stays one in the eyes of transformers, which then masks its unfilled part.
    is_compileable = True

    def __init__(self, owner: Hashable) -> None:
        super().__init__()
        self.owner = owner

    @classmethod
    def of(cls, cache: Cache, owner: Hashable, model_layers: int) -> "PrefixSums":
        """Return the sums that belong to `owner`, adding them behind the model's own layers.

        A cache with fixed layers has all that its pass runs: those before an early exit, or those
        that keep keys of their own. A lazy one is filled up with what it has not met yet.
        """
        for layer in cache.layers:
            if isinstance(layer, cls) and layer.owner == owner:
                return layer
        lazy = cache.layer_class_to_replicate
        while lazy is not None and len(cache.layers) < model_layers:
            cache.layers.append(lazy())
        sums = cls(owner)
        cache.layers.append(sums)
        return sums

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Refuse the keys of a block, which come here when the cache has no layer for it."""
        raise UnsupportedModelError(
            "a cache needs a layer for every block that a pass runs, because sums of the past lie "
            "behind them; this one has fewer; build it from the model's own configuration, and "
            "set assistant_early_exit only for models that then run fewer blocks"
        )

    def past(self) -> Float[Tensor, "batch past dim"] | None:
        """Return the sums up to each earlier token, or None at the start."""
        return self.keys[:, 0] if self.keys is not None and self.get_seq_length() else None

    def extend(self, sums: Hidden) -> None:
        """Append the sums up to each new token."""
        keys = sums[:, None]
        super().update(keys, keys[..., :0])


def causal_mean(hidden: Hidden, positions: Positions, history: PrefixSums | None = None) -> Hidden:
    """Return, for each token, the mean of its document's hidden states up to and with itself.

    A token's document starts `position` tokens before it, which leaves out left padding and the
    documents packed before it. Sums are float32.
    """
    past = None if history is None else history.past()
    sums = hidden.float().cumsum(dim=1)
    if past is not None:
        sums = sums + past[:, -1:]
    if history is not None:
        history.extend(sums)
    everything = sums if past is None else torch.cat([past, sums], dim=1)

    first = everything.shape[1] - hidden.shape[1]
    index = torch.arange(first, everything.shape[1], device=hidden.device)
    start = (index - positions).clamp(min=0).expand(hidden.shape[0], -1)
    before = everything.gather(1, (start - 1).clamp(min=0)[..., None].expand_as(hidden))
    before = torch.where((start > 0)[..., None], before, 0.0)
    return ((sums - before) / (index - start + 1)[..., None]).to(hidden.dtype)


class PositionBias(nn.Module):
    """One table and a gate per adapted layer, all zero at the start, scale the LoRA update.

    `delta_p <- delta_p * (1 + sigmoid(g_l) * tanh(b[bucket(p)]))`, with logarithmic buckets.
    """

    bucket_of_position: Tensor

    def __init__(self, layers: int, buckets: int = 64, max_positions: int = 1024) -> None:
        super().__init__()
        table = bucket_table("log", buckets, max_positions)
        self.register_buffer("bucket_of_position", table, persistent=False)
        self.table = nn.Parameter(torch.zeros(int(table[-1]) + 1))
        self.gates = nn.Parameter(torch.zeros(layers))

    def forward(
        self, positions: Positions, sequences: int, rank: int
    ) -> Float[Tensor, "layers tokens rank"]:
        """Return the factor of every layer at each token of `sequences`, in `rank` equal columns.

        Repeated here, once for all layers: a CPU is slow at a product that repeats a number along
        short rows, and at the sum over them in its gradient.
        """
        bias = torch.tanh(self.table)[read_bucket(self.bucket_of_position, positions)]
        repeated = bias[..., None].expand(sequences, -1, rank).reshape(-1)
        one = self.gates.new_ones(())
        factors = torch.addr(one, torch.sigmoid(self.gates), repeated)  # all layers in one product
        return factors.view(len(self.gates), -1, rank)


@dataclass(eq=False)
class PositionGain:
    """One layer's view of an adapter's position bias: the factors of the tokens in flight.

    A plain object, so that the bias is registered once, on the tuner, and not in every layer. The
    first layer of a pass computes the factors of all layers.
    """

    bias: PositionBias
    layer: int
    adapter: str
    context: PositionContext

    def __call__(
        self, x: Float[Tensor, "*batch in_dim"], rank: int
    ) -> Float[Tensor, "tokens rank"]:
        """Return the factor of each token of `x`, repeated in `rank` columns.

        `x` holds the sequences that the adapter serves.
        """
        positions, derived = self.context.require(x), self.context.derived
        key = (self.adapter, rank, x.dtype, x.device)
        if key not in derived:
            served = self.context.rows(self.adapter)
            if served is not None and len(positions) > 1:
                positions = positions[served]
            sequences = x.shape[:-1].numel() // positions.shape[-1]
            positions = positions.to(self.bias.bucket_of_position.device)
            by_token = self.bias(positions, sequences, rank).to(x.device, x.dtype)
            # Compiled blocks of all layers are one graph only if the layer indexes a tensor.
            derived[key] = by_token if torch.compiler.is_compiling() else by_token.unbind()
        return derived[key][self.layer]
