from functools import partial

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.retrieval import (
    DEPTHS,
    EvidenceItem,
    continuation,
    evidence_items,
    leading_tokens,
    passkey_items,
)
from tests.unit.evaluation.models import byte_tokenizer

FILLER = np.tile(np.arange(97, 123, dtype=np.uint16), 20)
MAKERS = {
    "evidence": partial(evidence_items, filler=FILLER),
    "passkey": passkey_items,
}


@pytest.fixture(params=[False, True], ids=["plain", "marked"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_tokenizer(mark=request.param)


@pytest.fixture(params=MAKERS)
def items(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase) -> list[EvidenceItem]:
    return MAKERS[request.param](tokenizer, length=300, count=3, seed=0)


def test_every_item_has_exactly_the_length_asked_for(items: list[EvidenceItem]) -> None:
    probes = [probe for item in items for probe in (*item.at_depth, item.closed)]
    assert {probe.prompt.size + probe.answer.size for probe in probes} == {300}
    assert {len(item.at_depth) for item in items} == {len(DEPTHS)}


def test_evidence_stands_after_its_share_of_the_filler(tokenizer: PreTrainedTokenizerBase) -> None:
    filler = np.full(500, 255, dtype=np.uint16)  # a byte that no evidence and no question has
    (item,) = evidence_items(tokenizer, length=300, count=1, seed=0, filler=filler)
    mark = leading_tokens(tokenizer).size
    evidence = item.oracle.prompt[mark:]
    for depth, probe in zip(DEPTHS, item.at_depth, strict=True):
        room = int((probe.prompt == 255).sum())
        at = mark + round(depth * room)
        assert (probe.prompt[mark:at] == 255).all()
        rest = probe.prompt[at:]
        assert np.array_equal(rest[rest != 255], evidence)


def test_depths_differ_only_in_where_the_evidence_stands(items: list[EvidenceItem]) -> None:
    for item in items:
        assert len({tuple(np.sort(probe.prompt).tolist()) for probe in item.at_depth}) == 1
        assert len({tuple(probe.prompt.tolist()) for probe in item.at_depth}) == len(DEPTHS)


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


def test_all_versions_ask_the_same_question(items: list[EvidenceItem]) -> None:
    for item in items:
        ends = {tuple(p.prompt[-12:].tolist()) for p in (*item.at_depth, item.closed, item.oracle)}
        answers = {tuple(p.answer.tolist()) for p in (*item.at_depth, item.closed, item.oracle)}
        assert len(ends) == len(answers) == 1


def test_items_follow_from_the_seed_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    def prompts(seed: int, count: int) -> list[list[int]]:
        made = evidence_items(tokenizer, length=200, count=count, seed=seed, filler=FILLER)
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


def test_an_answer_is_tokenised_as_it_stands_after_the_question() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(continuation(tokenizer, "The key is", " 12")) == " 12"


def test_parts_that_merge_are_tokenised_apart() -> None:
    tokenizer = byte_tokenizer(merges=[("b", "c")])
    joint = tokenizer("abcd", add_special_tokens=False)["input_ids"]
    assert len(joint) == 3
    assert tokenizer.decode(continuation(tokenizer, "ab", "cd")) == "cd"
