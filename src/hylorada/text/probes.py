"""Prompts that need one piece of evidence, placed at a known depth of a context of known length.

Every item exists once for each depth, with the same filler, evidence, question and answer, so that
depths and models are compared item by item. Text is assembled from tokens, so lengths are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.seeds import generator

DEPTHS = tuple(index / 10 for index in range(11))
Ints = NDArray[np.int64]

_VOCABULARY = """
amber anchor apple arrow autumn barrel basket beacon birch bridge bronze candle canyon cedar
cherry circle cobalt copper coral cotton cradle crystal dagger desert diamond eagle ember
falcon feather fiddle forest garden garnet ginger glacier granite hammer harbor hazel helmet
island ivory jasper kettle ladder lantern lemon linen lizard magnet maple marble meadow mirror
needle nickel orchard otter paper pebble pepper pillow planet prairie quartz rabbit ribbon
river saddle salmon scarlet shadow silver spider spring square summer temple thunder timber
tunnel turtle valley velvet violet walnut whistle willow window winter yellow zebra
"""
_WORDS = tuple(_VOCABULARY.split())
_PASSKEY_FILLER = (
    " The road goes up the hill. The wind is cold. The fields are wide and green. People come and "
    "people go. The day begins and the day ends."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One prompt with its answer, as tokens."""

    prompt: Ints
    answer: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """One question at every depth, with no evidence (closed), and with nothing else (oracle)."""

    at_depth: tuple[Probe, ...]
    closed: Probe
    oracle: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A sentence to hide, the beginning that asks for it again, and what must follow."""

    evidence: str
    question: str
    answer: str


def evidence_items(
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    count: int,
    seed: int,
    depths: Sequence[float] = DEPTHS,
    filler: NDArray[np.integer] | None = None,
) -> list[EvidenceItem]:
    """Return `count` items of exactly `length` tokens, answer included, hiding a made-up fact.

    `filler` is a stream of tokens from the same tokenizer, of which every item takes a stretch of
    its own; without it, simple sentences are generated. The oracle holds the evidence alone.
    """

    def stretch(item: int) -> Ints:
        if filler is None:
            return _generated_filler(tokenizer, length, seed, item)
        return _corpus_filler(filler, length, seed, item)

    return [
        _place(tokenizer, _fact(seed, item), stretch(item), length, depths) for item in range(count)
    ]


def passkey_items(
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    count: int,
    seed: int,
    depths: Sequence[float] = DEPTHS,
) -> list[EvidenceItem]:
    """Return `count` items of exactly `length` tokens that hide a five-digit key in dull text."""
    sentences = encode(tokenizer, _PASSKEY_FILLER)
    dull = np.resize(sentences, length)
    draws = torch.randint(10_000, 100_000, (count,), generator=generator(seed, "passkey"))
    return [_place(tokenizer, _passkey(int(key)), dull, length, depths) for key in draws]


def leading_tokens(tokenizer: PreTrainedTokenizerBase) -> Ints:
    """Return the special tokens this tokenizer puts before a text, such as a beginning mark."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    marked = tokenizer("a", add_special_tokens=True)["input_ids"]
    first = plain[0]
    return np.array(marked[: marked.index(first)], dtype=np.int64)


def continuation(tokenizer: PreTrainedTokenizerBase, before: str, text: str) -> Ints:
    """Return the tokens of `text` as they come out after `before`.

    Some tokenizers mark the beginning of every text they are given; an answer encoded alone would
    carry that mark, so it is taken from the joint encoding where the two parts stay separate.
    """
    prefix, joint = encode(tokenizer, before), encode(tokenizer, before + text)
    if joint.size > prefix.size and np.array_equal(joint[: prefix.size], prefix):
        return joint[prefix.size :]
    return encode(tokenizer, text)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Ints:
    """Return the tokens of a text without special ones."""
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)


def require_depths(depths: Sequence[float]) -> None:
    """Refuse depths outside the context, and none at all."""
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise SpecError(f"depths must lie in 0..1, at least one; got {list(depths)}")


def _place(
    tokenizer: PreTrainedTokenizerBase,
    fact: Fact,
    filler: Ints,
    length: int,
    depths: Sequence[float],
) -> EvidenceItem:
    """Return the fact at every depth of the filler: after `round(depth * filler)` tokens of it."""
    require_depths(depths)
    start = leading_tokens(tokenizer)
    evidence = continuation(tokenizer, ".", fact.evidence)
    question = continuation(tokenizer, ".", fact.question)
    answer = continuation(tokenizer, fact.question, fact.answer)
    fixed = start.size + question.size + answer.size
    room = length - fixed - evidence.size
    if room < 1:
        raise SpecError(
            "length must hold evidence, question and answer, "
            f"{fixed + evidence.size + 1} tokens with this tokenizer; got {length}"
        )

    def asked_after(context: Ints) -> Probe:
        return Probe(prompt=np.concatenate([start, context, question]), answer=answer)

    def hidden(depth: float) -> Probe:
        at = round(depth * room)
        return asked_after(np.concatenate([filler[:at], evidence, filler[at:room]]))

    return EvidenceItem(
        at_depth=tuple(hidden(depth) for depth in depths),
        closed=asked_after(filler[: length - fixed]),
        oracle=asked_after(evidence),
    )


def _fact(seed: int, item: int) -> Fact:
    pick = torch.randperm(len(_WORDS), generator=generator(seed, "fact", item))[:4].tolist()
    place, kind, first, second = (_WORDS[index] for index in pick)
    stem = f" The secret words of the {place} {kind} are"
    answer = f" {first} {second}."
    return Fact(evidence=f"{stem}{answer}", question=stem, answer=answer)


def _passkey(key: int) -> Fact:
    stem = " The pass key is"
    return Fact(
        evidence=f"{stem} {key}. Remember it: {key} is the pass key.",
        question=stem,
        answer=f" {key}",
    )


def _corpus_filler(filler: NDArray[np.integer], length: int, seed: int, item: int) -> Ints:
    """Return an item's own stretch of the corpus."""
    last = filler.size - length
    if last < 0:
        raise SpecError(
            f"filler must have at least {length} tokens; got {filler.size}; "
            "give more text or a shorter length"
        )
    start = int(torch.randint(0, last + 1, (1,), generator=generator(seed, "filler", item)))
    return filler[start : start + length].astype(np.int64)


def _generated_filler(
    tokenizer: PreTrainedTokenizerBase, length: int, seed: int, item: int
) -> Ints:
    """Return an item's own simple sentences."""
    source = generator(seed, "filler", item)
    tokens = np.empty(0, dtype=np.int64)
    while tokens.size < length:
        words = torch.randint(len(_WORDS), (64, 4), generator=source).tolist()
        text = "".join(
            f" The {_WORDS[a]} {_WORDS[b]} was near the {_WORDS[c]} {_WORDS[d]}."
            for a, b, c, d in words
        )
        tokens = np.concatenate([tokens, encode(tokenizer, text)])
    return tokens[:length]
