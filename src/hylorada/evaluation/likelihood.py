"""Score rows of different lengths in batches; padding stands at the end and is never counted.

A causal model sees nothing of what comes after, so no mask is needed and attention keeps its fast
path.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track as rich_track
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.models.anatomy import (
    decoder_inputs,
    device_of,
    evaluating,
    split,
    underlying_causal_lm,
)

Item = TypeVar("Item")
# Logits alive at once. On a CPU a piece should stay near the cache; a GPU wants large products.
LOGITS_PER_PIECE = {"cpu": 2**22, "cuda": 2**26}
TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 32768}


def track(items: Sequence[Item], description: str, *, enabled: bool) -> Iterator[Item]:
    """Yield the items while showing how many are done; silently if not `enabled`."""
    console = Console(stderr=True)
    yield from rich_track(items, description, console=console, disable=not enabled)


def require_context(model: nn.Module, length: int) -> None:
    """Raise `SpecError` if the model has no positions for `length` tokens."""
    config = getattr(underlying_causal_lm(model), "config", None)
    own = getattr(config, "max_position_embeddings", None)
    context = getattr(config, "widened_context", own)
    if isinstance(context, int) and length > context:
        raise SpecError(
            f"max_length must not exceed the model's context, {context}; got {length}; "
            "lower it, or load the model with a wider context"
        )


class PiecewiseLogits:
    """Makes the logits of one model; building it costs two very short forwards.

    The model is any causal language model of transformers, with or without a PEFT adapter, or a
    module whose output has `logits`. One that cannot be split into decoder and head makes the
    logits of a whole batch, whatever is wanted of them.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, logits_at_once: Mapping[str, int]) -> None:
        """Prepare the model for pieces of so many numbers by device; "cpu" is for any other."""
        self.device = device_of(model)
        self._model = model
        self._logits_at_once = logits_at_once.get(self.device.type, logits_at_once["cpu"])
        with evaluating(model):
            self._parts = split(model)
            if self._parts is not None:
                self.vocabulary = self._parts.vocabulary
            else:
                token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
                self.vocabulary = self._rows(token).shape[-1]

    def before(
        self, places: Int[Tensor, " count"], input_ids: Int[Tensor, "batch time"]
    ) -> Iterator[tuple[slice, Float[Tensor, "piece vocab"]]]:
        """Yield pieces of the flat places, and the logits that predict what stands there."""
        rows = self._rows(input_ids)
        step = max(1, self._logits_at_once // self.vocabulary)
        for start in range(0, places.numel(), step):
            piece = slice(start, start + step)
            states = rows[places[piece] - 1]
            yield piece, states if self._parts is None else self._parts.head(states)

    def _rows(self, input_ids: Int[Tensor, "batch time"]) -> Float[Tensor, "tokens width"]:
        """Return a hidden state for every token, or its logits if the model cannot be split."""
        module = underlying_causal_lm(self._model) if self._parts is None else self._parts.decoder
        output = module(**decoder_inputs(module, input_ids))
        rows: Tensor = output.logits if self._parts is None else output.last_hidden_state
        return rows.flatten(0, 1)


class Likelihood(PiecewiseLogits):
    """Computes `-ln p(x_t | x_<t)` with one model; building it costs two very short forwards."""

    def __init__(self, model: nn.Module, *, batch_tokens: int | None = None) -> None:
        """Prepare the model for batches of so many tokens; None chooses by the device."""
        super().__init__(model, LOGITS_PER_PIECE)
        self.batch_tokens = batch_tokens or TOKENS_PER_BATCH.get(self.device.type, 4096)

    def rows_of(self, length: int) -> int:
        """Return how many rows of `length` tokens make one batch."""
        return max(1, self.batch_tokens // length)

    @torch.no_grad()
    def target_losses(
        self,
        input_ids: Int[Tensor, "batch time"],
        places: Int[Tensor, " count"],
        *,
        hits: bool = False,
    ) -> tuple[Float[Tensor, " count"], Bool[Tensor, " count"] | None]:
        """Return the losses in nats of the tokens at flat `places`, on the model's device.

        With `hits`, also return where the token is the model's first choice.
        """
        input_ids, places = input_ids.to(self.device), places.to(self.device)
        targets = input_ids.flatten()[places]
        losses, chosen = [], []
        with evaluating(self._model):
            for piece, logits in self.before(places, input_ids):
                target = targets[piece]
                log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
                losses.append(-log_probabilities.gather(-1, target[:, None])[:, 0])
                if hits:
                    chosen.append(log_probabilities.argmax(-1) == target)
        return torch.cat(losses), torch.cat(chosen) if hits else None


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens for one forward pass; those before index `first_scored` are context only."""

    tokens: NDArray[np.int64]
    first_scored: int

    def __post_init__(self) -> None:
        if not 1 <= self.first_scored < self.tokens.size:
            raise SpecError(
                "a row needs a token to predict and one before it: first_scored must lie in "
                f"1..{self.tokens.size - 1}; got {self.first_scored}"
            )

    @property
    def targets(self) -> int:
        """Return the number of scored tokens."""
        return self.tokens.size - self.first_scored


class RowScores(NamedTuple):
    """Losses in nats of one row's targets, and whether each is the model's first choice."""

    losses: NDArray[np.float32]
    hits: NDArray[np.bool_] | None = None


def score_rows(
    likelihood: Likelihood,
    rows: Sequence[Row],
    *,
    hits: bool = False,
    description: str = "rows",
    progress: bool = False,
) -> list[RowScores]:
    """Return the scores of every row, in the order given; similar lengths share a batch."""
    if not rows:
        return []
    order = sorted(range(len(rows)), key=lambda index: rows[index].tokens.size)
    batches: list[list[Row]] = [[]]
    for index in order:
        if len(batches[-1]) >= likelihood.rows_of(rows[index].tokens.size):
            batches.append([])
        batches[-1].append(rows[index])
    found = [
        likelihood.target_losses(*_padded(batch), hits=hits)
        for batch in track(batches, description, enabled=progress)
    ]
    # One transfer at the end: a copy in every step would make an accelerator wait.
    losses = torch.cat([part for part, _ in found]).cpu().numpy()
    chosen = [part for _, part in found if part is not None]
    first = torch.cat(chosen).cpu().numpy() if chosen else None
    scores, start = {}, 0
    for index in order:
        own = slice(start, start := start + rows[index].targets)
        scores[index] = RowScores(losses[own], None if first is None else first[own])
    return [scores[index] for index in range(len(rows))]


def _padded(rows: list[Row]) -> tuple[Int[Tensor, "batch time"], Int[Tensor, " count"]]:
    """Return the tokens, each row filled up with its last, and the flat places of the targets."""
    width = max(row.tokens.size for row in rows)
    tokens = [np.pad(row.tokens, (0, width - row.tokens.size), mode="edge") for row in rows]
    places = [
        number * width + np.arange(row.first_scored, row.tokens.size)
        for number, row in enumerate(rows)
    ]
    return torch.from_numpy(np.stack(tokens)), torch.from_numpy(np.concatenate(places))
