"""Models at their random start."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from hylorada.errors import SpecError
from hylorada.models.initial import build_initial, initial_config, outline
from hylorada.models.pretrained import load, load_tokenizer
from hylorada.specs.run import SHAPES, ContextSpec, RandomModel

MICRO = "random:gpt2-micro,seed=3,tokenizer=tiny"


def test_shape_and_seed_are_the_whole_model() -> None:
    first, second = load(MICRO).model, load(MICRO).model
    other = load(MICRO.replace("seed=3", "seed=4")).model
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)
    assert not first.training


def test_weights_have_the_widths_of_gpt2() -> None:
    model = load(MICRO).model
    layer = model.transformer.h[0]
    assert layer.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.mlp.c_fc.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.mlp.c_proj.weight.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert not bool(layer.mlp.c_fc.bias.any())
    assert bool((layer.ln_1.weight == 1).all())
    assert model.lm_head.weight is model.transformer.wte.weight


def test_the_global_generator_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    load(MICRO)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_vocabulary_is_the_tokenizers_rounded_up() -> None:
    loaded = load(MICRO)
    assert loaded.model.config.vocab_size == 2048
    assert len(loaded.tokenizer) == 2048
    assert loaded.source == MICRO
    assert loaded.model.config.eos_token_id == loaded.tokenizer.eos_token_id


def test_gpt2_small_is_the_shape_of_the_paper() -> None:
    config = initial_config(RandomModel(), load_tokenizer("tiny"))
    assert (config.n_layer, config.n_embd, config.n_head) == (12, 768, 12)
    assert (config.n_positions, config.vocab_size) == (1024, 50_304)


def test_a_source_may_ask_for_fewer_layers() -> None:
    source = "random:gpt2-small,layers=6,seed=137,tokenizer=tiny"
    assert RandomModel.parse(source) == RandomModel(layers=6)
    assert RandomModel(layers=6).source() == source
    fewer = load(MICRO.replace("micro", "micro,layers=1")).model
    assert fewer.config.n_layer == len(fewer.transformer.h) == 1
    whole = load(MICRO).model.transformer
    assert torch.equal(fewer.transformer.wte.weight, whole.wte.weight)
    assert fewer.transformer.h[0].mlp.c_proj.weight.std().item() > 1.2 * (
        whole.h[0].mlp.c_proj.weight.std().item()
    )


def test_an_outline_has_the_modules_and_no_weights() -> None:
    found = outline("random:gpt2-small,layers=2", load_tokenizer("tiny"))
    assert {parameter.device.type for parameter in found.parameters()} == {"meta"}
    assert len(found.transformer.h) == 2
    assert found.lm_head.weight.shape == (50_304, 768)


def test_a_folder_gives_the_shape_of_any_architecture(tmp_path: Path) -> None:
    shape = LlamaConfig(
        vocab_size=2048,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    shape.save_pretrained(tmp_path)
    model = load(f"random:{tmp_path},tokenizer=tiny", dtype=torch.bfloat16).model
    assert model.dtype == torch.bfloat16
    assert model.model.layers[1].mlp.up_proj.weight.std().item() == pytest.approx(0.5, rel=0.15)
    assert bool((model.model.norm.weight == 1).all())
    small = LlamaConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    small.save_pretrained(tmp_path)
    with pytest.raises(SpecError, match="100, must hold the tokenizer's tokens; got 2048"):
        load(f"random:{tmp_path}")


def test_a_tokenizer_may_be_a_vocabulary_and_its_merges(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer("abb")["input_ids"] == [3, 2]
    assert tokenizer.pad_token == "<|endoftext|>"
    model = load(f"random:gpt2-micro,tokenizer={tmp_path}").model
    assert model.config.vocab_size == 64
    assert len(load_tokenizer(f"random:gpt2-micro,tokenizer={tmp_path}")) == 4


def test_a_source_is_written_and_read() -> None:
    spec = RandomModel(shape="gpt2-mini", seed=9)
    assert spec.source() == "random:gpt2-mini,seed=9,tokenizer=tiny"
    assert RandomModel.parse(spec.source()) == spec
    assert RandomModel.parse("random") == RandomModel()
    assert RandomModel.parse("random:gpt2-micro") == RandomModel(shape="gpt2-micro")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("random:gpt3", f"one of {', '.join(SHAPES)} or a folder with config.json; got 'gpt3'"),
        ("random:gpt2-micro,seed=-1", "a random model is written"),
        ("random:gpt2-micro,width=3", "a random model is written"),
        ("random:gpt2-micro,layers=two", "a random model is written"),
        ("random:gpt2-micro,layers=0", "layers must be at least 1; got 0"),
    ],
)
def test_sources_that_name_no_model_are_refused(source: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load(source)


@pytest.mark.parametrize("text", ["{", "{}", '{"model_type": "nope"}'])
def test_a_folder_whose_configuration_names_no_model_ends_in_one_line(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=f"model 'random:{tmp_path}' could not be loaded") as caught:
        load(f"random:{tmp_path}")
    assert "\n" not in str(caught.value)


def test_negative_seeds_and_wider_contexts_are_refused() -> None:
    with pytest.raises(SpecError, match="initial_seed must not be negative; got -1"):
        RandomModel(seed=-1)
    with pytest.raises(SpecError, match="has the context of its shape"):
        load(MICRO, context=ContextSpec(length=4096))


def test_building_twice_with_other_dtypes_rounds_the_same_draws() -> None:
    config = initial_config(RandomModel(shape="gpt2-micro"), load_tokenizer("tiny"))
    exact, low = (build_initial(config, 1, d) for d in (torch.float32, torch.bfloat16))
    weight = exact.get_input_embeddings().weight
    assert torch.equal(weight.bfloat16(), low.get_input_embeddings().weight)
