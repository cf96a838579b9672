"""A SubLoRA adapter to one small file, and back to a folder that PEFT loads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from peft.utils import CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hylorada.compression.codebooks import MAX_LEVELS, Quantised, require_levels
from hylorada.compression.estimates import prefix_free_bits, published_bits
from hylorada.compression.gates import MAX_BITS, quantise_gates
from hylorada.compression.message import MAX_FILE_BYTES, Message, parse
from hylorada.compression.quantise import exact, fitted, kmeans, uniform
from hylorada.compression.search import least_bits
from hylorada.errors import CodecError, SpecError
from hylorada.experiments.run_folder import ADAPTER, adapter_settings, is_run, model_section
from hylorada.files import write_atomically, written_atomically
from hylorada.names import require_one_of
from hylorada.subspace.config import PEFT_TYPE

METHODS = ("auto", "symmetric", "uniform", "kmeans")
DEFAULT_LEVELS = 11
PUBLISHED_GATE_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSpec:
    """How coordinates become symbols.

    Attributes:
        method: "auto" keeps coordinates that training has quantised, and otherwise looks for the
            fewest bits at `distortion`; "symmetric" takes multiples of the best step, "uniform"
            equal bins with their means, "kmeans" the best list of values.
        levels: Number of values; None takes 11, and with "auto" whatever is best.
        distortion: Share of the vector's squared length that "auto" may lose.
        gate_bits: Bits a gate, where the adapter has gates.
    """

    method: str = "auto"
    levels: int | None = None
    distortion: float = 0.05
    gate_bits: int = 6

    def __post_init__(self) -> None:
        """Check every field."""
        require_one_of("method", self.method, METHODS)
        if self.levels is not None:
            require_levels(self.levels)
        if not 0.0 < self.distortion < 1.0:
            raise SpecError(f"distortion must lie between 0 and 1; got {self.distortion:g}")
        if not 1 <= self.gate_bits <= MAX_BITS:
            raise SpecError(f"gate_bits must lie between 1 and {MAX_BITS}; got {self.gate_bits}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredAdapter:
    """What a SubLoRA adapter's folder holds.

    Attributes:
        config: The contents of adapter_config.json.
        tensors: The names under which PEFT stores vector and gates.
    """

    config: dict[str, Any]
    tensors: dict[str, str]
    vector: Float[np.ndarray, " dim"]
    gates: Float[np.ndarray, " groups"] | None


def compress(source: str, out: Path, spec: CompressionSpec) -> dict[str, Any]:
    """Write the message of an adapter's or a run's folder, and return what it costs."""
    adapter = load_adapter(source)
    message = message_of(adapter, spec)
    data = message.to_bytes()
    write_atomically(out, data)
    squares = float(np.sum(adapter.vector.astype(np.float64) ** 2))
    lost = float(np.sum((message.quantised.values - adapter.vector.astype(np.float64)) ** 2))
    return describe(message) | {
        "file_bytes": len(data),
        "distortion": lost / squares if squares > 0 else 0.0,
    }


def decompress(file: Path, out: Path) -> dict[str, Any]:
    """Write the adapter of a message to a new folder, and return what the message costs."""
    message = read_message(file)
    if out.exists():
        raise SpecError(f"--out must name a folder that does not exist yet; got {out}")
    with written_atomically(out) as folder:
        write_adapter(message, folder)
    return describe(message)


def message_of(adapter: StoredAdapter, spec: CompressionSpec) -> Message:
    """Return the message of an adapter."""
    gates = None if adapter.gates is None else quantise_gates(adapter.gates, spec.gate_bits)
    configuration = {"adapter": adapter.config, "tensors": adapter.tensors}
    quantised = quantise(adapter.vector, spec)
    return Message(configuration=configuration, quantised=quantised, gates=gates)


def quantise(vector: Float[np.ndarray, " dim"], spec: CompressionSpec) -> Quantised:
    """Return the symbols of a vector in the way that is asked for."""
    if spec.method == "uniform":
        return uniform(vector, spec.levels or DEFAULT_LEVELS)
    if spec.method == "kmeans":
        return kmeans(vector, spec.levels or DEFAULT_LEVELS)
    if spec.method == "symmetric":
        return fitted(vector, spec.levels or DEFAULT_LEVELS)
    found = exact(vector)
    if found is not None and found.codebook.levels <= (spec.levels or MAX_LEVELS):
        return found
    return least_bits(vector, spec.distortion, levels=spec.levels or MAX_LEVELS).quantised


def load_adapter(source: str) -> StoredAdapter:
    """Return what a SubLoRA adapter's folder holds, or a run's that has one.

    A run knows its base model by a name that other machines understand; PEFT writes a path.
    """
    folder = Path(source).expanduser()
    if not (folder / CONFIG_NAME).is_file():
        folder = folder / ADAPTER
    if not (folder / CONFIG_NAME).is_file():
        raise SpecError(
            f"an adapter's or a finished run's folder is needed, with {CONFIG_NAME}; got {source}"
        )
    config = _configuration(folder)
    if config.get("peft_type") != PEFT_TYPE:
        raise SpecError(
            f"only SubLoRA adapters, whose weights are one short vector, can be compressed; "
            f"{source} is {config.get('peft_type')}: train one with --adapter.method=sublora"
        )
    if is_run(folder.parent):
        config["base_model_name_or_path"] = _base_of(folder.parent)
    stored = _tensors(folder / SAFETENSORS_WEIGHTS_NAME)
    names = {
        part: name
        for name in stored
        for part in ("vector", "gates")
        if name == part or name.endswith(f".{part}")
    }
    if "vector" not in names or set(names.values()) != set(stored):
        raise SpecError(
            f"a SubLoRA adapter holds a vector and perhaps gates, nothing else; {folder} holds "
            f"{', '.join(sorted(stored)) or 'nothing'}"
        )
    return StoredAdapter(
        config=config,
        tensors=names,
        vector=stored[names["vector"]],
        gates=stored[names["gates"]] if "gates" in names else None,
    )


def write_adapter(message: Message, folder: Path) -> None:
    """Write the adapter of a message into a folder, as PEFT reads it.

    Raises:
        CodecError: The message does not hold a SubLoRA adapter.
    """
    config, names = _checked_configuration(message)
    tensors = {names["vector"]: torch.from_numpy(message.quantised.values)}
    if message.gates is not None:
        tensors[names["gates"]] = torch.from_numpy(message.gates.values)
    save_file(tensors, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def read_message(file: Path) -> Message:
    """Return the message in a file; one that is too large is not read."""
    if not file.is_file():
        raise SpecError(f"a file that hylorada compress wrote is needed; got {file}")
    with file.open("rb") as opened:
        return parse(opened.read(MAX_FILE_BYTES + 1))


def describe(message: Message) -> dict[str, Any]:
    """Return the numbers of a message: what is counted, beside the published estimate."""
    gates = 0 if message.gates is None else len(message.gates.symbols)
    published = published_bits(message.quantised.counts) + PUBLISHED_GATE_BITS * gates
    return {
        "configuration_id": message.configuration_id,
        "dim": len(message.quantised.symbols),
        "levels": message.quantised.codebook.levels,
        "step": message.quantised.codebook.step,
        "gates": gates,
        "counted_bits": message.counted_bits,
        "published_estimate_bits": prefix_free_bits(published),
    }


def _checked_configuration(message: Message) -> tuple[dict[str, Any], dict[str, str]]:
    config, names = (message.configuration.get(part) for part in ("adapter", "tensors"))
    expected = {"vector"} if message.gates is None else {"vector", "gates"}
    if not isinstance(config, dict) or config.get("peft_type") != PEFT_TYPE:
        raise CodecError("the message does not hold a SubLoRA adapter")
    if not isinstance(names, dict) or set(names) != expected:
        raise CodecError("the message does not say how its adapter's tensors are called")
    if not all(isinstance(name, str) for name in names.values()):
        raise CodecError("the message does not say how its adapter's tensors are called")
    if config.get("intrinsic_dim") != len(message.quantised.symbols):
        raise CodecError(
            f"the message holds {len(message.quantised.symbols)} coordinates, its configuration "
            f"says {config.get('intrinsic_dim')}"
        )
    return config, names


def _base_of(run: Path) -> str:
    """Return the source of a run's base model; the file has no place for a wider context."""
    section = model_section(run)
    if section.context is not None:
        raise SpecError(
            f"a compressed adapter is measured in its base model's own context; {run} widened it "
            f"to {section.context} tokens: train it without model.context"
        )
    return section.full_source()


def _configuration(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration; what says the same thing has the same form."""
    config = adapter_settings(folder)
    for name in ("target_modules", "exclude_modules"):  # sets, which PEFT writes in any order
        if isinstance(config.get(name), list):
            config[name] = sorted(config[name])
    return {name: value for name, value in config.items() if name != "peft_version"}


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise SpecError(f"{path} must hold the adapter's weights; it cannot be read") from error
