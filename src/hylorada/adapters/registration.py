"""Register a method with PEFT, and keep its state: what touches PEFT's internals is here.

`register_peft_method` accepts only members of the `PeftType` enum, and PEFT and transformers read
`peft_type.value` in several places, so a real member is added. Tested with PEFT 0.21.
"""

import copy
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import (
    BaseTuner,
    _filter_state_dict_by_key_prefixes,
    _get_tuner_state_dict_key_prefixes,
)
from peft.utils.peft_types import PeftType, register_peft_method
from torch import Tensor, nn

from hylorada.errors import CheckpointError


def add_peft_type(name: str) -> PeftType:
    """Return the member of PEFT's enum with this name, adding it the first time."""
    if name in PeftType.__members__:
        return PeftType[name]
    member = str.__new__(PeftType, name)
    member._name_ = member._value_ = name
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member
    type.__setattr__(PeftType, name, member)
    return member


def register(peft_type: PeftType, config: type[object], tuner: type[BaseTuner]) -> None:
    """Register a method with PEFT; a second import is harmless, another owner is not replaced."""
    owner = PEFT_TYPE_TO_TUNER_MAPPING.get(peft_type)
    if owner is tuner:
        return
    if owner is not None:
        raise ImportError(
            f"PEFT already has a method {peft_type.value!r} ({owner.__module__}); "
            "use a release of hylorada made for this version of PEFT"
        )
    register_peft_method(
        name=peft_type.value.lower(), config_cls=config, model_cls=tuner, prefix=tuner.prefix
    )


def adapter_keys(model: nn.Module, adapter_name: str) -> set[str]:
    """Return the keys of a model's state dict that hold this adapter's tensors."""
    prefixes = _get_tuner_state_dict_key_prefixes(model, adapter_name=adapter_name)
    return set(_filter_state_dict_by_key_prefixes(model.state_dict(), prefixes))


def base_keys(model: Any, adapter_name: str) -> set[str]:
    """Return the keys of the base model's tensors that an adapter may be stored with.

    PEFT stores biases that train, and embeddings of a vocabulary that may have changed.
    """
    biases = getattr(model.peft_config[adapter_name], "bias", "none") != "none"
    asked = (getattr(model, f"get_{side}_embeddings", None) for side in ("input", "output"))
    embeddings = [ask() for ask in asked if ask is not None]
    names = [f"{name}." for name, m in model.named_modules() if any(m is e for e in embeddings)]
    return {
        key
        for key in model.state_dict()
        if (biases and key.endswith(".bias")) or key.startswith(tuple(names))
    }


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

    # Adding and removing adapters

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: object, **kwargs: object
    ) -> None:
        """Add an adapter: PEFT's layers first, then what belongs to the model as a whole.

        An adapter that is refused leaves the model as it was. Other adapters stay as trainable as
        they were.
        """
        if self.state_name not in self._modules:
            self.add_module(self.state_name, nn.ModuleDict())
        # Filled in with what is found in this model, while the caller may use it for another.
        given = self.peft_config[adapter_name]
        config = self.peft_config[adapter_name] = copy.copy(given)
        flags = [(parameter, parameter.requires_grad) for parameter in self.parameters()]
        self._detach()  # PEFT copies modules to save with the hooks they carry
        try:
            super().inject_adapter(model, adapter_name, *args, **kwargs)
            self._add_state(adapter_name)
            self._attach()
        except Exception:
            if list(self.peft_config) == [adapter_name]:
                self.unload()
            else:
                self.delete_adapter(adapter_name)
            _restore(flags)
            raise
        if config == given:  # nothing was filled in: keep the caller's object, as PEFT does
            self.peft_config[adapter_name] = given
        self.set_adapter(self.active_adapters, inference_mode=config.inference_mode)
        if len(self.peft_config) > 1:  # the first one freezes the model
            _restore(flags)

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
        """Return the base model as it was, and show no progress bar."""
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
        cls, model: nn.Module, config: object, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Refuse a checkpoint with missing or unexpected tensors; PEFT drops them silently."""
        remapped: dict[str, Tensor] = super()._remap_adapter_state_dict_for_load(
            model=model, config=config, adapter_name=adapter_name, state_dict=state_dict
        )
        own = adapter_keys(model, adapter_name)
        missing = sorted(own - set(remapped))
        unexpected = sorted(set(remapped) - own - base_keys(model, adapter_name))
        for kind, keys in (("lacks", missing), ("has unexpected", unexpected)):
            if keys:
                raise CheckpointError(
                    f"the checkpoint {kind} {len(keys)} tensor(s), first {keys[0]!r}; "
                    "load it with the configuration and base model it was saved with"
                )
        return remapped


def _restore(flags: list[tuple[nn.Parameter, bool]]) -> None:
    for parameter, requires_grad in flags:
        parameter.requires_grad = requires_grad
