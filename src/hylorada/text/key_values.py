"""Prompts that ask for one value of a JSON object, its pair at a known depth among the others.

Files have the format of "Lost in the Middle" (Liu et al. 2023): one JSON object a line with
`ordered_kv_records` (pairs of strings), `key` and `value`, plain or compressed.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.seeds import generator
from hylorada.text.probes import (
    Ints,
    Probe,
    continuation,
    encode,
    leading_tokens,
    require_depths,
)
from hylorada.text.readers import Row, json_rows

INSTRUCTION = "The JSON object below maps keys to values.\n\n{"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueRecord:
    """A key, its value, and the other pairs it is hidden among."""

    key: str
    value: str
    others: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.others:
            raise SpecError(f"a key-value record needs at least two pairs; {self.key!r} is alone")


def read_key_values(path: Path, *, count: int) -> list[KeyValueRecord]:
    """Return the first `count` records of a file, or all of them if it has fewer."""
    rows = islice(json_rows(path), count)
    records = [_record(row, f"{path.name}, row {number}") for number, row in enumerate(rows, 1)]
    if not records:
        raise SpecError(f"a key-value file needs at least one record; {path.name} has none")
    return records


def generate_key_values(*, count: int, pairs: int, seed: int) -> list[KeyValueRecord]:
    """Return `count` records of `pairs` random UUID pairs each."""
    if count < 1 or pairs < 2:
        raise SpecError(f"count must be at least 1 and pairs 2; got {count} and {pairs}")
    return [_drawn(pairs, seed, item) for item in range(count)]


def key_value_probes(
    tokenizer: PreTrainedTokenizerBase,
    records: Sequence[KeyValueRecord],
    *,
    length: int,
    depths: Sequence[float],
) -> list[list[Probe]]:
    """Return one list of probes a record, at most `length` tokens each, answer included.

    As many of the other pairs are kept as fit. Depth 0 puts the wanted pair first, 1 last; between
    them it stands after `round(depth * others)` pairs. Depths of one record share their pairs.
    """
    require_depths(depths)
    return [_at_depths(tokenizer, record, length, depths) for record in records]


def _at_depths(
    tokenizer: PreTrainedTokenizerBase,
    record: KeyValueRecord,
    length: int,
    depths: Sequence[float],
) -> list[Probe]:
    """Return the wanted pair at every depth among the other pairs that fit."""
    question_text = f'\n}}\n\nKey: "{record.key}"\nValue: "'
    question = continuation(tokenizer, '"', question_text)
    answer = continuation(tokenizer, question_text, record.value)
    start = np.concatenate([leading_tokens(tokenizer), encode(tokenizer, INSTRUCTION)])
    wanted = _pair_tokens(tokenizer, record.key, record.value)
    size = start.size + wanted.size + question.size + answer.size
    others: list[Ints] = []
    for key, value in record.others:
        pair = _pair_tokens(tokenizer, key, value)
        size += pair.size
        if size > length:
            break
        others.append(pair)
    if not others:
        raise SpecError(
            f"length must hold at least two pairs, {size} tokens with this tokenizer; got {length}"
        )

    def hidden(depth: float) -> Probe:
        at = round(depth * len(others))
        prompt = np.concatenate([start, *others[:at], wanted, *others[at:], question])
        return Probe(prompt=prompt, answer=answer)

    return [hidden(depth) for depth in depths]


def _pair_tokens(tokenizer: PreTrainedTokenizerBase, key: str, value: str) -> Ints:
    """Return one line of the object; every line ends with a comma, so that lines can move."""
    return continuation(tokenizer, '",', f'\n "{key}": "{value}",')


def _record(row: Row, where: str) -> KeyValueRecord:
    try:
        key, value = row["key"], row["value"]
        pairs = [(str(name), str(text)) for name, text in row["ordered_kv_records"]]
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
    wanted, *others = zip(names[::2], names[1::2], strict=True)
    return KeyValueRecord(key=wanted[0], value=wanted[1], others=tuple(others))
