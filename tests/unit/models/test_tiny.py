import math
from itertools import islice

import pytest
import torch

from hylorada.files import embedded
from hylorada.models.pretrained import LoadedModel, load
from hylorada.text.corpus import documents


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load("tiny")


def test_the_weights_are_small_enough_to_ship() -> None:
    assert (embedded("tiny") / "model.safetensors").stat().st_size <= 8_000_000


def test_the_model_has_the_shape_of_gpt2_and_a_context_of_1024(loaded: LoadedModel) -> None:
    assert loaded.model.config.model_type == "gpt2"
    assert loaded.model.config.n_positions == 1024
    assert loaded.model.num_parameters() == 3_945_984


def test_weights_are_stored_in_half_and_computed_in_single_precision(loaded: LoadedModel) -> None:
    weights = loaded.model.state_dict().values()
    assert all(torch.equal(weight, weight.half().float()) for weight in weights)
    assert loaded.model.dtype == torch.float32


def test_every_text_survives_the_tokenizer(loaded: LoadedModel) -> None:
    text = "Fellow-Citizens:\n\n\tnaïve Σ 漢字 🙂  two  spaces"
    ids = loaded.tokenizer(text)["input_ids"]
    assert loaded.tokenizer.decode(ids) == text
    assert max(ids) < len(loaded.tokenizer) == loaded.model.config.vocab_size


def test_the_end_token_is_one_the_tokenizer_knows(loaded: LoadedModel) -> None:
    assert loaded.tokenizer.eos_token == "<|endoftext|>"
    assert loaded.tokenizer.eos_token_id == loaded.model.config.eos_token_id == 0


def test_it_is_a_language_model(loaded: LoadedModel) -> None:
    """On addresses it never saw it must be far better than the frequencies of its tokens.

    The unigram model is fitted to the scored text itself, so no unigram model can do better.
    """
    nats, tokens = 0.0, []
    for document in islice(documents("sotu", "test"), 3):
        ids = loaded.tokenizer(document.text[:4000])["input_ids"][:1024]
        row = torch.tensor([ids])
        with torch.no_grad():
            log_probabilities = loaded.model(row).logits[0, :-1].log_softmax(-1)
        nats -= float(log_probabilities.gather(1, row[0, 1:, None]).sum())
        tokens += ids[1:]
    frequencies = torch.bincount(torch.tensor(tokens)).double() / len(tokens)
    unigram_nats = float(torch.special.entr(frequencies).sum())
    assert math.exp(nats / len(tokens)) < 0.35 * math.exp(unigram_nats)


def test_the_model_card_and_licence_facts_are_there() -> None:
    card = (embedded("tiny") / "README.md").read_text(encoding="utf-8")
    assert "perplexity" in card
    assert "public domain" in card
