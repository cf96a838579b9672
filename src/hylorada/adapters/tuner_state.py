"""What adapters keep on the tuner itself, beside their layers, and how PEFT stores and moves it."""

from typing import Any, ClassVar

import torch
from peft.tuners.tuners_utils import BaseTuner
from torch import Tensor, nn

from hylorada.adapters.registration import require_complete


class StatefulTuner(BaseTuner):
    """A tuner with a module for each adapter in the `nn.ModuleDict` that `state_name` names."""

    state_name: ClassVar[str]

    def _states(self) -> nn.ModuleDict:
        # Absent while PEFT injects the first adapter.
        return self._modules.get(self.state_name) or nn.ModuleDict()

    def _move_adapter_to_device_of_base_layer(
        self, adapter_name: str, device: torch.device | None = None
    ) -> None:
        """Move an adapter's state to the model; PEFT asks every module for this after loading."""
        states = self._states()
        if adapter_name not in states:
            return
        state = states[adapter_name]
        if not any(parameter.is_meta for parameter in state.parameters()):
            state.to(device or next(self.model.parameters()).device)

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        place = f"base_model.{cls.state_name}."
        if key.startswith(f"{place}{adapter_name}."):
            return place + key.removeprefix(f"{place}{adapter_name}.")
        name: str = super()._remove_adapter_name_from_key(key, adapter_name)
        return name

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: Any, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Refuse a checkpoint with missing or unexpected tensors; PEFT drops them silently."""
        remapped: dict[str, Tensor] = super()._remap_adapter_state_dict_for_load(
            model=model, config=config, adapter_name=adapter_name, state_dict=state_dict
        )
        require_complete(model, adapter_name, remapped)
        return remapped
