"""How a method from outside joins PEFT: the one place that touches PEFT's internals to do so.

`register_peft_method` accepts only members of the `PeftType` enum, and PEFT and transformers read
`peft_type.value` in several places, so a real member is added. Tested with PEFT 0.21.
"""

from collections.abc import Collection
from typing import Any

from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners.tuners_utils import (
    _filter_state_dict_by_key_prefixes,
    _get_tuner_state_dict_key_prefixes,
)
from peft.utils.peft_types import PeftType, register_peft_method
from torch import nn

from hylorada.errors import CheckpointError


def add_peft_type(name: str) -> PeftType:
    """Return the member of PEFT's enum with this name, adding it the first time."""
    if name in PeftType.__members__:
        return PeftType[name]
    member = str.__new__(PeftType, name)
    member._name_ = name
    member._value_ = name
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = member
    PeftType._value2member_map_[name] = member
    type.__setattr__(PeftType, name, member)
    return member


def register(peft_type: PeftType, config: type[Any], tuner: type[Any]) -> None:
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


def require_complete(model: nn.Module, adapter_name: str, stored: Collection[str]) -> None:
    """Refuse a checkpoint with missing or unexpected tensors; PEFT drops them silently."""
    own = adapter_keys(model, adapter_name)
    missing = sorted(own - set(stored))
    unexpected = sorted(set(stored) - own - base_keys(model, adapter_name))
    for kind, keys in (("lacks", missing), ("has unexpected", unexpected)):
        if keys:
            raise CheckpointError(
                f"the checkpoint {kind} {len(keys)} tensor(s), first {keys[0]!r}; "
                "load it with the configuration and base model it was saved with"
            )
