"""The station that compresses: a SubLoRA adapter to one small file, and back.

A folder or a message becomes a `StoredAdapter`, and that becomes a message, a folder or part of a
model.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hylorada.compression.coder import prefix_free_bits, published_bits
from hylorada.compression.message import MAX_FILE_BYTES, Message, parse, quantise_gates
from hylorada.compression.quantise import lost_share, quantise
from hylorada.errors import CodecError, SpecError
from hylorada.files import write_atomically, written_atomically
from hylorada.jobs.evaluate import adapter_settings, fits
from hylorada.jobs.run import ADAPTER, is_run, model_section
from hylorada.models.pretrained import LoadedModel
from hylorada.records.certificates import CompressionCost
from hylorada.specs.evaluation import CompressionSpec
from hylorada.subspace.config import PEFT_TYPE

PUBLISHED_GATE_BITS = 32
PARTS = ("vector", "gates")


def compress(source: str, out: Path, spec: CompressionSpec) -> CompressionCost:
    """Write the message of an adapter's or a run's folder, and return what it costs."""
    adapter = load_adapter(source)
    message = Message(
        configuration={"adapter": adapter.config, "tensors": adapter.names},
        quantised=quantise(adapter.vector, spec),
        gates=None if adapter.gates is None else quantise_gates(adapter.gates, spec.gate_bits),
    )
    data = message.to_bytes()
    write_atomically(out, data)
    lost = lost_share(message.quantised, adapter.vector)
    return cost_of(message, file_bytes=len(data), distortion=lost)


def decompress(file: Path, out: Path) -> CompressionCost:
    """Write the adapter of a message to a new folder, and return what the message costs."""
    message = read_message(file)
    if out.exists():
        raise SpecError(f"--out must name a folder that does not exist yet; got {out}")
    adapter = StoredAdapter.decoded(message)
    with written_atomically(out) as folder:
        save_file(adapter.state(), folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
        text = json.dumps(adapter.config, indent=2, sort_keys=True) + "\n"
        (folder / CONFIG_NAME).write_text(text)
    return cost_of(message, file_bytes=file.stat().st_size)


def attach(message: Message, base: LoadedModel) -> PeftModel:
    """Return the base model with the adapter of a message; the base itself is changed."""
    adapter = StoredAdapter.decoded(message)
    with fits("the file", base.source):
        # The base may have moved since; PEFT would warn of its new name.
        here = {"inference_mode": True, "base_model_name_or_path": None}
        settings = PeftConfig.from_peft_type(**adapter.config | here)
        model = get_peft_model(base.model, settings)
        set_peft_model_state_dict(model, adapter.state())
        return model.eval()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredAdapter:
    """What a SubLoRA adapter's folder or message holds.

    Attributes:
        config: The contents of adapter_config.json.
        names: What PEFT calls vector and gates.
    """

    config: dict[str, object]
    names: dict[str, str]
    vector: Float[np.ndarray, " dim"]
    gates: Float[np.ndarray, " groups"] | None

    @classmethod
    def decoded(cls, message: Message) -> "StoredAdapter":
        """Return the adapter that a message stands for, or raise `CodecError` if it holds none."""
        config, names = (message.configuration.get(part) for part in ("adapter", "tensors"))
        if not isinstance(config, dict) or config.get("peft_type") != PEFT_TYPE:
            raise CodecError("the message does not hold a SubLoRA adapter")
        wanted = dict.fromkeys(PARTS[:1] if message.gates is None else PARTS, str)
        if not isinstance(names, dict) or {p: type(n) for p, n in names.items()} != wanted:
            raise CodecError("the message does not say how its adapter's tensors are called")
        vector = message.quantised.values
        if config.get("intrinsic_dim") != len(vector):
            raise CodecError(
                f"the message holds {len(vector)} coordinates, its configuration says "
                f"{config.get('intrinsic_dim')}"
            )
        gates = None if message.gates is None else message.gates.values
        return cls(config=config, names=names, vector=vector, gates=gates)

    def state(self) -> dict[str, Tensor]:
        """Return the weights as PEFT names them."""
        held = {"vector": self.vector, "gates": self.gates}
        return {name: torch.from_numpy(held[part]) for part, name in self.names.items()}


def load_adapter(source: str) -> StoredAdapter:
    """Return what a SubLoRA adapter's folder holds, or a run's that has one."""
    folder = Path(source).expanduser()
    if not (folder / CONFIG_NAME).is_file():
        folder = folder / ADAPTER
    if not (folder / CONFIG_NAME).is_file():
        raise SpecError(
            f"an adapter's or a finished run's folder is needed, with {CONFIG_NAME}; got {source}"
        )
    config = _configuration(folder, source)
    weights = folder / SAFETENSORS_WEIGHTS_NAME
    try:
        stored = {name: tensor.float().numpy() for name, tensor in load_file(weights).items()}
    except (OSError, SafetensorError) as error:
        raise SpecError(f"{weights} must hold the adapter's weights; it cannot be read") from error
    names = {part: name for name in stored if (part := name.rpartition(".")[2]) in PARTS}
    if "vector" not in names or set(names.values()) != set(stored):
        raise SpecError(
            f"a SubLoRA adapter holds a vector and perhaps gates, nothing else; {folder} holds "
            f"{', '.join(sorted(stored)) or 'nothing'}"
        )
    gates = stored[names["gates"]] if "gates" in names else None
    return StoredAdapter(config=config, names=names, vector=stored[names["vector"]], gates=gates)


def read_message(file: Path) -> Message:
    """Return the message in a file; one that is too large is not read."""
    if not file.is_file():
        raise SpecError(f"a file that hylorada compress wrote is needed; got {file}")
    with file.open("rb") as opened:
        return parse(opened.read(MAX_FILE_BYTES + 1))


def cost_of(message: Message, *, file_bytes: int, distortion: float = 0.0) -> CompressionCost:
    """Return what a message costs, beside the published estimate."""
    gates = 0 if message.gates is None else len(message.gates.symbols)
    quantised = message.quantised
    published = published_bits(quantised.counts) + PUBLISHED_GATE_BITS * gates
    return CompressionCost(
        configuration_id=message.configuration_id,
        dim=len(quantised.symbols),
        levels=quantised.codebook.levels,
        step=quantised.codebook.step,
        gates=gates,
        counted_bits=message.counted_bits,
        published_estimate_bits=prefix_free_bits(published),
        file_bytes=file_bytes,
        distortion=distortion,
    )


def _configuration(folder: Path, source: str) -> dict[str, object]:
    """Return an adapter's configuration; what says the same thing has the same form."""
    config, run = adapter_settings(folder), folder.parent
    if config.get("peft_type") != PEFT_TYPE:
        raise SpecError(
            f"only SubLoRA adapters, whose weights are one short vector, can be compressed; "
            f"{source} is {config.get('peft_type')}: train one with --adapter.method=sublora"
        )
    if is_run(run):
        section = model_section(run)
        if section.context is not None:  # the file has no place for it
            raise SpecError(
                f"a compressed adapter is measured in its base model's own context; {run} widened "
                f"it to {section.context} tokens: train it without model.context"
            )
        # A run knows its base by a name that other machines understand; PEFT writes a path.
        config["base_model_name_or_path"] = section.full_source()
    for name in ("target_modules", "exclude_modules"):  # sets, which PEFT writes in any order
        if isinstance(listed := config.get(name), list):
            config[name] = sorted(listed)
    return {name: value for name, value in config.items() if name != "peft_version"}
