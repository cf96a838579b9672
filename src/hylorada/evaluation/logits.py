"""Logits at chosen places of a batch, a piece at a time, so that they never exist all at once."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hylorada.models.heads import (
    decoder_inputs,
    device_of,
    evaluating,
    split,
    underlying_causal_lm,
)


class PiecewiseLogits:
    """Makes the logits of one model; building it costs two very short forwards.

    Attributes:
        device: Where the model lives.
        vocabulary: Entries of a prediction.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, logits_at_once: Mapping[str, int]) -> None:
        """Prepare the model.

        Args:
            model: Any causal language model of transformers, with or without a PEFT adapter, or a
                module whose output has `logits`. One that cannot be split into decoder and head
                makes the logits of a whole batch, whatever is wanted of them.
            logits_at_once: Numbers in a piece, by type of device; "cpu" stands for any other.
        """
        self.device = device_of(model)
        self._model = model
        self._logits_at_once = logits_at_once.get(self.device.type, logits_at_once["cpu"])
        with evaluating(model):
            self._parts = split(model)
            self.vocabulary = self._vocabulary()

    def before(
        self,
        places: Int[Tensor, " count"],
        input_ids: Int[Tensor, "batch time"],
        mask: Bool[Tensor, "batch time"] | None = None,
        position_ids: Int[Tensor, "batch time"] | None = None,
    ) -> Iterator[tuple[slice, Float[Tensor, "piece vocab"]]]:
        """Yield pieces of the flat places, and the logits that predict what stands there."""
        rows = self._rows(input_ids, mask, position_ids)
        step = max(1, self._logits_at_once // self.vocabulary)
        for start in range(0, places.numel(), step):
            piece = slice(start, start + step)
            states = rows[places[piece] - 1]
            yield piece, states if self._parts is None else self._parts.head(states)

    def _rows(
        self,
        input_ids: Int[Tensor, "batch time"],
        mask: Bool[Tensor, "batch time"] | None,
        position_ids: Int[Tensor, "batch time"] | None,
    ) -> Float[Tensor, "tokens width"]:
        """Return a hidden state for every token, or its logits if the model cannot be split."""
        module = underlying_causal_lm(self._model) if self._parts is None else self._parts.decoder
        output = module(**decoder_inputs(module, input_ids, mask, position_ids))
        rows: Tensor = output.logits if self._parts is None else output.last_hidden_state
        return rows.flatten(0, 1)

    def _vocabulary(self) -> int:
        if self._parts is not None:
            return self._parts.vocabulary
        token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        return self._rows(token, None, None).shape[-1]
