import gzip
import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.evaluation.retrieval import (
    DEPTHS,
    generate_key_values,
    key_value_probes,
    read_key_values,
)
from tests.unit.evaluation.models import byte_tokenizer


@pytest.fixture(params=[False, True], ids=["plain", "marked"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    return byte_tokenizer(mark=request.param)


def test_records_are_uuids_that_do_not_repeat() -> None:
    records = generate_key_values(count=3, pairs=4, seed=0)
    names = [name for r in records for pair in ((r.key, r.value), *r.others) for name in pair]
    assert len(set(names)) == len(names) == 24
    assert all(len(name) == 36 and name[14] == "4" for name in names)
    assert records[:2] == generate_key_values(count=2, pairs=4, seed=0)


def test_the_wanted_pair_moves_through_the_others(tokenizer: PreTrainedTokenizerBase) -> None:
    (record,) = generate_key_values(count=1, pairs=5, seed=0)
    probes = key_value_probes(tokenizer, record, length=1000, depths=(0.0, 0.5, 1.0))
    for probe, place in zip(probes, (0, 2, 4), strict=True):
        lines = tokenizer.decode(probe.prompt).split("\n")
        pairs = [line for line in lines if line.startswith(' "')]
        assert pairs[place] == f' "{record.key}": "{record.value}",'
        assert len(pairs) == 5
    assert len({probe.prompt.size for probe in probes}) == 1
    assert tokenizer.decode(probes[0].answer) == record.value


def test_pairs_are_kept_while_they_fit(tokenizer: PreTrainedTokenizerBase) -> None:
    (record,) = generate_key_values(count=1, pairs=9, seed=0)
    probes = key_value_probes(tokenizer, record, length=500, depths=DEPTHS)
    pair = tokenizer(f'\n "{record.key}": "{record.value}",', add_special_tokens=False)["input_ids"]
    (size,) = {probe.prompt.size + probe.answer.size for probe in probes}
    assert 500 - len(pair) < size <= 500


def test_a_length_without_room_for_two_pairs_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    (record,) = generate_key_values(count=1, pairs=3, seed=0)
    with pytest.raises(SpecError, match="at least two pairs"):
        key_value_probes(tokenizer, record, length=250, depths=DEPTHS)


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
    path = lines_of(tmp_path / name, first, "", line("a", "1", ("a", "1"), ("b", "2")))
    one, two = read_key_values(path, count=9)
    assert (one.key, one.value, one.others) == ("b", "2", (("a", "1"), ("c", "3")))
    assert two.others == (("b", "2"),)
    assert read_key_values(path, count=1) == [one]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{not json", "line 1"),
        ('{"key": "a", "value": "1"}', "ordered_kv_records"),
        ('{"key": "a", "value": "1", "ordered_kv_records": [["a"]]}', "row 1"),
        (line("a", "1", ("a", "2")), "must be among"),
        (line("a", "1", ("a", "1")), "at least two pairs; 'a' is alone"),
        ("", "at least one record"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_key_values(lines_of(tmp_path / "pairs.jsonl", text), count=9)
