"""Token losses of any causal language model: valid tokens only, logits in pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.models.heads import (
    SplitModel,
    decoder_inputs,
    device_of,
    split,
    underlying_causal_lm,
)
from hylorada.text.batches import IGNORED

# Logits alive at once. On a CPU a piece should stay near the cache; a GPU wants large products.
LOGITS_PER_PIECE = {"cpu": 2**22, "cuda": 2**26}
TOKENS_PER_BATCH = {"cpu": 4096, "cuda": 32768}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """Losses in nats at the place of each *target*; zero and False where nothing was scored.

    `hits` says where the target is also the model's first choice (only if asked for).
    """

    losses: Float[Tensor, "batch time"]
    scored: Bool[Tensor, "batch time"]
    hits: Bool[Tensor, "batch time"] | None = None


class Likelihood:
    """Computes `-ln p(x_t | x_<t)` with one model; building it costs two very short forwards."""

    def __init__(self, model: nn.Module, *, batch_tokens: int | None = None) -> None:
        """Prepare the model.

        Args:
            model: Any causal language model of transformers, with or without a PEFT adapter, or a
                module whose output has `logits`.
            batch_tokens: Tokens a batch should hold where a metric forms batches itself.
        """
        self.model = model
        self.device = device_of(model)
        self.batch_tokens = batch_tokens or TOKENS_PER_BATCH.get(self.device.type, 4096)
        with evaluating(model):
            self._parts: SplitModel | None = split(model)

    @property
    def in_pieces(self) -> bool:
        """Return whether the logits of a whole batch are never alive at once."""
        return self._parts is not None

    def rows_of(self, length: int) -> int:
        """Return how many rows of `length` tokens make one batch."""
        return max(1, self.batch_tokens // length)

    @torch.no_grad()
    def token_losses(
        self,
        input_ids: Int[Tensor, "batch time"],
        *,
        labels: Int[Tensor, "batch time"] | None = None,
        attention_mask: Int[Tensor, "batch time"] | None = None,
        position_ids: Int[Tensor, "batch time"] | None = None,
        hits: bool = False,
    ) -> TokenLosses:
        """Return the loss of every valid target, in nats, on the model's device.

        A target counts if its label is not -100 and both it and the token before it are text, so
        neither padding nor the first token of a row is ever scored. Positions follow the mask
        unless given, so left and right padding agree.
        """
        labels = input_ids if labels is None else labels
        mask = None if attention_mask is None else attention_mask.bool()
        if mask is not None and bool(mask.all()):
            mask = None
        if mask is not None and position_ids is None:
            position_ids = (mask.long().cumsum(-1) - 1).clamp(min=0)
        scored = scored_targets(labels, mask)
        places = scored.flatten().nonzero().squeeze(-1).to(self.device)
        targets = labels.to(self.device).flatten()[places]
        with evaluating(self.model):
            picked_losses, picked_hits = self._score(
                input_ids.to(self.device),
                None if mask is None else mask.to(self.device),
                None if position_ids is None else position_ids.to(self.device),
                places,
                targets,
                hits,
            )
        scored = scored.to(self.device)
        losses = torch.zeros(scored.shape, device=self.device)
        losses.view(-1)[places] = picked_losses
        if picked_hits is None:
            return TokenLosses(losses=losses, scored=scored)
        hit = torch.zeros_like(scored)
        hit.view(-1)[places] = picked_hits
        return TokenLosses(losses=losses, scored=scored, hits=hit)

    def _score(
        self,
        input_ids: Int[Tensor, "batch time"],
        mask: Bool[Tensor, "batch time"] | None,
        position_ids: Int[Tensor, "batch time"] | None,
        places: Int[Tensor, " count"],
        targets: Int[Tensor, " count"],
        hits: bool,
    ) -> tuple[Float[Tensor, " count"], Bool[Tensor, " count"] | None]:
        """Return loss (and hit) of the targets at flat `places`, predicted one token earlier."""
        module = underlying_causal_lm(self.model) if self._parts is None else self._parts.decoder
        output = module(**decoder_inputs(module, input_ids, mask, position_ids))
        rows = output.logits if self._parts is None else output.last_hidden_state
        vocabulary = rows.shape[-1] if self._parts is None else self._parts.vocabulary
        rows = rows.flatten(0, 1)
        piece = max(1, LOGITS_PER_PIECE.get(self.device.type, 2**22) // vocabulary)
        losses = torch.empty(places.shape, device=self.device)
        found = torch.empty(places.shape, dtype=torch.bool, device=self.device) if hits else None
        for start in range(0, places.numel(), piece):
            chosen = slice(start, start + piece)
            states = rows[places[chosen] - 1]
            logits = states if self._parts is None else self._parts.head(states)
            log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
            target = targets[chosen]
            losses[chosen] = -log_probabilities.gather(-1, target[:, None]).squeeze(-1)
            if found is not None:
                found[chosen] = log_probabilities.argmax(-1) == target
        return losses, found


def token_losses(
    model: nn.Module,
    input_ids: Int[Tensor, "batch time"],
    *,
    labels: Int[Tensor, "batch time"] | None = None,
    attention_mask: Int[Tensor, "batch time"] | None = None,
    position_ids: Int[Tensor, "batch time"] | None = None,
) -> TokenLosses:
    """Return the loss of every valid target of one batch, in nats; see `Likelihood`."""
    return Likelihood(model).token_losses(
        input_ids, labels=labels, attention_mask=attention_mask, position_ids=position_ids
    )


def scored_targets(
    labels: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"] | None
) -> Bool[Tensor, "batch time"]:
    """Return which targets count: labelled, real, and with a real token before them."""
    scored = labels != IGNORED
    if mask is not None:
        scored = scored & mask
        scored[:, 1:] &= mask[:, :-1]
    scored[:, 0] = False
    return scored


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block and give every module its own mode back after it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
