"""From a trained SubLoRA adapter to a small file and back: the weights that are evaluated."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from hylorada.compression.coder import published_bits
from hylorada.compression.message import Message, parse
from hylorada.compression.quantise import fitted
from hylorada.compression.training import QuantizingWrapper, settle_gates
from hylorada.errors import CodecError, SpecError
from hylorada.jobs.compress import compress, decompress, load_adapter, read_message
from hylorada.specs.evaluation import CompressionSpec
from hylorada.subspace import SubLoRAConfig
from tests.small_run import write_model

DIM = 80
PLAIN = CompressionSpec(method="uniform")
WEIGHTS = "adapter_model.safetensors"
VECTOR = "base_model.sublora_subspace.vector"
GATES = "base_model.sublora_subspace.gates"


def adapted(place: Path, mode: str = "uniform") -> PeftModel:
    """Return the small model with an adapter whose coordinates and gates have moved."""
    base = AutoModelForCausalLM.from_pretrained(place / "model")
    config = SubLoRAConfig(intrinsic_dim=DIM, allocation_mode=mode, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    subspace = model.base_model.subspace()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        nn.init.normal_(subspace.vector, std=0.1)
        if subspace.gates is not None:
            nn.init.normal_(subspace.gates)
    return model


def logits(model: nn.Module) -> Tensor:
    """Return the logits of fixed tokens."""
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=torch.arange(60).reshape(3, 20)).logits
    return found


def loaded(place: Path, adapter: Path) -> PeftModel:
    """Return the small model with an adapter from a folder."""
    base = AutoModelForCausalLM.from_pretrained(place / "model")
    return PeftModel.from_pretrained(base, str(adapter))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and adapters of each mode."""
    folder = tmp_path_factory.mktemp("place")
    write_model(folder / "model")
    for mode in ("uniform", "learned"):
        adapted(folder, mode).save_pretrained(folder / mode)
    base = AutoModelForCausalLM.from_pretrained(folder / "model")
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder / "lora")
    return folder


@pytest.mark.parametrize("mode", ["uniform", "learned"])
@pytest.mark.parametrize("method", ["auto", "symmetric", "uniform", "kmeans"])
def test_the_decoded_adapter_has_the_weights_of_the_message(
    mode: str, method: str, place: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "message", tmp_path / "decoded"
    result = compress(str(place / mode), file, CompressionSpec(method=method))
    assert result.file_bytes == file.stat().st_size
    again = decompress(file, out)
    assert msgspec.structs.replace(again, distortion=result.distortion) == result
    message = parse(file.read_bytes())
    stored = load_file(out / WEIGHTS)
    assert stored[VECTOR].numpy().tobytes() == message.quantised.values.tobytes()
    if message.gates is not None:
        assert stored[GATES].numpy().tobytes() == message.gates.values.tobytes()
    assert list(stored) == list(load_file(place / mode / WEIGHTS))
    assert 0 < result.distortion < 0.06
    subspace = loaded(place, out).base_model.subspace()
    assert subspace.vector.detach().numpy().tobytes() == message.quantised.values.tobytes()


def test_what_was_trained_quantised_is_what_is_decoded(place: Path, tmp_path: Path) -> None:
    model = adapted(place, "learned")
    settle_gates(model, 4)
    QuantizingWrapper(model, levels=5).finish()
    model.save_pretrained(tmp_path / "adapter")
    spec = CompressionSpec(gate_bits=4)
    result = compress(str(tmp_path / "adapter"), tmp_path / "message", spec)
    assert result.distortion == 0.0
    decompress(tmp_path / "message", tmp_path / "decoded")
    assert torch.equal(logits(loaded(place, tmp_path / "decoded")), logits(model))


def test_a_run_is_compressed_by_its_folder(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "uniform", tmp_path / "run" / "adapter")
    files = [tmp_path / "first", tmp_path / "second"]
    for source, file in zip((tmp_path / "run", place / "uniform"), files, strict=True):
        compress(str(source), file, PLAIN)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("source", ["run", "run/adapter"])
def test_a_run_with_a_wider_context_is_refused(source: str, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "uniform", tmp_path / "run" / "adapter")
    (tmp_path / "run" / "config.yaml").write_text("model: {source: tiny, context: 1024}\n")
    (tmp_path / "run" / "environment.json").write_text("{}")
    with pytest.raises(SpecError, match=r"widened it to 1024 tokens: train it without model\.cont"):
        compress(str(tmp_path / source), tmp_path / "message", PLAIN)
    assert not (tmp_path / "message").exists()


def test_an_adapter_beside_a_configuration_of_something_else_is_compressed(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "uniform", tmp_path / "adapter")
    (tmp_path / "config.yaml").write_text("server: {port: 80}\n")
    assert compress(str(tmp_path / "adapter"), tmp_path / "message", PLAIN).dim == DIM


def test_the_result_says_what_is_counted(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "message"
    result = compress(str(place / "learned"), file, CompressionSpec(method="uniform"))
    message = read_message(file)
    assert result.counted_bits == 8 * len(message.counted)
    assert result.dim == DIM
    assert result.gates == 2
    assert result.levels == 11
    assert result.step is None
    assert result.configuration_id == message.configuration_id
    published = published_bits(message.quantised.counts) + 2 * 32
    assert result.published_estimate_bits == pytest.approx(published + 2 * np.log2(published))
    assert result.counted_bits < published


def test_levels_and_distortion_are_kept_to(place: Path, tmp_path: Path) -> None:
    spec = CompressionSpec(levels=3, distortion=0.4)
    result = compress(str(place / "uniform"), tmp_path / "message", spec)
    assert result.levels <= 3
    assert result.distortion <= 0.4
    finer = compress(str(place / "uniform"), tmp_path / "message", CompressionSpec(distortion=0.01))
    assert finer.counted_bits > result.counted_bits
    assert finer.distortion <= 0.01


def test_the_order_of_targets_and_the_release_of_peft_do_not_change_the_file(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "uniform", tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    values = json.loads(config.read_text())
    values["target_modules"] = values["target_modules"][::-1]
    config.write_text(json.dumps(values | {"peft_version": "another"}))
    ids = {
        compress(str(folder), tmp_path / "message", PLAIN).configuration_id
        for folder in (place / "uniform", tmp_path / "adapter")
    }
    assert len(ids) == 1


def test_half_precision_coordinates_are_read(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "uniform", tmp_path / "adapter")
    stored = load_file(place / "uniform" / WEIGHTS)[VECTOR].bfloat16()
    save_file({VECTOR: stored}, tmp_path / "adapter" / WEIGHTS)
    assert np.array_equal(load_adapter(str(tmp_path / "adapter")).vector, stored.float().numpy())


# Refusals


def test_only_sublora_can_be_compressed(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"only SubLoRA adapters.* is LORA"):
        compress(str(place / "lora"), tmp_path / "message", CompressionSpec())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_an_adapter_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="an adapter's or a finished run's folder is needed"):
        compress(str(place / "model"), tmp_path / "message", CompressionSpec())


def test_further_weights_are_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "uniform", tmp_path / "adapter")
    stored = load_file(place / "uniform" / WEIGHTS) | {"norm.weight": torch.ones(2)}
    save_file(stored, tmp_path / "adapter" / WEIGHTS)
    with pytest.raises(SpecError, match=r"nothing else; .*norm\.weight"):
        load_adapter(str(tmp_path / "adapter"))


@pytest.mark.parametrize("name", [WEIGHTS, "adapter_config.json"])
def test_damaged_adapters_are_refused(name: str, place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "uniform", tmp_path / "adapter")
    (tmp_path / "adapter" / name).write_bytes(b"\xff\xff")
    with pytest.raises(SpecError, match="cannot be read"):
        load_adapter(str(tmp_path / "adapter"))


def test_a_folder_that_exists_is_not_written_over(place: Path, tmp_path: Path) -> None:
    compress(str(place / "uniform"), tmp_path / "message", PLAIN)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(SpecError, match="a folder that does not exist yet"):
        decompress(tmp_path / "message", tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "kept"


def test_a_damaged_message_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    compress(str(place / "uniform"), tmp_path / "message", PLAIN)
    (tmp_path / "message").write_bytes((tmp_path / "message").read_bytes()[:-1])
    with pytest.raises(CodecError, match="checksum does not match"):
        decompress(tmp_path / "message", tmp_path / "decoded")
    assert [path.name for path in tmp_path.iterdir()] == ["message"]


@pytest.mark.parametrize(
    ("configuration", "complaint"),
    [
        ({}, "does not hold a SubLoRA adapter"),
        ({"adapter": {"peft_type": "LORA"}}, "does not hold a SubLoRA adapter"),
        ({"adapter": {"peft_type": "SUBLORA"}}, "how its adapter's tensors are called"),
        (
            {"adapter": {"peft_type": "SUBLORA"}, "tensors": {"vector": 3}},
            "how its adapter's tensors are called",
        ),
        (
            {"adapter": {"peft_type": "SUBLORA", "intrinsic_dim": 7}, "tensors": {"vector": "v"}},
            "holds 5 coordinates, its configuration says 7",
        ),
    ],
)
def test_a_message_of_something_else_is_refused(
    configuration: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    message = Message(configuration=configuration, quantised=fitted(np.ones(5), 3))
    (tmp_path / "message").write_bytes(message.to_bytes())
    with pytest.raises(CodecError, match=complaint):
        decompress(tmp_path / "message", tmp_path / "decoded")
    assert not (tmp_path / "decoded").exists()


def test_a_missing_message_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a file that hylorada compress wrote is needed"):
        decompress(tmp_path / "message", tmp_path / "decoded")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"method": "best"}, "method must be one of auto, symmetric, uniform, kmeans"),
        ({"levels": 300}, "levels must lie between 1 and 255"),
        ({"distortion": 0.0}, "distortion must lie between 0 and 1"),
        ({"gate_bits": 9}, "gate_bits must lie between 1 and 8"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        CompressionSpec(**settings)
