import math

import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.evaluation.perplexity import context_gain, position_curve
from tests.unit.evaluation.models import (
    CopyModel,
    build,
    case,
    case_of,
    random_tokens,
    store,
    uniform,
)


def test_buckets_cover_every_scored_position_once() -> None:
    corpus = case(uniform(96), store(random_tokens(70)), max_length=17).corpus
    result = position_curve(case_of(corpus, position_buckets=4))
    assert [(part.start, part.end) for part in result.curve] == [
        (1, 5),
        (5, 9),
        (9, 13),
        (13, 17),
    ]
    assert sum(part.tokens for part in result.curve) == result.tokens == 4 * 16 + 1
    assert [part.value for part in result.curve] == pytest.approx([math.log(96)] * 4)


def test_a_bucket_averages_its_own_positions() -> None:
    corpus = case(build("gpt2"), store(random_tokens(66)), max_length=33).corpus
    result = position_curve(case_of(corpus, position_buckets=2))
    by_hand = corpus.losses[corpus.positions >= 17].mean(dtype=np.float64)
    assert result.curve[1].value == pytest.approx(by_hand)
    assert result.curve[1].interval is not None
    low, high = result.curve[1].interval
    assert low < by_hand < high


def test_positions_that_are_never_scored_have_no_bucket() -> None:
    corpus = case(uniform(96), store(random_tokens(80)), max_length=16, stride=16).corpus
    late = corpus.positions >= 8
    assert late.any()
    only_late = type(corpus)(
        losses=corpus.losses[late],
        positions=corpus.positions[late],
        windows=corpus.windows[late],
        documents=corpus.documents[late],
        byte_count=1.0,
        length=16,
        stride=8,
    )
    result = position_curve(case_of(only_late, position_buckets=5))
    assert [part.start for part in result.curve] == [7, 10, 13]


def test_more_buckets_than_positions_are_refused() -> None:
    corpus = case(uniform(96), store(random_tokens(80)), max_length=16).corpus
    with pytest.raises(SpecError, match=r"1\.\.15"):
        position_curve(case_of(corpus, position_buckets=16))


def test_a_uniform_model_gains_nothing_from_context() -> None:
    corpus = store(random_tokens(500))
    result = context_gain(case(uniform(96), corpus, max_length=64, context_windows=3), targets=8)
    assert [part.context for part in result.curve] == [8, 16, 32, 56]
    assert [part.value for part in result.curve] == pytest.approx([0.0] * 4, abs=1e-6)
    assert result.full_context.value == pytest.approx(math.log(96))
    assert (result.targets, result.windows_from) == (24, "documents")


def test_gain_appears_where_the_context_reaches_the_copied_text() -> None:
    phrase = random_tokens(24, seed=3)
    window = [*random_tokens(16, seed=5), *phrase, *random_tokens(16, seed=4), *phrase]
    result = context_gain(
        case(CopyModel(96, window=80), store(window * 3), max_length=80, context_windows=3),
        targets=8,
    )
    gains = {part.context: part.value for part in result.curve}
    # The copy stands 40 tokens back: its beginning is seen only with 48 tokens of context.
    assert gains[32] > 4.0
    assert gains[64] == pytest.approx(0.0, abs=1e-4)
    assert gains[72] == 0.0


def test_windows_cross_documents_only_if_none_is_long_enough() -> None:
    short = store(*[random_tokens(20, seed=seed) for seed in range(8)])
    result = context_gain(case(uniform(96), short, max_length=64, context_windows=9), targets=8)
    assert (result.windows_from, result.targets) == ("stream", 16)


def test_the_seed_chooses_the_windows() -> None:
    corpus, model = store(random_tokens(2000)), build("gpt2")
    first, again, other = (
        context_gain(
            case(model, corpus, max_length=32, context_windows=4, seed=seed), targets=4
        ).curve
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(SpecError, match="does not fit"):
        context_gain(case(uniform(96), store(random_tokens(30)), max_length=64), targets=8)


@pytest.mark.parametrize("targets", [64, 0])
def test_impossible_targets_are_refused(targets: int) -> None:
    corpus = store(random_tokens(200))
    with pytest.raises(SpecError, match="one target and one token of context"):
        context_gain(case(uniform(96), corpus, max_length=64), targets=targets)
