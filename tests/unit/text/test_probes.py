import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.text.probes import (
    DEPTHS,
    EvidenceItem,
    continuation,
    evidence_items,
    generate_key_values,
    key_value_probes,
    leading_tokens,
    passkey_items,
    read_key_values,
)
from tests.unit.evaluation.models import byte_tokenizer

MAKERS = {"evidence": evidence_items, "passkey": passkey_items}


@pytest.fixture(params=[False, True], ids=["plain", "marked"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_tokenizer(mark=request.param)


@pytest.fixture(params=MAKERS)
def items(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase) -> list[EvidenceItem]:
    return MAKERS[request.param](tokenizer, length=300, count=3, seed=0)


def test_every_item_has_exactly_the_length_asked_for(items: list[EvidenceItem]) -> None:
    lengths = {probe.length for item in items for probe in (*item.at_depth, item.closed)}
    assert lengths == {300}
    assert [probe.depth for probe in items[0].at_depth] == list(DEPTHS)


def test_evidence_stands_after_its_share_of_the_filler(
    items: list[EvidenceItem], tokenizer: PreTrainedTokenizerBase
) -> None:
    mark = leading_tokens(tokenizer).size
    for item in items:
        first, last = item.at_depth[0], item.at_depth[-1]
        assert first.evidence_start == mark
        assert last.evidence_start is not None
        room = last.evidence_start - mark
        for probe in item.at_depth:
            assert probe.depth is not None
            assert probe.evidence_start == mark + round(probe.depth * room)


def test_depths_differ_only_in_where_the_evidence_stands(items: list[EvidenceItem]) -> None:
    for item in items:
        evidence, fillers = [], set()
        for probe in item.at_depth:
            assert probe.evidence_start is not None
            inside = slice(probe.evidence_start, probe.evidence_start + probe.evidence_tokens)
            evidence.append(probe.prompt[inside].tolist())
            fillers.add(tuple(np.delete(probe.prompt, inside).tolist()))
        assert all(tokens == evidence[0] for tokens in evidence)
        assert len(fillers) == 1


def test_the_answer_is_in_the_evidence_and_asked_for_by_the_question(
    items: list[EvidenceItem], tokenizer: PreTrainedTokenizerBase
) -> None:
    for item in items:
        oracle = tokenizer.decode(np.concatenate([item.oracle.prompt, item.oracle.answer]))
        answer = tokenizer.decode(item.oracle.answer)
        assert oracle.count(answer) >= 2
        assert oracle.endswith(answer)


def test_the_closed_version_never_mentions_the_answer(
    items: list[EvidenceItem], tokenizer: PreTrainedTokenizerBase
) -> None:
    for item in items:
        assert tokenizer.decode(item.closed.answer) not in tokenizer.decode(item.closed.prompt)
        assert item.closed.depth is None


def test_all_versions_ask_the_same_question(items: list[EvidenceItem]) -> None:
    for item in items:
        ends = {tuple(p.prompt[-12:].tolist()) for p in (*item.at_depth, item.closed, item.oracle)}
        answers = {tuple(p.answer.tolist()) for p in (*item.at_depth, item.closed, item.oracle)}
        assert len(ends) == len(answers) == 1


def test_items_follow_from_the_seed_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    def prompts(seed: int, count: int) -> list[list[int]]:
        made = evidence_items(tokenizer, length=200, count=count, seed=seed)
        return [item.at_depth[3].prompt.tolist() for item in made]

    assert prompts(1, 4)[:2] == prompts(1, 2)
    assert prompts(1, 2) != prompts(2, 2)


def test_filler_comes_from_the_corpus(tokenizer: PreTrainedTokenizerBase) -> None:
    corpus = np.full(500, 77, dtype=np.uint16)
    (item,) = evidence_items(tokenizer, length=200, count=1, seed=0, filler=corpus)
    closed = item.closed.prompt[leading_tokens(tokenizer).size :]
    assert (closed[:100] == 77).all()


def test_a_corpus_shorter_than_the_context_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    filler = np.zeros(199, dtype=np.uint16)
    with pytest.raises(SpecError, match="at least 200 tokens; got 199"):
        evidence_items(tokenizer, length=200, count=1, seed=0, filler=filler)


def test_a_context_too_short_for_the_evidence_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(SpecError, match="evidence, question and answer"):
        passkey_items(tokenizer, length=40, count=1, seed=0)


@pytest.mark.parametrize("depths", [(), (0.5, 1.1), (-0.1,)])
def test_depths_outside_the_context_are_refused(
    tokenizer: PreTrainedTokenizerBase, depths: tuple[float, ...]
) -> None:
    with pytest.raises(SpecError, match=r"0\.\.1"):
        passkey_items(tokenizer, length=200, count=1, seed=0, depths=depths)


def test_an_answer_is_tokenised_as_it_stands_after_the_question() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(continuation(tokenizer, "The key is", " 12")) == " 12"


def test_parts_that_merge_are_tokenised_apart() -> None:
    tokenizer = byte_tokenizer(merges=[("b", "c")])
    joint = tokenizer("abcd", add_special_tokens=False)["input_ids"]
    assert len(joint) == 3
    assert tokenizer.decode(continuation(tokenizer, "ab", "cd")) == "cd"


def test_records_are_uuids_that_do_not_repeat() -> None:
    records = generate_key_values(count=3, pairs=4, seed=0)
    names = [name for r in records for pair in ((r.key, r.value), *r.others) for name in pair]
    assert len(set(names)) == len(names) == 24
    assert all(len(name) == 36 and name[14] == "4" for name in names)
    assert records[:2] == generate_key_values(count=2, pairs=4, seed=0)


@pytest.mark.parametrize(("count", "pairs"), [(0, 2), (2, 0)])
def test_no_records_or_pairs_are_refused(count: int, pairs: int) -> None:
    with pytest.raises(SpecError, match="at least 1"):
        generate_key_values(count=count, pairs=pairs, seed=0)


def test_the_wanted_pair_moves_through_the_others(tokenizer: PreTrainedTokenizerBase) -> None:
    (record,) = generate_key_values(count=1, pairs=5, seed=0)
    (probes,) = key_value_probes(tokenizer, [record], length=1000, depths=(0.0, 0.5, 1.0))
    for probe, place in zip(probes, (0, 2, 4), strict=True):
        lines = tokenizer.decode(probe.prompt).split("\n")
        pairs = [line for line in lines if line.startswith(' "')]
        assert pairs[place] == f' "{record.key}": "{record.value}",'
        assert len(pairs) == 5
        assert probe.evidence_start is not None
        inside = probe.prompt[probe.evidence_start :][: probe.evidence_tokens]
        assert tokenizer.decode(inside) == f"\n{pairs[place]}"
    assert len({probe.length for probe in probes}) == 1
    assert tokenizer.decode(probes[0].answer) == record.value


def test_pairs_are_kept_while_they_fit(tokenizer: PreTrainedTokenizerBase) -> None:
    (record,) = generate_key_values(count=1, pairs=9, seed=0)
    (probes,) = key_value_probes(tokenizer, [record], length=500)
    pair = probes[0].evidence_tokens
    assert {probe.length for probe in probes} == {probes[0].length}
    assert 500 - pair < probes[0].length <= 500


def test_a_length_without_room_for_two_pairs_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    (record,) = generate_key_values(count=1, pairs=3, seed=0)
    with pytest.raises(SpecError, match="at least two pairs"):
        key_value_probes(tokenizer, [record], length=250)


def lines_of(path: Path, *lines: str) -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def line(key: str, value: str, *pairs: tuple[str, str]) -> str:
    return json.dumps({"ordered_kv_records": pairs, "key": key, "value": value})


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.jsonl.gz"])
def test_records_are_read_in_the_lost_in_the_middle_format(tmp_path: Path, name: str) -> None:
    first = line("b", "2", ("a", "1"), ("b", "2"), ("c", "3"))
    path = lines_of(tmp_path / name, first, "", line("a", "1", ("a", "1")))
    one, two = read_key_values(path)
    assert (one.key, one.value, one.others) == ("b", "2", (("a", "1"), ("c", "3")))
    assert two.others == ()
    assert read_key_values(path, count=1) == [one]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "line 1"),
        ('{"key": "a", "value": "1"}', "ordered_kv_records"),
        ('{"key": "a", "value": "1", "ordered_kv_records": [["a"]]}', "line 1"),
        (line("a", "1", ("a", "2")), "must be among"),
        ("", "at least one record"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_key_values(lines_of(tmp_path / "pairs.jsonl", text))
