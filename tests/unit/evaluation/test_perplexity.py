import math

import numpy as np
import pytest
import torch

from hylorada.errors import SpecError
from hylorada.evaluation.perplexity import lim_ppl_seed, mid_ppl, perplexity
from hylorada.evaluation.windows import CorpusLosses
from tests.unit.evaluation.models import (
    TableModel,
    build,
    case,
    case_of,
    random_tokens,
    store,
    uniform,
)


def losses_of(values: list[float], positions: list[int], length: int) -> CorpusLosses:
    count = len(values)
    return CorpusLosses(
        losses=np.array(values, dtype=np.float32),
        positions=np.array(positions, dtype=np.int64),
        windows=np.arange(count, dtype=np.int64),
        documents=np.zeros(count, dtype=np.int64),
        byte_count=2.0 * count,
        length=length,
        stride=length,
    )


def test_uniform_model_has_a_perplexity_of_its_vocabulary() -> None:
    result = perplexity(case(uniform(64), store(random_tokens(100, 64)), max_length=10))
    assert result.value == pytest.approx(64.0)
    assert result.bits_per_token.value == pytest.approx(6.0)
    assert result.tokens == 90
    assert result.interval == pytest.approx([64.0, 64.0])


def test_perplexity_weights_tokens_and_not_windows() -> None:
    # One window of four losses of 1 and one of a single loss of 6: (4 + 6) / 5, not 3.5.
    table = torch.zeros(3, 3)
    corpus = case(TableModel(table), store([0] * 7), max_length=5).corpus
    weighted = CorpusLosses(
        losses=np.array([1, 1, 1, 1, 6], dtype=np.float32),
        positions=corpus.positions,
        windows=corpus.windows,
        documents=corpus.documents,
        byte_count=corpus.byte_count,
        length=5,
        stride=5,
    )
    result = perplexity(case_of(weighted))
    assert result.value == pytest.approx(math.exp(2.0))
    assert result.loss.clusters == 2


def test_bits_per_byte_divides_by_bytes() -> None:
    result = perplexity(case_of(losses_of([math.log(4.0)] * 3, [1, 2, 3], 4)))
    assert result.bits_per_byte.value == pytest.approx(1.0)
    assert result.bytes == 6.0


def test_perplexity_is_the_models_own_on_whole_blocks() -> None:
    tokens, model = random_tokens(60), build("gpt2")
    blocks = torch.tensor(tokens).view(3, 20)
    with torch.no_grad():
        own = math.exp(float(model(input_ids=blocks, labels=blocks).loss))
    result = perplexity(case(model, store(tokens), max_length=20))
    assert result.value == pytest.approx(own, rel=1e-5)


def test_a_stride_gives_targets_more_context_and_the_same_count() -> None:
    result = perplexity(case(uniform(96), store(random_tokens(64)), max_length=16, stride=4))
    assert (result.tokens, result.stride) == (63, 4)


def test_mid_ppl_takes_positions_from_a_third_to_two_thirds() -> None:
    values = [5.0, 5.0, 1.0, 2.0, 9.0]
    result = mid_ppl(case_of(losses_of(values, [1, 2, 3, 5, 6], length=9)))
    assert result.value == pytest.approx(math.exp(1.5))
    assert (result.tokens, result.descriptive) == (2, True)


def test_lim_ppl_seed_of_a_uniform_model_is_its_vocabulary() -> None:
    corpus = store(random_tokens(100, 32), random_tokens(300, 32, 1), random_tokens(99, 32, 2))
    result = lim_ppl_seed(case(uniform(32), corpus, max_length=200))
    assert result.value == pytest.approx(32.0, rel=1e-5)
    assert result.documents == 2
    assert result.tokens == 99 + 199
    assert len(result.slices) == 10
    assert result.descriptive is True


def test_lim_ppl_seed_averages_exponentials_of_slices() -> None:
    # 101 tokens, 100 losses, ten slices of ten: the first nine cost nothing, the last ln 4.
    table = torch.zeros(4, 4)
    table[0, 0] = 60.0
    tokens = [0] * 91 + [1, 2, 3] * 3 + [1]
    model = TableModel(table)
    result = lim_ppl_seed(case(model, store(tokens), max_length=101))
    assert result.slices[:9] == pytest.approx([1.0] * 9)
    # The step from 0 to 1 costs 60 nats, the other nine ln 4 each.
    assert result.slices[9] == pytest.approx(math.exp((60 + 9 * math.log(4)) / 10), rel=1e-4)
    assert result.value == pytest.approx(np.mean(result.slices))


def test_lim_ppl_seed_stops_at_max_tokens() -> None:
    corpus = store(*[random_tokens(100, 32)] * 5)
    result = lim_ppl_seed(case(uniform(32), corpus, max_length=100, max_tokens=150))
    assert result.documents == 2


@pytest.mark.parametrize(("tokens", "length"), [(99, 200), (200, 99)])
def test_lim_ppl_seed_needs_a_hundred_tokens(tokens: int, length: int) -> None:
    with pytest.raises(SpecError, match="at least 100 tokens"):
        lim_ppl_seed(case(uniform(96), store(random_tokens(tokens)), max_length=length))
