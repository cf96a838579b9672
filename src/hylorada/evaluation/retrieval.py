"""Can the model use evidence wherever it stands? Answer loss and exact match by depth.

Every prompt needs one piece of evidence, placed at a known depth of a context of known length. An
item exists once for each depth, with the same filler, evidence, question and answer, so that depths
and models are compared item by item. Text is assembled from tokens, so lengths are exact.
"""

import uuid
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import asdict
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.likelihood import Row, RowScores, score_rows
from hylorada.evaluation.metrics import METRICS, Case, Metric
from hylorada.evaluation.statistics import (
    Floats,
    mean_estimate,
    proportion_estimate,
    ratio_estimate,
)
from hylorada.records.evaluations import (
    DepthPoint,
    Estimate,
    EvidencePosition,
    Matches,
    MatchPoint,
    Quantity,
    Retrieval,
    Skipped,
)
from hylorada.seeds import generator
from hylorada.text.formats import json_rows

DEPTHS = tuple(index / 10 for index in range(11))
MIDDLE = (0.25, 0.75)
EDGE = (0.1, 0.9)
RETRIEVAL_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TASKS = ("passkey", "key_value")
# A pair of UUIDs takes at least this many tokens with any common tokenizer.
TOKENS_PER_PAIR = 24
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


class Probe(NamedTuple):
    """One prompt with its answer, as tokens."""

    prompt: Ints
    answer: Ints

    @property
    def row(self) -> Row:
        """Return the tokens to read, of which the answer is scored."""
        return Row(np.concatenate([self.prompt, self.answer]), self.prompt.size)


class EvidenceItem(NamedTuple):
    """One question at every depth, with no evidence (closed), and with nothing else (oracle)."""

    at_depth: tuple[Probe, ...]
    closed: Probe
    oracle: Probe


class Fact(NamedTuple):
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
    filler: NDArray[np.integer],
) -> list[EvidenceItem]:
    """Return `count` items of exactly `length` tokens, answer included, hiding a made-up fact.

    `filler` is a stream of tokens from the same tokenizer, of which every item takes a stretch of
    its own. The oracle holds the evidence alone.
    """
    last = filler.size - length
    if last < 0:
        raise SpecError(
            f"filler must have at least {length} tokens; got {filler.size}; "
            "give more text or a shorter length"
        )
    items = []
    for number in range(count):
        pick = torch.randperm(len(_WORDS), generator=generator(seed, "fact", number))[:4].tolist()
        place, kind, first, second = (_WORDS[index] for index in pick)
        stem, answer = f" The secret words of the {place} {kind} are", f" {first} {second}."
        stream = generator(seed, "filler", number)
        start = int(torch.randint(0, last + 1, (1,), generator=stream))
        stretch = filler[start : start + length].astype(np.int64)
        fact = Fact(f"{stem}{answer}", stem, answer)
        items.append(_place(tokenizer, fact, stretch, length, DEPTHS))
    return items


def passkey_items(
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    count: int,
    seed: int,
    depths: Sequence[float] = DEPTHS,
) -> list[EvidenceItem]:
    """Return `count` items of exactly `length` tokens that hide a five-digit key in dull text."""
    dull = np.resize(encode(tokenizer, _PASSKEY_FILLER), length)
    keys = torch.randint(10_000, 100_000, (count,), generator=generator(seed, "passkey")).tolist()
    stem = " The pass key is"
    facts = [
        Fact(f"{stem} {key}. Remember it: {key} is the pass key.", stem, f" {key}") for key in keys
    ]
    return [_place(tokenizer, fact, dull, length, depths) for fact in facts]


def leading_tokens(tokenizer: PreTrainedTokenizerBase) -> Ints:
    """Return the special tokens this tokenizer puts before a text, such as a beginning mark."""
    marked = tokenizer("a", add_special_tokens=True)["input_ids"]
    return np.array(marked[: marked.index(encode(tokenizer, "a")[0])], dtype=np.int64)


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


def _place(
    tokenizer: PreTrainedTokenizerBase,
    fact: Fact,
    filler: Ints,
    length: int,
    depths: Sequence[float],
) -> EvidenceItem:
    """Return the fact at every depth of the filler: after `round(depth * filler)` tokens of it."""
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

    def asked_after(*context: Ints) -> Probe:
        return Probe(prompt=np.concatenate([start, *context, question]), answer=answer)

    cuts = [round(depth * room) for depth in depths]
    return EvidenceItem(
        at_depth=tuple(asked_after(filler[:at], evidence, filler[at:room]) for at in cuts),
        closed=asked_after(filler[: length - fixed]),
        oracle=asked_after(evidence),
    )


INSTRUCTION = "The JSON object below maps keys to values.\n\n{"


class KeyValueRecord(NamedTuple):
    """A key, its value, and the other pairs it is hidden among."""

    key: str
    value: str
    others: tuple[tuple[str, str], ...]


def read_key_values(path: Path, *, count: int) -> list[KeyValueRecord]:
    """Return the first `count` records of a file, or all of them if it has fewer."""
    records = []
    for number, row in enumerate(islice(json_rows(path), count), 1):
        where = f"{path.name}, row {number}"
        try:
            key, value = row["key"], row["value"]
            pairs = [(str(name), str(text)) for name, text in row["ordered_kv_records"]]
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(
                "a key-value record needs ordered_kv_records (pairs), key and value; "
                f"{where} does not: {error!r}"
            ) from error
        if (key, value) not in pairs:
            raise SpecError(
                f"the wanted pair must be among ordered_kv_records; it is not in {where}"
            )
        others = tuple(pair for pair in pairs if pair[0] != key)
        if not others:
            raise SpecError(
                f"a key-value record needs at least two pairs; {key!r} is alone in {where}"
            )
        records.append(KeyValueRecord(key, value, others))
    if not records:
        raise SpecError(f"a key-value file needs at least one record; {path.name} has none")
    return records


def generate_key_values(*, count: int, pairs: int, seed: int) -> list[KeyValueRecord]:
    """Return `count` records of `pairs` random UUID pairs each, at least two."""
    records = []
    for item in range(count):
        source = generator(seed, "key values", item)
        octets = torch.randint(0, 256, (2 * pairs, 16), generator=source)
        names = [str(uuid.UUID(bytes=bytes(row), version=4)) for row in octets.tolist()]
        (key, value), *others = zip(names[::2], names[1::2], strict=True)
        records.append(KeyValueRecord(key, value, tuple(others)))
    return records


def key_value_probes(
    tokenizer: PreTrainedTokenizerBase,
    record: KeyValueRecord,
    *,
    length: int,
    depths: Sequence[float],
) -> tuple[Probe, ...]:
    """Return the wanted pair at every depth, at most `length` tokens each, answer included.

    As many of the other pairs are kept as fit. Depth 0 puts the wanted pair first, 1 last; between
    them it stands after `round(depth * others)` pairs. All depths share their pairs.
    """

    def line(key: str, value: str) -> Ints:
        # Every line ends with a comma, so that lines can move.
        return continuation(tokenizer, '",', f'\n "{key}": "{value}",')

    question_text = f'\n}}\n\nKey: "{record.key}"\nValue: "'
    question = continuation(tokenizer, '"', question_text)
    answer = continuation(tokenizer, question_text, record.value)
    start = np.concatenate([leading_tokens(tokenizer), encode(tokenizer, INSTRUCTION)])
    wanted = line(record.key, record.value)
    lines = [line(key, value) for key, value in record.others]
    sizes = start.size + wanted.size + question.size + answer.size
    needed = sizes + np.cumsum([each.size for each in lines])
    others = lines[: int((needed <= length).sum())]
    if not others:
        raise SpecError(
            f"length must hold at least two pairs, {needed[0]} tokens with this tokenizer; "
            f"got {length}"
        )
    parts = (
        [start, *others[:at], wanted, *others[at:], question]
        for at in (round(depth * len(others)) for depth in depths)
    )
    return tuple(Probe(prompt=np.concatenate(part), answer=answer) for part in parts)


def evidence_position(case: Case) -> EvidencePosition:
    """Return the answer loss a(d) in nats by depth of the evidence, and what follows from it.

    The answer is teacher-forced. `value` is `exp(mean a over depths in [.25, .75])`; the gap is the
    middle less the edge (depths up to .1 and from .9), in nats, positive if the middle is lost.
    `utilisation` is the share of what the evidence is worth when it stands alone (oracle) against
    when it is absent (closed); it is `None` if the evidence is worth nothing even alone.
    """
    spec, length = case.spec, case.spec.max_length
    items = evidence_items(
        case.tokenizer,
        length=length,
        count=spec.evidence_items,
        seed=spec.seed,
        filler=case.store.tokens,
    )
    rows = [probe.row for item in items for probe in (*item.at_depth, item.closed, item.oracle)]
    scores = score_rows(case.likelihood, rows, description="evidence", progress=spec.progress)
    means = np.array([score.losses.mean(dtype=np.float64) for score in scores])
    tokens = np.array([item.closed.answer.size for item in items], dtype=np.float64)
    return summarise_evidence(means.reshape(len(items), -1), tokens, DEPTHS, length)


def summarise_evidence(
    table: Floats, tokens: Floats, depths: Sequence[float], length: int
) -> EvidencePosition:
    """Return the evidence-position summary of mean answer losses, in nats.

    `table` has one row an item and one column a depth, then closed, then oracle; `tokens` counts
    each item's answer tokens, by which items are weighted.
    """
    at_depth, closed, oracle = table[:, :-2], table[:, -2], table[:, -1]
    places = np.array(depths)
    middle = (places >= MIDDLE[0]) & (places <= MIDDLE[1])
    edge = (places <= EDGE[0]) | (places >= EDGE[1])
    in_middle, at_edge = at_depth[:, middle].mean(axis=1), at_depth[:, edge].mean(axis=1)
    used = [_utilisation(column, closed, oracle, tokens) for column in at_depth.T]
    known = [share.value for share in used if share is not None]

    def nats(losses: Floats) -> Quantity:
        return Quantity(**asdict(mean_estimate(losses, tokens)), unit="nats/token")

    return EvidencePosition(
        **asdict(mean_estimate(in_middle, tokens).exponential()),
        unit="perplexity of the answer",
        cluster="item",
        scoring="teacher-forced",
        lim_gap=nats(in_middle - at_edge),
        utilisation=_utilisation(in_middle, closed, oracle, tokens),
        worst_utilisation=min(known) if known else None,
        closed=nats(closed),
        oracle=nats(oracle),
        curve=[
            DepthPoint(depth=depth, **asdict(mean_estimate(column, tokens)), utilisation=share)
            for depth, column, share in zip(depths, at_depth.T, used, strict=True)
        ],
        items=len(table),
        tokens=int(tokens.sum()) * len(depths),
        length=length,
    )


def _utilisation(losses: Floats, closed: Floats, oracle: Floats, tokens: Floats) -> Estimate | None:
    """Return `(closed - losses) / (closed - oracle)`, or `None` if the oracle gains nothing."""
    worth = (closed - oracle) * tokens
    if worth.sum() <= 0:
        return None
    return ratio_estimate((closed - losses) * tokens, worth)


def retrieval(case: Case) -> Retrieval:
    """Return exact match by task, length and depth, and how often single answer tokens match.

    An answer matches if every one of its tokens is the model's first choice after the tokens before
    it. That is greedy decoding: it writes the answer exactly when no token differs.
    """
    spec = case.spec
    path, count = spec.key_values, spec.retrieval_items
    records = None if path is None else read_key_values(path, count=count)
    results: list[Matches | Skipped] = []
    for task in TASKS:
        for length in spec.retrieval_lengths or (spec.max_length // 2, spec.max_length):
            try:
                items = _items(task, case, length, records)
            except SpecError as error:
                # Too short for this task alone: the result says so, the others are still measured.
                results.append(Skipped(task=task, length=length, skipped=str(error)))
                continue
            rows = [probe.row for item in items for probe in item]
            scores = score_rows(
                case.likelihood, rows, hits=True, description=task, progress=spec.progress
            )
            results.append(summarise_matches(task, length, scores, RETRIEVAL_DEPTHS))
    return Retrieval(
        unit="share of answers",
        scoring="greedy, by teacher-forced first choices",
        cluster="item",
        results=results,
    )


def _items(
    task: str, case: Case, length: int, records: list[KeyValueRecord] | None
) -> list[tuple[Probe, ...]]:
    depths, seed, count = RETRIEVAL_DEPTHS, case.spec.seed, case.spec.retrieval_items
    if task == "passkey":
        hidden = passkey_items(case.tokenizer, length=length, count=count, seed=seed, depths=depths)
        return [item.at_depth for item in hidden]
    if records is None:
        pairs = max(2, length // TOKENS_PER_PAIR)
        records = generate_key_values(count=count, pairs=pairs, seed=seed)
    return [
        key_value_probes(case.tokenizer, each, length=length, depths=depths) for each in records
    ]


def summarise_matches(
    task: str, length: int, scores: Sequence[RowScores], depths: Sequence[float]
) -> Matches:
    """Return exact match by depth of scores ordered by item, then depth, with Wilson intervals.

    Items, not prompts, are the independent draws, so the overall interval counts items.
    """
    items = len(scores) // len(depths)
    hits = [score.hits for score in scores if score.hits is not None]
    token_share = np.array([hit.mean() for hit in hits]).reshape(items, len(depths))
    matched = np.array([hit.all() for hit in hits]).reshape(items, len(depths))
    return Matches(
        task=task,
        length=length,
        **asdict(proportion_estimate(float(matched.mean(axis=1).sum()), items)),
        worst_depth=float(matched.mean(axis=0).min()),
        matching_tokens=mean_estimate(token_share.mean(axis=1)),
        items=items,
        prompts=len(scores),
        curve=[
            MatchPoint(depth=depth, **asdict(proportion_estimate(float(column.sum()), items)))
            for depth, column in zip(depths, matched.T, strict=True)
        ],
    )


METRICS.add(
    Metric("lim_ppl", "Perplexity of answers whose evidence is in the middle.", evidence_position)
)
METRICS.add(
    Metric("retrieval", "Exact match of hidden keys and values, by depth and length.", retrieval)
)
