"""An adapter trained on one machine gives the same logits on any other."""

import pytest
import torch
from safetensors.torch import load_file

from hylorada.models.pretrained import load
from tests.golden.make_adapter import FOLDER, LOGITS, TEXT, last_logits

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_an_adapter_from_elsewhere_has_the_logits_it_had_there(device: str) -> None:
    there = load_file(FOLDER / LOGITS)["logits"]
    here = last_logits(FOLDER, device)
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


def test_the_pinned_adapter_changes_the_model() -> None:
    base = load("tiny")
    tokens = base.tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        plain = base.model(input_ids=tokens).logits[0, -1]
    assert (plain - load_file(FOLDER / LOGITS)["logits"]).abs().max() > 0.1


def test_a_thousand_numbers_are_stored_in_under_ten_kilobytes() -> None:
    assert (FOLDER / "adapter_model.safetensors").stat().st_size < 10_000
