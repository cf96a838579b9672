"""Export to plain LoRA, for users and serving engines without this package."""

from dataclasses import fields
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from hylorada.adapters.config import HyLoRADAConfig
from hylorada.adapters.model import HyLoRADAModel
from hylorada.adapters.shared import SharedFactor
from hylorada.errors import SpecError
from hylorada.names import known


def export_lora(model: PeftModel, folder: str | Path, adapter_name: str = "default") -> None:
    """Write an adapter as PEFT's own LoRA (or DoRA) format; shared factors are written out.

    Refused where LoRA cannot say what the adapter does: landmarks and position bias that act.
    """
    tuner = model.base_model
    if not isinstance(tuner, HyLoRADAModel):
        raise SpecError(f"export_lora takes a HyLoRADA model; got {type(tuner).__name__}")
    known(adapter_name, tuner.peft_config, "adapter")
    state = tuner.shared_state(adapter_name)
    if state is not None and not state.is_inert():
        raise SpecError(
            f"adapter {adapter_name!r} cannot become plain LoRA: its landmarks or position bias "
            "act; train with landmark_enabled=False and position_bias=False to export"
        )
    tensors = {
        name: tensor
        for name, tensor in get_peft_model_state_dict(model, adapter_name=adapter_name).items()
        if not name.startswith(f"base_model.{HyLoRADAModel.state_name}")
    }
    for name, layer in tuner.lora_layers(adapter_name):
        for factor in ("lora_A", "lora_B"):
            module = dict(getattr(layer, factor)).get(adapter_name)
            if isinstance(module, SharedFactor):
                tensors[f"base_model.model.{name}.{factor}.weight"] = module.weight
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: _stored(tensor) for name, tensor in tensors.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    plain_config(tuner.peft_config[adapter_name]).save_pretrained(folder)


def plain_config(config: HyLoRADAConfig) -> LoraConfig:
    """Return the LoRA configuration inside a HyLoRADA configuration."""
    shared = {field.name: getattr(config, field.name) for field in fields(LoraConfig) if field.init}
    return LoraConfig(**shared | {"peft_type": "LORA", "inference_mode": True})


def _stored(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, row by row: safetensors takes no other strides, SVD leaves them."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
