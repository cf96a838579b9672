import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.specs.run import TextSpec
from hylorada.text.corpus import (
    SPLITS,
    documents,
    embedded_file,
    hashed_split,
    named_split,
)
from hylorada.text.formats import FORMATS, Document, Format, joined_rows

# The first lines of a WikiText file: rows are lines, and a blank row is one space.
WIKITEXT = " \n = Title = \n \n Body . \n"


def texts(found: Iterable[Document]) -> list[str]:
    return [document.text for document in found]


def write_rows(path: Path, rows: Iterable[str]) -> None:
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


def test_the_embedded_corpus_has_every_address_in_exactly_one_split() -> None:
    splits = {split: list(documents("sotu", split)) for split in SPLITS}
    identifiers = [document.identifier for part in splits.values() for document in part]
    assert {split: len(part) for split, part in splits.items()} == {
        "train": 184,
        "valid": 23,
        "test": 26,
    }
    assert len(set(identifiers)) == 233


def test_the_embedded_corpus_is_the_one_its_provenance_describes() -> None:
    found = list(documents("sotu", "all"))
    assert sum(len(document.text.encode()) for document in found) == 10_761_158
    assert found[0].identifier == "1790_george_washington_n"
    assert embedded_file("sotu").stat().st_size < 3_000_000
    assert (embedded_file("sotu").parent / "PROVENANCE.md").is_file()


def test_equal_texts_fall_into_the_same_split(tmp_path: Path) -> None:
    rows = [f"document {number}" for number in range(60)]
    write_rows(tmp_path / "a.jsonl", rows + rows)
    parts = [set(texts(documents(tmp_path / "a.jsonl", split))) for split in SPLITS]
    assert sum(map(len, parts)) == len(set(rows))


def test_a_hash_puts_about_a_tenth_into_test_and_valid() -> None:
    splits = [hashed_split(str(number)) for number in range(2000)]
    assert abs(splits.count("test") - 203) < 45
    assert abs(splits.count("valid") - 203) < 45


def test_split_names_are_words_of_the_file_name() -> None:
    names = ["train.txt", "wiki.valid.raw", "dev-00.jsonl", "test_2k.jsonl.xz", "latest.txt"]
    assert [named_split(Path(name)) for name in names] == ["train", "valid", "valid", "test", None]


def test_a_name_with_two_splits_is_refused() -> None:
    with pytest.raises(SpecError, match="names 2 splits"):
        named_split(Path("train_test.txt"))


def test_a_folder_reads_the_files_of_the_split_in_order_of_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "train_b.jsonl", ["b"])
    write_rows(tmp_path / "train_a.jsonl", ["a"])
    (tmp_path / "test.txt").write_text("held out")
    (tmp_path / "PROVENANCE.txt").write_text("where it is from")
    assert texts(documents(tmp_path, "train")) == ["a", "b"]
    assert texts(documents(str(tmp_path), "test")) == ["held out"]
    assert texts(documents(tmp_path, "all")) == ["held out", "a", "b"]


def test_a_missing_split_says_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("held out")
    with pytest.raises(SpecError, match="has no valid split; it has test"):
        documents(tmp_path, "valid")


def test_a_folder_without_split_names_is_divided_by_hash(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", (f"document {number}" for number in range(40)))
    (tmp_path / "b.txt").write_text("one more")
    (tmp_path / "PROVENANCE.txt").write_text("where it is from")
    parts = [texts(documents(tmp_path, split)) for split in SPLITS]
    assert sum(map(len, parts)) == 41
    assert all(hashed_split(text) == "train" for text in parts[0])


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(SpecError, match="holds no text file"):
        documents(tmp_path, "train")


def test_one_document_cannot_be_divided_but_read_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("only one")
    absent = next(split for split in SPLITS if split != hashed_split("only one"))
    with pytest.raises(SpecError, match=r"none of the 1 documents.*ask for split 'all'"):
        list(documents(path, absent))
    assert texts(documents(path, "all")) == ["only one"]


def test_documents_are_named_by_field_line_or_file(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"id": "x", "text": "a"}\n{"text": "b"}\n')
    (tmp_path / "test.txt").write_text("c")
    names = [document.identifier for document in documents(tmp_path, "test")]
    assert names == ["x", "test.jsonl:2", "test.txt"]


def test_plain_text_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(WIKITEXT)
    assert texts(documents(tmp_path, "test")) == [WIKITEXT]


def test_wikitext_rows_are_joined_by_two_newlines(tmp_path: Path) -> None:
    (tmp_path / "wiki.test.raw").write_text(WIKITEXT)
    assert texts(documents(tmp_path, "test")) == ["\n\n = Title = \n\n\n\n\n Body . \n"]


def test_wikitext_can_be_kept_or_its_blank_lines_dropped(tmp_path: Path) -> None:
    path = tmp_path / "wiki.test.raw"
    path.write_text(WIKITEXT)
    assert texts(documents(path, "test", TextSpec(lines="keep"))) == [WIKITEXT]
    dropped = texts(documents(path, "test", TextSpec(lines="drop_blank")))
    assert dropped == [" = Title = \n Body . \n"]


def test_lines_can_be_documents_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_text("first\n\nsecond")
    found = list(documents(path, "test", TextSpec(lines="documents")))
    assert found == [Document("test.txt:1", "first"), Document("test.txt:3", "second")]


def test_joining_no_rows_gives_no_text() -> None:
    assert joined_rows([], "double") == ""
    assert joined_rows([], "drop_blank") == ""


def test_replacements_reach_plain_text_and_rows(tmp_path: Path) -> None:
    spec = TextSpec(replace={"<unk>": "unk"})
    (tmp_path / "test.txt").write_text("a <unk> b")
    write_rows(tmp_path / "test.jsonl", ["<unk><unk>"])
    assert texts(documents(tmp_path, "test", spec)) == ["unkunk", "a unk b"]


def test_a_field_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"text": "t", "speech": "s"}\n')
    assert texts(documents(tmp_path, "test", TextSpec(text_field="speech"))) == ["s"]


def test_an_unclear_field_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"a": "t", "b": "s"}\n')
    with pytest.raises(SpecError, match=r"test\.jsonl, row 1,"):
        list(documents(tmp_path, "test"))


def test_an_unknown_rule_for_lines_is_refused() -> None:
    with pytest.raises(SpecError, match=r"lines must be one of auto, keep.*got 'joined'"):
        TextSpec(lines="joined")


def test_replacing_the_empty_string_is_refused() -> None:
    with pytest.raises(SpecError, match="empty string"):
        TextSpec(replace={"": "x"})


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(SpecError, match="split must be one of train, valid, test, all; got 'dev'"):
        documents("sotu", "dev")


def test_a_path_that_does_not_exist_says_what_is_accepted() -> None:
    with pytest.raises(SpecError, match=r"no text at '\./nowhere'; give 'sotu' \(embedded\)"):
        documents("./nowhere", "train")


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.zip").write_bytes(b"")
    with pytest.raises(SpecError, match="a suffix that is not read"):
        documents(tmp_path / "test.zip", "test")


def test_a_hub_name_without_a_network_ends_in_one_line() -> None:
    with pytest.raises(SpecError, match="could not be read from the hub") as caught:
        documents("nobody/nothing", "train")
    assert "\n" not in str(caught.value)


def test_a_misspelt_embedded_name_is_recognised() -> None:
    with pytest.raises(SpecError, match="did you mean 'sotu'"):
        documents("sotus", "train")


def test_a_mistyped_file_is_refused_before_the_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hylorada.text.corpus.hub_rows", None)
    for name in ("absent.txt", "owner/absent.jsonl.gz", "absent.parquet"):
        with pytest.raises(SpecError, match=f"no text at '{name}'"):
            documents(name, "train")


def test_a_format_from_outside_is_read_and_named_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS))
    FORMATS.add(
        Format(
            name="poem",
            words="a verse a line",
            suffixes=(".poem",),
            read=lambda path, spec: [Document(path.stem, path.read_text().upper())],
        )
    )
    (tmp_path / "test.poem").write_text("rose")
    assert list(documents(tmp_path, "test")) == [Document("test", "ROSE")]
    with pytest.raises(SpecError, match=r"a \.txt, .*\.parquet or \.poem file"):
        documents("./nowhere", "train")
