import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Likelihood, Row, score_rows
from tests.unit.evaluation.models import build, random_tokens, uniform


def row(length: int, first_scored: int, seed: int = 0) -> Row:
    return Row(np.array(random_tokens(length, seed=seed)), first_scored)


def test_rows_of_any_length_score_as_they_do_alone() -> None:
    rows = [row(9, 3, 0), row(4, 1, 1), row(13, 12, 2), row(9, 1, 3)]
    engine = Likelihood(build("gpt2"), batch_tokens=26)
    together = score_rows(engine, rows)
    for each, score in zip(rows, together, strict=True):
        (alone,) = score_rows(engine, [each])
        np.testing.assert_allclose(score.losses, alone.losses, atol=1e-5)


def test_hits_follow_the_order_of_the_rows() -> None:
    rows = [row(9, 8), row(4, 1)]
    scores = score_rows(Likelihood(uniform(96)), rows, hits=True)
    assert [None if s.hits is None else s.hits.size for s in scores] == [1, 3]
    assert score_rows(Likelihood(uniform(96)), rows)[0].hits is None


def test_no_rows_give_no_scores() -> None:
    assert score_rows(Likelihood(uniform(4)), []) == []


@pytest.mark.parametrize("first", [0, 4])
def test_a_row_must_have_context_and_a_target(first: int) -> None:
    with pytest.raises(SpecError, match=r"1\.\.3"):
        row(4, first)


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    score_rows(Likelihood(uniform(96)), [row(4, 1)], progress=True, description="reading")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "reading" in captured.err
    score_rows(Likelihood(uniform(96)), [row(4, 1)], description="reading")
    assert capfd.readouterr().err == ""
