"""Tensors of modules that are read without being called.

accelerate's hooks fetch an offloaded module's tensors when it is called, and until then leave empty
ones on the device "meta" in their place.
"""

from torch import Tensor, nn

from hylorada.errors import UnsupportedModelError


def resident(module: nn.Module, name: str = "weight") -> Tensor:
    """Return a module's tensor, fetched for the moment if it is offloaded."""
    tensor: Tensor = getattr(module, name)
    if not (tensor.is_meta and is_offloaded(module, name)):
        return tensor
    hook = vars(module)["_hf_hook"]
    hook.pre_forward(module)
    tensor = getattr(module, name)
    hook.post_forward(module, None)  # puts another tensor in its place
    return tensor


def is_offloaded(module: nn.Module, name: str = "weight") -> bool:
    """Return whether accelerate keeps a module's tensor elsewhere."""
    tensor = getattr(module, name, None)
    return isinstance(tensor, Tensor) and tensor.is_meta and "_hf_hook" in vars(module)


def require_present(module: nn.Module, name: str) -> None:
    """Refuse to adapt an offloaded layer, whose factors PEFT would leave empty as well."""
    if is_offloaded(module):
        raise UnsupportedModelError(
            f"a layer must be on a device when it is adapted; {name} is offloaded: adapt the model "
            "first, then offload it"
        )
