"""Prompts that need one piece of evidence, placed at a known depth of a context of known length.

Every item exists once for each depth, with the same filler, evidence, question and answer, so that
depths and models are compared item by item. Text is assembled from tokens, so lengths are exact.

Key-value files have the format of "Lost in the Middle" (Liu et al. 2023): one JSON object a line
with `ordered_kv_records` (pairs of strings), `key` and `value`, plain or compressed with gzip.
"""

import gzip
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
_INSTRUCTION = "The JSON object below maps keys to values.\n\n{"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One prompt with its answer, as tokens; `depth` is `None` where no evidence was placed.

    Probes with the same `item` share filler, evidence, question and answer. The evidence occupies
    `evidence_tokens` tokens of the prompt from `evidence_start` on.
    """

    item: int
    depth: float | None
    prompt: Ints
    answer: Ints
    evidence_start: int | None = None
    evidence_tokens: int = 0

    @property
    def length(self) -> int:
        """Return the tokens of prompt and answer together."""
        return self.prompt.size + self.answer.size


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceItem:
    """One question at every depth, with no evidence (closed), and with nothing else (oracle)."""

    at_depth: tuple[Probe, ...]
    closed: Probe
    oracle: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueRecord:
    """A key, its value, and the other pairs it is hidden among."""

    key: str
    value: str
    others: tuple[tuple[str, str], ...]


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
    stretches = _corpus_filler(tokenizer, filler, seed)
    return [
        _place(tokenizer, _fact(seed, item), stretches(item, length), item, length, depths)
        for item in range(count)
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
    sentences = _encode(tokenizer, _PASSKEY_FILLER)
    dull = np.resize(sentences, length)
    draws = torch.randint(10_000, 100_000, (count,), generator=generator(seed, "passkey"))
    return [
        _place(tokenizer, _passkey(int(key)), dull, item, length, depths)
        for item, key in enumerate(draws)
    ]


def read_key_values(path: Path, *, count: int | None = None) -> list[KeyValueRecord]:
    """Return the first `count` records of a jsonl or jsonl.gz file, or all of them."""
    opener = gzip.open if path.suffix == ".gz" else open
    records: list[KeyValueRecord] = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if count is not None and len(records) >= count:
                break
            if line.strip():
                records.append(_parsed(line, f"{path.name}, line {number}"))
    if not records:
        raise SpecError(f"a key-value file needs at least one record; {path.name} has none")
    return records


def generate_key_values(*, count: int, pairs: int, seed: int) -> list[KeyValueRecord]:
    """Return `count` records of `pairs` random UUID pairs each."""
    if count < 1 or pairs < 1:
        raise SpecError(f"count and pairs must be at least 1; got {count} and {pairs}")
    return [_drawn(pairs, seed, item) for item in range(count)]


def key_value_probes(
    tokenizer: PreTrainedTokenizerBase,
    records: Sequence[KeyValueRecord],
    *,
    length: int,
    depths: Sequence[float] = DEPTHS,
) -> list[list[Probe]]:
    """Return one list of probes a record, at most `length` tokens each, answer included.

    As many of the other pairs are kept as fit. Depth 0 puts the wanted pair first, 1 last; between
    them it stands after `round(depth * others)` pairs. Depths of one record share their pairs.
    """
    _require_depths(depths)
    return [
        _key_value_probes(tokenizer, record, item, length, depths)
        for item, record in enumerate(records)
    ]


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
    prefix, joint = _encode(tokenizer, before), _encode(tokenizer, before + text)
    if joint.size > prefix.size and np.array_equal(joint[: prefix.size], prefix):
        return joint[prefix.size :]
    return _encode(tokenizer, text)


def _place(
    tokenizer: PreTrainedTokenizerBase,
    fact: Fact,
    filler: Ints,
    item: int,
    length: int,
    depths: Sequence[float],
) -> EvidenceItem:
    """Return the fact at every depth of the filler: after `round(depth * filler)` tokens of it."""
    _require_depths(depths)
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

    def probe(depth: float | None, context: Ints, at: int | None = None) -> Probe:
        return Probe(
            item=item,
            depth=depth,
            prompt=np.concatenate([start, context, question]),
            answer=answer,
            evidence_start=None if at is None else start.size + at,
            evidence_tokens=0 if at is None else evidence.size,
        )

    def hidden(depth: float) -> Probe:
        at = round(depth * room)
        return probe(depth, np.concatenate([filler[:at], evidence, filler[at:room]]), at)

    return EvidenceItem(
        at_depth=tuple(hidden(depth) for depth in depths),
        closed=probe(None, filler[: length - fixed]),
        oracle=probe(None, evidence, 0),
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


def _key_value_probes(
    tokenizer: PreTrainedTokenizerBase,
    record: KeyValueRecord,
    item: int,
    length: int,
    depths: Sequence[float],
) -> list[Probe]:
    """Return the wanted pair at every depth among the other pairs that fit."""
    question_text = f'\n}}\n\nKey: "{record.key}"\nValue: "'
    question = continuation(tokenizer, '"', question_text)
    answer = continuation(tokenizer, question_text, record.value)
    start = np.concatenate([leading_tokens(tokenizer), _encode(tokenizer, _INSTRUCTION)])
    gold = _pair_tokens(tokenizer, record.key, record.value)
    sizes = [start.size + gold.size + question.size + answer.size]
    others: list[Ints] = []
    for key, value in record.others:
        pair = _pair_tokens(tokenizer, key, value)
        sizes.append(sizes[-1] + pair.size)
        if sizes[-1] > length:
            break
        others.append(pair)
    if not others:
        raise SpecError(
            f"length must hold at least two pairs, {sizes[-1]} tokens with this tokenizer; "
            f"got {length}"
        )

    def hidden(depth: float) -> Probe:
        at = round(depth * len(others))
        before = np.concatenate([start, *others[:at]])
        return Probe(
            item=item,
            depth=depth,
            prompt=np.concatenate([before, gold, *others[at:], question]),
            answer=answer,
            evidence_start=before.size,
            evidence_tokens=gold.size,
        )

    return [hidden(depth) for depth in depths]


def _pair_tokens(tokenizer: PreTrainedTokenizerBase, key: str, value: str) -> Ints:
    """Return one line of the object; every line ends with a comma, so that lines can move."""
    return continuation(tokenizer, '",', f'\n "{key}": "{value}",')


def _parsed(line: str, where: str) -> KeyValueRecord:
    try:
        data = json.loads(line)
        key, value = data["key"], data["value"]
        pairs = [(str(name), str(text)) for name, text in data["ordered_kv_records"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            "a key-value record needs ordered_kv_records (pairs), key and value; "
            f"{where} does not: {error!r}"
        ) from error
    if (key, value) not in pairs:
        raise SpecError(f"the wanted pair must be among ordered_kv_records; it is not in {where}")
    others = tuple(pair for pair in pairs if pair[0] != key)
    return KeyValueRecord(key=key, value=value, others=others)


def _drawn(pairs: int, seed: int, item: int) -> KeyValueRecord:
    source = generator(seed, "key values", item)
    octets = torch.randint(0, 256, (2 * pairs, 16), generator=source)
    names = [str(uuid.UUID(bytes=bytes(row), version=4)) for row in octets.tolist()]
    drawn = list(zip(names[::2], names[1::2], strict=True))
    return KeyValueRecord(key=drawn[0][0], value=drawn[0][1], others=tuple(drawn[1:]))


def _require_depths(depths: Sequence[float]) -> None:
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise SpecError(f"depths must lie in 0..1, at least one; got {list(depths)}")


def _corpus_filler(
    tokenizer: PreTrainedTokenizerBase, filler: NDArray[np.integer] | None, seed: int
) -> Callable[[int, int], Ints]:
    """Return a function (item, length) -> that item's own stretch of filler."""

    def from_corpus(item: int, length: int) -> Ints:
        assert filler is not None
        last = filler.size - length
        if last < 0:
            raise SpecError(
                f"filler must have at least {length} tokens; got {filler.size}; "
                "give more text or a shorter length"
            )
        source = generator(seed, "filler", item)
        start = int(torch.randint(0, last + 1, (1,), generator=source))
        return filler[start : start + length].astype(np.int64)

    def generated(item: int, length: int) -> Ints:
        source = generator(seed, "filler", item)
        tokens = np.empty(0, dtype=np.int64)
        while tokens.size < length:
            words = torch.randint(len(_WORDS), (64, 4), generator=source).tolist()
            text = "".join(
                f" The {_WORDS[a]} {_WORDS[b]} was near the {_WORDS[c]} {_WORDS[d]}."
                for a, b, c, d in words
            )
            tokens = np.concatenate([tokens, _encode(tokenizer, text)])
        return tokens[:length]

    return generated if filler is None else from_corpus


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> Ints:
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int64)
