"""Token losses of any causal language model: valid tokens only, logits in pieces."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.evaluation.logits import PiecewiseLogits
from hylorada.models.heads import evaluating, underlying_causal_lm
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
            model: What `PiecewiseLogits` takes.
            batch_tokens: Tokens a batch should hold where a metric forms batches itself.
        """
        self.model = model
        self._logits = PiecewiseLogits(model, LOGITS_PER_PIECE)
        self.device = self._logits.device
        self.batch_tokens = batch_tokens or TOKENS_PER_BATCH.get(self.device.type, 4096)

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
        losses = torch.zeros(scored.shape, device=self.device)
        hit = torch.zeros_like(losses, dtype=torch.bool) if hits else None
        given = [None if part is None else part.to(self.device) for part in (mask, position_ids)]
        with evaluating(self.model):
            for piece, logits in self._logits.before(places, input_ids.to(self.device), *given):
                place, target = places[piece], targets[piece]
                log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
                losses.view(-1)[place] = -log_probabilities.gather(-1, target[:, None])[:, 0]
                if hit is not None:
                    hit.view(-1)[place] = log_probabilities.argmax(-1) == target
        return TokenLosses(losses=losses, scored=scored.to(self.device), hits=hit)


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
