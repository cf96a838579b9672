import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.evaluation.windows import Window, cut_windows
from tests.unit.evaluation.models import build, case, random_tokens, store, uniform


def test_windows_without_overlap_leave_each_first_token_unscored() -> None:
    assert list(cut_windows(10, 4)) == [Window(0, 4, 1), Window(4, 8, 5), Window(8, 10, 9)]


def test_a_tail_of_one_token_is_left_out() -> None:
    assert list(cut_windows(9, 4)) == [Window(0, 4, 1), Window(4, 8, 5)]


def test_strided_windows_score_every_token_but_the_first_once() -> None:
    windows = list(cut_windows(11, 4, 2))
    scored = [place for window in windows for place in range(window.first_scored, window.end)]
    assert scored == list(range(1, 11))
    assert all(window.first_scored - window.start >= 2 for window in windows[1:])


@pytest.mark.parametrize(("length", "stride"), [(1, None), (4, 0), (4, 5)])
def test_impossible_windows_are_refused(length: int, stride: int | None) -> None:
    with pytest.raises(SpecError, match="stride in"):
        list(cut_windows(10, length, stride))


def test_every_loss_knows_its_window_position_and_document() -> None:
    corpus = store([1, 2, 3], [4, 5, 6], byte_counts=[30, 60])
    losses = case(uniform(8), corpus, max_length=4).corpus
    assert losses.windows.tolist() == [0, 0, 0, 1]
    assert losses.positions.tolist() == [1, 2, 3, 1]
    assert losses.documents.tolist() == [0, 0, 1, 1]
    # Two tokens of each document, at 10 and 20 bytes a token.
    assert losses.byte_count == pytest.approx(60.0)


def test_an_empty_document_takes_no_tokens() -> None:
    losses = case(uniform(8), store([1, 2], [], [3, 4]), max_length=4).corpus
    assert losses.documents.tolist() == [0, 2, 2]


def test_max_tokens_reads_the_beginning_only() -> None:
    corpus = store(random_tokens(50))
    losses = case(uniform(96), corpus, max_length=8, max_tokens=20).corpus
    assert losses.losses.size == 7 + 7 + 3


def test_batches_do_not_change_the_losses() -> None:
    corpus, model = store(random_tokens(100)), build("llama")
    one = case(model, corpus, max_length=12, batch_tokens=1).corpus
    many = case(model, corpus, max_length=12, batch_tokens=1000).corpus
    np.testing.assert_allclose(one.losses, many.losses, atol=1e-5)


def test_few_documents_are_clustered_by_block_and_many_by_document() -> None:
    few = case(uniform(8), store(*[[1, 2, 3]] * 9), max_length=4).corpus
    many = case(uniform(8), store(*[[1, 2, 3]] * 12), max_length=4).corpus
    assert (few.cluster_unit, few.mean_loss().clusters) == ("block", 7)
    assert (many.cluster_unit, many.mean_loss().clusters) == ("document", 12)


def test_a_corpus_of_one_token_cannot_be_scored() -> None:
    with pytest.raises(SpecError, match="at least 2 tokens"):
        _ = case(uniform(8), store([1]), max_length=4).corpus


def test_a_mean_over_no_token_is_refused() -> None:
    losses = case(uniform(8), store([1, 2, 3]), max_length=4).corpus
    with pytest.raises(SpecError, match="at least one scored token"):
        losses.mean_loss(np.zeros(2, dtype=np.bool_))
