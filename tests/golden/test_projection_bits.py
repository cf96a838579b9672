"""Pinned bits: a change here makes every stored adapter decode to other weights.

The values are what `build_projection(kind, 30, 6, seed=137, name="layers.0", factor="A")` gives for
its fingerprint, and for the first five parameters at the coordinates 1, 2, … 6.
"""

import pytest
import torch

from hylorada.models.pretrained import load
from hylorada.seeds import BitStream
from hylorada.subspace.projections import PROJECTIONS, build_projection
from tests.unit.subspace.small import adapt

PINNED = {
    "dense": ("efb8664aabb52426", [1.349647, -0.052608, 0.16594, 0.924561, -0.454126]),
    "sparse": ("025b51b9ca530f42", [0.894427, 1.341641, -4.024922, 0.0, 0.0]),
    "kron_qr": ("e08547cd83ca97d6", [1.976648, -2.874327, 3.979804, 0.362685, 0.461494]),
    "fastfood": ("59eb1e384fa2b259", [0.062493, 0.198471, -0.839659, 1.551138, -0.29521]),
    "grouped": ("6a63c5a0df0fe1d5", [2.683281, 0.447214, 0.447214, 0.894427, 1.341641]),
}


def test_raw_bits_are_philox_under_the_hashed_name() -> None:
    words = [0x69885054C9D926A7, 0x8AD10C7325B1453D, 0x79A50CE7B237BF94]
    assert BitStream(137, "golden").raw(3).tolist() == words
    assert BitStream(137, "golden").permutation(8).tolist() == [5, 3, 6, 4, 0, 2, 7, 1]
    normals = [-1.3557891845703125, -1.6923370361328125, -1.4391632080078125]
    assert BitStream(137, "golden").normal(3).tolist() == normals


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_projections_have_their_pinned_values(kind: str) -> None:
    projection = build_projection(kind, 30, 6, seed=137, name="layers.0", factor="A")
    fingerprint, values = PINNED[kind]
    assert projection.fingerprint() == fingerprint
    found = projection.apply(torch.arange(1.0, 7.0))[:5].tolist()
    assert found == pytest.approx(values, abs=1e-5)


def test_a_grouping_is_pinned_as_integers() -> None:
    projection = build_projection("grouped", 30, 6, seed=137, name="layers.0", factor="A")
    groups = [5, 0, 0, 1, 2, 3, 3, 5, 3, 1, 5, 4, 2, 0, 2, 1, 0, 4, 4, 4, 2, 5, 3, 4, 1]
    assert projection.tensors["index"].tolist() == [*groups, 0, 5, 1, 3, 2]


def test_a_random_model_has_its_pinned_weights() -> None:
    model = load("random:gpt2-micro,seed=137,tokenizer=tiny").model
    weights = [-0.003980407491326332, 0.0018716431222856045, -0.008504333905875683]
    assert model.get_input_embeddings().weight[0, :3].tolist() == weights


@pytest.mark.parametrize(
    ("mode", "fingerprint"),
    [
        ("uniform", "1d28ade4f16d56df"),
        ("fixed", "00bbb55da87ddfa5"),
        ("learned", "c0fce9ff1e6183ee"),
    ],
)
def test_adapters_have_their_pinned_fingerprints(mode: str, fingerprint: str) -> None:
    model = adapt("gpt2", allocation_mode=mode, target_modules=["c_attn", "lm_head"])
    assert model.peft_config["default"].fingerprint == fingerprint
