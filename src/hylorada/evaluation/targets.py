"""Bits and rank of given targets under one model, the logits made in pieces."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import evaluating
from hylorada.models.heads import decoder_inputs, device_of, split, underlying_causal_lm
from hylorada.units import Nats, bits_from_nats

# Logits alive at once: near the cache on a CPU, large products on a GPU.
LOGITS_PER_PIECE = {"cpu": 2**22, "cuda": 2**28}
BITS_PER_NAT = float(bits_from_nats(Nats(1.0)))

Bits = Float[Tensor, " targets"]
Ranks = Int[Tensor, " targets"]


class TargetReader:
    """Scores targets with one model, which may have its adapter switched off."""

    def __init__(self, model: nn.Module, *, adapter_off: bool = False) -> None:
        """Prepare the model; this costs two very short forwards.

        Args:
            model: Any causal language model, with or without a PEFT adapter.
            adapter_off: Whether to read it without its adapter.
        """
        if adapter_off and not isinstance(model, PeftModel):
            raise SpecError(
                f"a model compared with itself needs an adapter to switch off; got a "
                f"{type(model).__name__} without one"
            )
        self.model = model
        self.device = device_of(model)
        self._adapter_off = adapter_off
        with evaluating(model):
            self._parts = split(model)
            self.vocabulary = self._vocabulary()

    @torch.no_grad()
    def read(
        self,
        input_ids: Int[Tensor, "batch time"],
        places: Int[Tensor, " targets"],
        *,
        ranked: bool,
    ) -> tuple[Bits, Ranks | None]:
        """Return the bits of the tokens at flat `places`, and their ranks if wanted.

        The rank counts the logits that are at least the target's, without its own: a tie counts
        against the model.
        """
        targets = input_ids.flatten()[places]
        losses, ranks = [], []
        with evaluating(self.model), self._switched():
            rows = self._rows(input_ids)
            for chosen in self._pieces(places.numel()):
                states, target = rows[places[chosen] - 1], targets[chosen, None]
                logits = states if self._parts is None else self._parts.head(states)
                log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
                losses.append(log_probabilities.gather(-1, target)[:, 0] * -BITS_PER_NAT)
                if ranked:
                    at_least = logits >= logits.gather(-1, target)
                    ranks.append(at_least.sum(-1, dtype=torch.int32) - 1)
        return torch.cat(losses), torch.cat(ranks) if ranked else None

    def _rows(self, input_ids: Int[Tensor, "batch time"]) -> Float[Tensor, "tokens width"]:
        """Return a hidden state for every token, or its logits if the model cannot be split."""
        if self._parts is None:
            module = underlying_causal_lm(self.model)
            logits: Tensor = module(**decoder_inputs(module, input_ids, None, None)).logits
            return logits.flatten(0, 1)
        decoder = self._parts.decoder
        output = decoder(**decoder_inputs(decoder, input_ids, None, None))
        states: Tensor = output.last_hidden_state
        return states.flatten(0, 1)

    def _vocabulary(self) -> int:
        if self._parts is not None:
            return self._parts.vocabulary
        with torch.no_grad():
            return self._rows(torch.zeros((1, 1), dtype=torch.long, device=self.device)).shape[-1]

    def _switched(self) -> AbstractContextManager[None]:
        if not self._adapter_off:
            return nullcontext()
        assert isinstance(self.model, PeftModel)
        return self.model.disable_adapter()

    def _pieces(self, count: int) -> Iterator[slice]:
        limit = LOGITS_PER_PIECE.get(self.device.type, LOGITS_PER_PIECE["cpu"])
        step = max(1, limit // self.vocabulary)
        return (slice(start, start + step) for start in range(0, count, step))
