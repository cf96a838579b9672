"""The causal mean: a naive loop, packed, padded and in pieces, all the same."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, StaticCache

from hylorada import UnsupportedModelError
from hylorada.adapters.positions import PrefixSums, causal_mean
from hylorada.seeds import generator
from tests.families import adapt, logits, tokens
from tests.reference import landmarks as reference


def hidden(batch: int = 2, time: int = 9, dim: int = 3) -> Tensor:
    return torch.randn(batch, time, dim, generator=generator(0, "hidden states"))


def test_three_tokens_by_hand() -> None:
    states = torch.tensor([[[1.0], [3.0], [8.0]]])
    mean = causal_mean(states, torch.arange(3)[None])
    assert mean.flatten().tolist() == [1.0, 2.0, 4.0]


def test_a_document_packed_behind_another_starts_anew() -> None:
    states = torch.tensor([[[1.0], [3.0], [8.0], [10.0]]])
    mean = causal_mean(states, torch.tensor([[0, 1, 0, 1]]))
    assert mean.flatten().tolist() == [1.0, 2.0, 8.0, 9.0]


def test_left_padding_is_left_out() -> None:
    states = torch.tensor([[[50.0], [60.0], [8.0], [10.0]]])
    mean = causal_mean(states, torch.tensor([[0, 0, 0, 1]]))
    assert mean.flatten().tolist()[2:] == [8.0, 9.0]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 4))
def test_it_is_the_naive_loop(lengths: list[int], padding: int) -> None:
    documents = [torch.arange(length) for length in lengths]
    positions = torch.cat([torch.zeros(padding, dtype=torch.long), *documents])[None]
    states = hidden(time=positions.shape[1])
    expected = reference.causal_mean(states, positions)
    found = causal_mean(states, positions).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_pieces_with_a_cache_agree_with_one_pass(pieces: list[int]) -> None:
    states = hidden(time=sum(pieces))
    positions = torch.stack([torch.arange(sum(pieces)), (torch.arange(sum(pieces)) - 2).clamp(0)])
    whole = causal_mean(states, positions)
    sums, start, found = PrefixSums("owner"), 0, []
    for piece in pieces:
        stop = start + piece
        found.append(causal_mean(states[:, start:stop], positions[:, start:stop], sums))
        start = stop
    torch.testing.assert_close(torch.cat(found, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_sums_are_kept_in_float32() -> None:
    states = hidden().bfloat16()
    sums = PrefixSums("owner")
    mean = causal_mean(states, torch.arange(9)[None], sums)
    assert mean.dtype == torch.bfloat16
    past = sums.past()
    assert past is not None
    assert past.dtype == torch.float32


def test_the_mean_of_a_long_context_stays_accurate() -> None:
    states = hidden(1, 4000) + 1.0
    mean = causal_mean(states, torch.arange(4000)[None])[0, -1].double()
    torch.testing.assert_close(mean, states.double().mean(dim=(0, 1)), atol=1e-4, rtol=1e-4)


CONFIG = LlamaConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2)


def test_sums_lie_behind_the_layers_of_a_cache_that_has_none_yet() -> None:
    cache = DynamicCache()
    sums = PrefixSums.of(cache, "one", model_layers=2)
    assert cache.layers.index(sums) == 2
    assert PrefixSums.of(cache, "one", model_layers=2) is sums
    assert PrefixSums.of(cache, "two", model_layers=2) is not sums
    assert len(cache.layers) == 4


@pytest.mark.parametrize("cache", [DynamicCache(config=CONFIG), StaticCache(CONFIG, 8)])
def test_sums_lie_behind_the_layers_of_a_cache_that_has_them(cache: DynamicCache) -> None:
    compileable = cache.is_compileable
    sums = PrefixSums.of(cache, "one", model_layers=2)
    assert cache.layers.index(sums) == 2
    assert cache.is_compileable is compileable


def test_sums_follow_their_cache_through_beam_search_and_cropping() -> None:
    cache = DynamicCache()
    sums = PrefixSums.of(cache, "one", model_layers=0)
    sums.extend(torch.arange(8.0).view(2, 4, 1))
    cache.reorder_cache(torch.LongTensor([1, 1]))
    cache.crop(-1)
    past = sums.past()
    assert past is not None
    assert past.squeeze(-1).tolist() == [[4.0, 5.0, 6.0], [4.0, 5.0, 6.0]]
    cache.batch_repeat_interleave(2)
    past = sums.past()
    assert past is not None
    assert past.shape == (4, 3, 1)
    cache.reset()
    assert sums.past() is None


def test_sums_lie_behind_the_layers_that_an_early_exit_runs() -> None:
    cache = DynamicCache(config=CONFIG)
    sums = PrefixSums.of(cache, "one", model_layers=5)
    assert cache.layers.index(sums) == 2
    assert PrefixSums.of(cache, "one", model_layers=5) is sums
    assert PrefixSums.of(cache, "two", model_layers=5) is not sums


def test_keys_of_a_block_without_a_layer_are_refused() -> None:
    cache = DynamicCache(config=CONFIG)
    PrefixSums.of(cache, "one", model_layers=3)
    keys = torch.zeros(1, 2, 1, 4)
    with pytest.raises(UnsupportedModelError, match="a layer for every block"):
        cache.update(keys, keys, 2)


@pytest.mark.parametrize("design", ["original", "per_layer"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_an_early_exit_as_the_assistant_changes_no_token(family: str, design: str) -> None:
    model = adapt(family, landmark_design=design)
    prompt = tokens(1, 12)
    plain = model.generate(prompt, max_new_tokens=8, do_sample=False)
    assisted = model.generate(prompt, max_new_tokens=8, do_sample=False, assistant_early_exit=2)
    assert assisted.tolist() == plain.tolist()


@pytest.mark.parametrize("design", ["original", "per_layer"])
def test_an_early_exit_decodes_with_a_cache_as_without(design: str) -> None:
    model = adapt("llama", landmark_design=design)
    text = tokens(1, 9)
    model.config.num_hidden_layers = 2
    whole = logits(model, text, use_cache=False)
    cache = DynamicCache(config=model.config)
    pieces = [logits(model, piece, past_key_values=cache) for piece in text.split([4, 1, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)
