"""SubLoRA through PEFT: the same matrix of facts for every mode and kind of layer."""

import copy
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from hylorada import CheckpointError, SpecError
from tests.families import FAMILIES, build, logits, tokens, trainable
from tests.unit.subspace.small import DIM, MODES, adapt, move, settings, space

GPT2 = {"target_modules": ["c_attn", "c_proj", "lm_head"]}
CASES = [
    *(pytest.param("gpt2", {**GPT2, "allocation_mode": mode}, id=f"gpt2-{mode}") for mode in MODES),
    pytest.param("gpt2", {"target_modules": ["c_attn", "lm_head"], "fused_parts": "qv"}, id="qv"),
    *(pytest.param(family, {}, id=family) for family in FAMILIES if family != "gpt2"),
    pytest.param("llama", {"projection": "fastfood", "allocation_mode": "learned"}, id="fastfood"),
    pytest.param("llama", {"target_modules": ["q_proj", "lm_head"], "r": 1}, id="llama-head"),
]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_the_start_leaves_the_model_as_it_is(family: str, changes: dict[str, object]) -> None:
    expected = logits(build(family), tokens())
    model = adapt(family, moved=False, **changes)
    assert torch.equal(logits(model, tokens()), expected)
    count = sum(parameter.numel() for parameter in trainable(model).values())
    gates = space(model).gates
    assert count == DIM + (0 if gates is None else gates.numel())
    move(model)
    assert float((logits(model, tokens()) - expected).abs().max()) > 1e-2


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_saved_adapters_hold_vector_and_gates_and_load_to_the_same_logits(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = adapt(family, **changes)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    endings = {name.rpartition(".")[2] for name in stored}
    assert endings == ({"vector", "gates"} if "learned" in changes.values() else {"vector"})
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    for options in ({}, {"low_cpu_mem_usage": True}, {"adapter_name": "other"}):
        loaded = PeftModel.from_pretrained(build(family), tmp_path, **options).eval()
        assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
        assert not trainable(loaded)


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_merging_and_disabling(family: str, changes: dict[str, object]) -> None:
    base = build(family)
    expected = logits(base, tokens())
    model = adapt(family, **changes)
    moved = logits(model, tokens())
    with model.disable_adapter():
        assert torch.equal(logits(model, tokens()), expected)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, tokens()), moved, atol=1e-4, rtol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, tokens()), moved, atol=1e-4, rtol=1e-4)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, tokens()), moved, atol=1e-4, rtol=1e-4)
    embeddings = base.get_input_embeddings().weight
    assert torch.equal(merged.get_input_embeddings().weight, embeddings)


@pytest.mark.parametrize("mode", MODES)
def test_cached_decoding_and_copies_agree_with_one_pass(mode: str) -> None:
    model = adapt("llama", allocation_mode=mode, target_modules=["q_proj", "lm_head"])
    whole = logits(model, tokens())
    with torch.no_grad():
        first = model(input_ids=tokens()[:, :12], use_cache=True)
        rest = model(input_ids=tokens()[:, 12:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(rest, whole[:, 12:], atol=1e-4, rtol=1e-4)
    generated = model.generate(input_ids=tokens()[:1, :5], max_new_tokens=4, do_sample=False)
    assert generated.shape == (1, 9)
    copied = copy.deepcopy(model)
    assert torch.equal(logits(copied, tokens()), whole)
    with torch.no_grad():
        space(copied).vector.zero_()
    assert torch.equal(logits(model, tokens()), whole)
    assert not torch.equal(logits(copied, tokens()), whole)


def test_several_adapters_switch_combine_and_go() -> None:
    model = adapt("gpt2")
    first = logits(model, tokens())
    model.add_adapter("second", settings(allocation_mode="learned", r=2, **GPT2))
    move(model, "second", seed=1)
    assert torch.equal(logits(model, tokens()), first)
    assert [name for name in trainable(model) if "second" in name] == []
    model.set_adapter("second")
    second = logits(model, tokens())
    assert not torch.equal(second, first)
    assert all("second" in name for name in trainable(model))
    model.base_model.set_adapter(["default", "second"])
    both = logits(model, tokens())
    assert not torch.equal(both, first)
    assert not torch.equal(both, second)
    model.set_adapter("second")
    model.delete_adapter("default")
    assert torch.equal(logits(model, tokens()), second)
    with pytest.raises(SpecError, match="unknown adapter 'default'; known are second"):
        space(model)


def test_set_requires_grad_reaches_the_coordinates() -> None:
    model = adapt("gpt2", allocation_mode="learned")
    model.base_model.set_requires_grad("default", requires_grad=False)
    assert not trainable(model)
    model.base_model.set_requires_grad("default")
    assert len(trainable(model)) == 2


def test_other_adapters_come_and_go_without_freezing_or_thawing_the_first(tmp_path: Path) -> None:
    model = adapt("gpt2")
    model.save_pretrained(tmp_path)
    names = list(trainable(model))
    model.load_adapter(tmp_path, "frozen")
    assert list(trainable(model)) == names
    model.set_requires_grad("default", requires_grad=False)
    model.add_adapter("second", settings())
    assert not trainable(model)
    model.delete_adapter("second")
    assert not trainable(model)


def test_a_new_adapter_follows_the_mode_of_the_model() -> None:
    model = adapt("gpt2")
    model.add_adapter("second", settings(lora_dropout=0.5))
    model.set_adapter("second")
    move(model, "second")
    assert torch.equal(logits(model, tokens()), logits(model, tokens()))
    model.train()
    assert not torch.equal(logits(model, tokens()), logits(model, tokens()))
    model.eval()
    assert torch.equal(logits(model, tokens()), logits(model, tokens()))


def test_a_merged_tied_head_gets_a_weight_of_its_own_and_says_so(tmp_path: Path) -> None:
    model = adapt("gpt2", **GPT2)
    moved = logits(model, tokens())
    merged = model.merge_and_unload()
    assert merged.config.tie_word_embeddings is False
    assert merged.lm_head.weight is not merged.transformer.wte.weight
    merged.save_pretrained(tmp_path)
    again = type(merged).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, tokens()), moved, atol=1e-4, rtol=1e-4)


def test_a_merged_adapter_that_is_unloaded_leaves_a_model_that_says_what_it_is(
    tmp_path: Path,
) -> None:
    model = adapt("gpt2", **GPT2)
    moved = logits(model, tokens())
    model.merge_adapter()
    model.unload().save_pretrained(tmp_path)
    again = type(build("gpt2")).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, tokens()), moved, atol=1e-4, rtol=1e-4)


def test_a_merge_that_is_refused_leaves_the_head_tied() -> None:
    model = adapt("gpt2", **GPT2)
    with torch.no_grad():
        space(model).vector.fill_(torch.nan)
    with pytest.raises(SpecError, match="no numbers; not merged"):
        model.merge_and_unload(safe_merge=True)
    assert model.config.tie_word_embeddings


def test_a_thousand_coordinates_are_a_file_below_ten_kilobytes(tmp_path: Path) -> None:
    model = adapt("gpt2", intrinsic_dim=1000, allocation_mode="learned", **GPT2)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < 10_000
    assert sum(file.stat().st_size for file in tmp_path.glob("adapter_*")) < 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"allocation_mode": "fixed"},
        {"projection": "kron_qr"},
        {"projection_seed": 1},
        {"lora_alpha": 16.0},
        {"r": 2},
        {"target_modules": ["c_attn"]},
    ],
)
def test_an_adapter_is_refused_where_it_would_decode_to_other_weights(
    change: dict[str, object], tmp_path: Path
) -> None:
    model = adapt("gpt2", target_modules=["c_attn", "c_proj"])
    model.save_pretrained(tmp_path)
    config = copy.copy(model.peft_config["default"])
    for name, value in change.items():
        setattr(config, name, value)
    base = build("gpt2")
    with pytest.raises(CheckpointError, match="load it with its own configuration and base model"):
        PeftModel.from_pretrained(base, tmp_path, config=config)
    with pytest.raises(CheckpointError, match="load it with its own configuration and base model"):
        PeftModel.from_pretrained(build("llama"), tmp_path, config=_retargeted(model))


def _retargeted(model: PeftModel) -> object:
    config = copy.copy(model.peft_config["default"])
    config.target_modules = {"q_proj"}
    return config


def test_missing_and_foreign_tensors_are_refused(tmp_path: Path) -> None:
    adapt("gpt2", allocation_mode="learned").save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    stored = load_file(file)
    gates = next(name for name in stored if name.endswith(".gates"))
    save_file({name: t for name, t in stored.items() if name != gates}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="lacks 1 tensor"):
        PeftModel.from_pretrained(build("gpt2"), tmp_path)
    save_file(stored | {"base_model.foreign": torch.ones(1)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="has unexpected 1 tensor"):
        PeftModel.from_pretrained(build("gpt2"), tmp_path)


def test_the_auto_class_finds_the_method(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "base")
    base = type(build("llama")).from_pretrained(tmp_path / "base")
    model = move(get_peft_model(base, settings()).eval())
    model.save_pretrained(tmp_path / "adapter")
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))
