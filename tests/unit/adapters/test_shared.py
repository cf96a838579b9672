"""A shared factor is a view of the one weight in the store, under a key of its place and shape."""

import torch
from torch import nn

from hylorada.adapters.shared import SharedFactor, shared_key
from hylorada.models.anatomy import find_decoder
from tests.families import build


def test_a_shared_factor_owns_nothing_and_applies_the_weight() -> None:
    store = nn.ParameterDict({"key": nn.Parameter(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))})
    factor = SharedFactor(store, "key")
    assert list(factor.parameters()) == []
    assert factor.weight is store["key"]
    assert factor(torch.tensor([1.0, 1.0])).tolist() == [3.0, 3.0]


def test_a_factor_follows_its_store_to_a_new_parameter() -> None:
    store = nn.ParameterDict({"key": nn.Parameter(torch.zeros(2, 2))})
    factor = SharedFactor(store, "key")
    store["key"] = nn.Parameter(torch.ones(2, 2))
    assert torch.equal(factor.weight, torch.ones(2, 2))


def test_equal_modules_of_all_layers_share_a_key() -> None:
    decoder = find_decoder(build("llama"))
    weight = torch.zeros(4, 32)
    names = [f"model.layers.{index}.self_attn.q_proj" for index in range(3)]
    keys = {shared_key("A", name, weight, decoder) for name in names}
    assert keys == {"A|model/layers/*/self_attn/q_proj|4x32"}


def test_other_places_shapes_and_factors_have_other_keys() -> None:
    decoder = find_decoder(build("llama"))
    weight, name = torch.zeros(4, 32), "model.layers.0.self_attn.q_proj"
    keys = {
        shared_key("A", name, weight, decoder),
        shared_key("B", name, weight, decoder),
        shared_key("A", name, torch.zeros(2, 32), decoder),
        shared_key("A", "model.layers.0.self_attn.k_proj", weight, decoder),
        shared_key("A", "lm_head", weight, decoder),
    }
    assert len(keys) == 5
