"""Where landmarks act: hooks after the final norm, or after every block."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hylorada.adapters.designs import AFTER_EVERY_BLOCK, READS_THE_PAST
from hylorada.adapters.history import PrefixSums
from hylorada.adapters.positions import PositionContext
from hylorada.adapters.shared import SharedState
from hylorada.errors import UnsupportedModelError
from hylorada.models.anatomy import Decoder


class LandmarkSites:
    """The hooks that apply every active adapter's landmarks: after a norm, or after each block."""

    def __init__(self, context: PositionContext) -> None:
        self.context = context
        self.enabled = True
        self.active: list[str] = []
        self.states: dict[str, SharedState] = {}
        self.model_layers = 0
        self.norms = 0
        self.norm_calls = 0
        self.handles: list[RemovableHandle] = []

    def attach(
        self, states: dict[str, SharedState], norms: dict[str, nn.Module], decoder: Decoder
    ) -> None:
        """Listen to the final norm of each adapter in `norms`, or to the blocks in its place."""
        self.detach()
        self.states = states
        self.model_layers = len(decoder.layers)
        for adapter, norm in norms.items():
            if states[adapter].design in AFTER_EVERY_BLOCK:
                self.handles += [
                    block.register_forward_hook(partial(self._after_block, adapter, index))
                    for index, block in enumerate(decoder.layers)
                ]
            else:
                self.handles.append(norm.register_forward_hook(partial(self._after_norm, adapter)))
        self.norms = sum(states[adapter].design not in AFTER_EVERY_BLOCK for adapter in norms)
        self.handles.append(decoder.module.register_forward_pre_hook(self._start))

    def detach(self) -> None:
        """Stop listening."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _start(self, module: nn.Module, args: Any) -> None:
        self.norm_calls = 0

    def _after_norm(self, adapter: str, module: nn.Module, args: Any, output: Any) -> Tensor:
        width = self.states[adapter].width
        if not isinstance(output, Tensor) or output.shape[-1] != width:
            raise UnsupportedModelError(
                f"landmark_module must return hidden states {width} wide; "
                f"{type(module).__name__} does not: leave it out to find the final norm"
            )
        if self.norm_calls == self.norms:
            raise UnsupportedModelError(
                "this model uses its final norm more than once in a pass; name another module in "
                "landmark_module or set landmark_enabled=False"
            )
        self.norm_calls += 1
        return self._apply(adapter, None, output)

    def _after_block(
        self, adapter: str, site: int, module: nn.Module, args: Any, output: Any
    ) -> Any:
        if isinstance(output, tuple):
            return (self._apply(adapter, site, output[0]), *output[1:])
        return self._apply(adapter, site, output)

    def _apply(self, adapter: str, site: int | None, hidden: Tensor) -> Tensor:
        rows = self.context.rows(adapter)
        serves = adapter in self.active if rows is None else bool(rows)
        if not (self.enabled and serves):
            return hidden
        state = self.states[adapter]
        assert state.landmarks is not None, "only adapters with landmarks are listened for"
        # Blocks may lie on several devices, a shared bank on one.
        home = next(state.landmarks.parameters()).device
        home = hidden.device if home.type == "meta" else home  # offloaded, and fetched by the call
        positions = self.context.require(hidden).to(home)
        extra: dict[str, Any] = {} if site is None else {"site": site}
        if state.design in READS_THE_PAST and self.context.cache is not None:
            owner = (adapter, site)
            extra["history"] = PrefixSums.of(self.context.cache, owner, self.model_layers)
        changed = state.landmarks(hidden.to(home), positions, **extra).to(hidden.device)
        if rows is None:
            return changed
        # The whole batch went in, so that a history keeps the rows that beam search reorders.
        index = torch.tensor(rows, device=hidden.device)
        return hidden.index_copy(0, index, changed[index])
