"""Bits and rank of given targets under one model, the logits made in pieces."""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float, Int
from peft import PeftModel
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.evaluation.logits import PiecewiseLogits
from hylorada.models.heads import evaluating
from hylorada.units import Nats, bits_from_nats

# Logits alive at once: near the cache on a CPU, large products on a GPU.
LOGITS_PER_PIECE = {"cpu": 2**22, "cuda": 2**28}
BITS_PER_NAT = float(bits_from_nats(Nats(1.0)))


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
        self._logits = PiecewiseLogits(model, LOGITS_PER_PIECE)
        self.device, self.vocabulary = self._logits.device, self._logits.vocabulary
        self._adapter_off = adapter_off

    @torch.no_grad()
    def read(
        self,
        input_ids: Int[Tensor, "batch time"],
        places: Int[Tensor, " targets"],
        *,
        ranked: bool,
    ) -> tuple[Float[Tensor, " targets"], Int[Tensor, " targets"] | None]:
        """Return the bits of the tokens at flat `places`, and their ranks if wanted.

        The rank counts the logits that are at least the target's, without its own: a tie counts
        against the model.
        """
        targets = input_ids.flatten()[places]
        losses, ranks = [], []
        with evaluating(self.model), self._switched():
            for piece, logits in self._logits.before(places, input_ids):
                target = targets[piece, None]
                log_probabilities = logits.log_softmax(-1, dtype=torch.float32)
                losses.append(log_probabilities.gather(-1, target)[:, 0] * -BITS_PER_NAT)
                if ranked:
                    at_least = logits >= logits.gather(-1, target)
                    ranks.append(at_least.sum(-1, dtype=torch.int32) - 1)
        return torch.cat(losses), torch.cat(ranks) if ranked else None

    def _switched(self) -> AbstractContextManager[None]:
        if not self._adapter_off:
            return nullcontext()
        assert isinstance(self.model, PeftModel)
        return self.model.disable_adapter()
