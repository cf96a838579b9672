"""Which layer a tensor belongs to."""

import pytest
from torch import nn
from transformers import AutoModelForSeq2SeqLM, T5Config

from hylorada.subspace.allocation import layer_of, layer_stacks
from tests.families import FAMILIES, LAYERS, build


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_one_stack_of_its_layers(family: str) -> None:
    model = build(family)
    (stack,) = layer_stacks(model)
    groups = [layer_of(name, [stack]) for name, _ in model.named_parameters()]
    assert list(dict.fromkeys(g for g in groups if g != "rest")) == [
        f"{stack}.{number}" for number in range(LAYERS)
    ]
    assert "rest" in groups


def test_an_encoder_and_a_decoder_are_two_stacks() -> None:
    model = AutoModelForSeq2SeqLM.from_config(
        T5Config(
            vocab_size=32, d_model=8, d_ff=8, d_kv=4, num_layers=2, num_heads=2, pad_token_id=0
        )
    )
    assert layer_stacks(model) == ["encoder.block", "decoder.block"]
    assert layer_of("decoder.block.1.layer.0.x", layer_stacks(model)) == "decoder.block.1"


def test_a_sequence_is_a_stack_only_where_it_repeats_a_block() -> None:
    def block() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    assert layer_stacks(nn.Sequential(block(), block())) == [""]
    assert layer_of("1.0.weight", [""]) == "1"
    assert layer_stacks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert layer_stacks(nn.Sequential(block(), nn.Linear(2, 2))) == []
    assert layer_stacks(nn.Linear(2, 2)) == []
