import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import RowScores
from hylorada.evaluation.retrieval import (
    evidence_position,
    retrieval,
    summarise_evidence,
    summarise_matches,
)
from hylorada.files import record_json
from hylorada.records.evaluations import Matches, Skipped
from tests.unit.evaluation.models import CopyModel, byte_tokenizer, case, gpt2, store, uniform

BYTES = 257


def test_summary_follows_the_formulas() -> None:
    depths = (0.0, 0.3, 0.7, 1.0)
    # Columns: four depths, closed, oracle.
    table = np.array([[1.0, 3.0, 2.0, 1.0, 5.0, 0.0], [2.0, 2.0, 3.0, 2.0, 5.0, 1.0]])
    result = summarise_evidence(table, np.array([1.0, 1.0]), depths, 64)
    assert result.value == pytest.approx(math.exp(2.5))
    assert result.lim_gap.value == pytest.approx(1.0)
    # Closed is worth 5, oracle 0.5 on average, so the middle recovers 2.5 of 4.5.
    assert result.utilisation is not None
    assert result.utilisation.value == pytest.approx(2.5 / 4.5)
    assert result.worst_utilisation == pytest.approx(2.5 / 4.5)
    first = result.curve[0].utilisation
    assert first is not None
    assert first.value == pytest.approx(3.5 / 4.5)
    assert [part.value for part in result.curve] == [1.5, 2.5, 2.5, 1.5]
    assert (result.items, result.tokens) == (2, 8)


def test_items_are_weighted_by_their_answer_tokens() -> None:
    table = np.array([[1.0, 1.0, 9.0, 0.0], [4.0, 4.0, 9.0, 0.0]])
    result = summarise_evidence(table, np.array([1.0, 2.0]), (0.0, 0.5), 64)
    assert result.value == pytest.approx(math.exp(3.0))


def test_utilisation_is_unknown_if_the_evidence_is_worth_nothing() -> None:
    table = np.full((3, 4), 2.0)
    result = summarise_evidence(table, np.ones(3), (0.0, 0.5), 64)
    assert result.utilisation is None
    assert result.worst_utilisation is None
    assert result.lim_gap.value == 0.0


TEXT = store(byte_tokenizer()("The meadow was near the harbor. " * 20)["input_ids"])


def test_a_uniform_model_has_a_lim_ppl_of_its_vocabulary_and_no_gap() -> None:
    result = evidence_position(case(uniform(BYTES), TEXT, max_length=200, evidence_items=2))
    assert result.value == pytest.approx(BYTES, rel=1e-5)
    assert result.lim_gap.value == pytest.approx(0.0, abs=1e-6)
    assert len(result.curve) == 11


def test_a_model_that_copies_from_anywhere_uses_all_of_the_evidence() -> None:
    model = CopyModel(BYTES, window=1000)
    result = evidence_position(case(model, TEXT, max_length=256, evidence_items=2))
    assert result.value == pytest.approx(1.0, abs=0.01)
    assert result.utilisation is not None
    assert result.utilisation.value == pytest.approx(1.0, abs=0.01)


def test_a_model_with_a_short_window_loses_the_beginning() -> None:
    model = CopyModel(BYTES, window=160)
    result = evidence_position(case(model, TEXT, max_length=400, evidence_items=2))
    shares = [point.utilisation.value for point in result.curve if point.utilisation is not None]
    assert shares[-1] == pytest.approx(1.0, abs=0.01)
    assert shares[0] < 0.2
    assert result.worst_utilisation == min(shares)


def test_the_same_seed_gives_the_same_numbers() -> None:
    model = gpt2(context=150, vocabulary=BYTES)
    first, again, other = (
        evidence_position(case(model, TEXT, max_length=150, evidence_items=2, seed=seed))
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_exact_match_needs_every_token() -> None:
    def score(*hits: bool) -> RowScores:
        return RowScores(np.zeros(len(hits), dtype=np.float32), np.array(hits))

    scores = [score(True, True), score(True, False), score(True, True), score(False, False)]
    result = summarise_matches("passkey", 64, scores, (0.0, 1.0))
    assert [part.value for part in result.curve] == [1.0, 0.0]
    assert result.value == 0.5
    assert result.worst_depth == 0.0
    assert result.matching_tokens.value == pytest.approx((0.75 + 0.5) / 2)
    assert (result.items, result.prompts, result.clusters) == (2, 4, 2)


def test_a_copying_model_finds_every_pass_key_and_a_uniform_one_none() -> None:
    def found(model: nn.Module) -> list[tuple[int, float]]:
        asked = case(model, TEXT, retrieval_lengths=(160, 220), retrieval_items=2)
        results = [part for part in retrieval(asked).results if isinstance(part, Matches)]
        return [(part.length, part.value) for part in results if part.task == "passkey"]

    assert found(CopyModel(BYTES, window=1000, matched=7)) == [(160, 1.0), (220, 1.0)]
    assert found(uniform(BYTES)) == [(160, 0.0), (220, 0.0)]


def test_key_values_come_from_a_file_where_one_is_given(tmp_path: Path) -> None:
    pairs = [[f"key-{index}", f"value-{index * 7}"] for index in range(5)]
    record = {"ordered_kv_records": pairs, "key": pairs[2][0], "value": pairs[2][1]}
    path = tmp_path / "pairs.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")
    result = retrieval(
        case(
            CopyModel(BYTES, window=1000),
            TEXT,
            retrieval_lengths=(300,),
            retrieval_items=2,
            key_values=path,
        )
    )
    _, only = result.results
    assert isinstance(only, Matches)
    assert only.items == 1
    # The answer starts after `Value: "`, which stands nowhere else; from `valu` on it is copied,
    # up to the number, where the last pair is as near as the wanted one.
    assert 0.1 < only.matching_tokens.value < 1.0


def test_a_length_without_room_for_two_pairs_is_reported_and_not_guessed() -> None:
    asked = case(uniform(BYTES), TEXT, retrieval_lengths=(128, 384), retrieval_items=1)
    passkey, _, short, long = retrieval(asked).results
    assert isinstance(short, Skipped)
    assert "at least two pairs" in short.skipped
    assert isinstance(long, Matches)
    assert long.value == 0.0
    assert isinstance(passkey, Matches)


def test_a_task_that_was_skipped_is_stored_with_its_reason_alone() -> None:
    asked = case(uniform(BYTES), TEXT, retrieval_lengths=(128,), retrieval_items=1)
    skipped = json.loads(record_json(retrieval(asked)))["results"][1]
    assert set(skipped) == {"task", "length", "skipped"}


def test_a_file_without_records_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("")
    asked = case(uniform(BYTES), TEXT, key_values=path)
    with pytest.raises(SpecError, match="at least one record"):
        retrieval(asked)
