"""What adapters keep on the tuner itself, beside their layers: how it comes, goes and is stored."""

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from peft.tuners.tuners_utils import BaseTuner
from torch import Tensor, nn

from hylorada.adapters.registration import require_complete


class StatefulTuner(BaseTuner):
    """A tuner with a module for each adapter in the `nn.ModuleDict` that `state_name` names."""

    state_name: ClassVar[str]

    @abstractmethod
    def _add_state(self, adapter_name: str) -> None:
        """Add what an adapter needs beyond its layers, which are there already."""

    @abstractmethod
    def _attach(self) -> None:
        """Hook all adapters into the model, in place of the hooks there were."""

    @abstractmethod
    def _detach(self) -> None:
        """Remove all hooks."""

    def _states(self) -> nn.ModuleDict:
        # Absent while PEFT injects the first adapter.
        return self._modules.get(self.state_name) or nn.ModuleDict()

    # Coming and going

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        """Add an adapter: PEFT's layers first, then what belongs to the model as a whole.

        An adapter that is refused leaves the model as it was; one that is added leaves the others
        as trainable as they were.
        """
        if self.state_name not in self._modules:
            self.add_module(self.state_name, nn.ModuleDict())
        # What is found in the model is filled in; the caller's configuration may serve another.
        given = self.peft_config[adapter_name]
        config = copy.copy(given)
        self.peft_config[adapter_name] = config
        flags = [(parameter, parameter.requires_grad) for parameter in self.parameters()]
        self._detach()  # PEFT copies modules to save with the hooks they carry
        try:
            super().inject_adapter(model, adapter_name, *args, **kwargs)
            self._add_state(adapter_name)
            self._attach()
        except Exception:
            self._withdraw(adapter_name)
            _restore(flags)
            raise
        if config == given:  # nothing was: then it is the caller's, as in PEFT
            self.peft_config[adapter_name] = given
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)
        if len(self.peft_config) > 1:  # the first one freezes the model
            _restore(flags)

    def _withdraw(self, adapter_name: str) -> None:
        if list(self.peft_config) == [adapter_name]:
            self._unload_and_optionally_merge(merge=False, progressbar=False)
        else:
            self.delete_adapter(adapter_name)

    def delete_adapter(self, adapter_name: str) -> None:
        """Remove an adapter with all it trained."""
        was_active = adapter_name in self.active_adapters
        super().delete_adapter(adapter_name)
        states = self._states()
        if adapter_name in states:
            del states[adapter_name]
        self._attach()
        if was_active:
            self.set_adapter(self.active_adapters)

    def unload(self) -> nn.Module:
        """Return the base model as it was, without PEFT's bar for a moment's work."""
        return self._unload_and_optionally_merge(merge=False, progressbar=False)

    def _unload_and_optionally_merge(self, *args: Any, **kwargs: Any) -> nn.Module:
        model: nn.Module = super()._unload_and_optionally_merge(*args, **kwargs)
        self._detach()
        return model

    # Switching

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        """Activate one or several adapters, layers and state alike."""
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        for name, state in self._states().items():
            state.requires_grad_(name in self.active_adapters and not inference_mode)

    def set_requires_grad(self, adapter_names: str | list[str], requires_grad: bool = True) -> None:
        """Enable or disable gradients of the named adapters."""
        super().set_requires_grad(adapter_names, requires_grad)
        names = [adapter_names] if isinstance(adapter_names, str) else adapter_names
        for name, state in self._states().items():
            if name in names:
                state.requires_grad_(requires_grad)

    # Storing

    def _move_adapter_to_device_of_base_layer(
        self, adapter_name: str, device: torch.device | None = None
    ) -> None:
        """Move an adapter's state to the model; PEFT asks every module for this after loading."""
        states = self._states()
        if adapter_name not in states:
            return
        state = states[adapter_name]
        if not any(parameter.is_meta for parameter in state.parameters()):
            devices = [parameter.device for parameter in self.model.parameters()]
            present = [place for place in devices if place.type != "meta"]  # not offloaded
            state.to(device or (present or devices)[0])

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


def _restore(flags: list[tuple[nn.Parameter, bool]]) -> None:
    for parameter, requires_grad in flags:
        parameter.requires_grad = requires_grad
