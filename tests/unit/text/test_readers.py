import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from hylorada.errors import SpecError
from hylorada.specs.run import TextSpec
from hylorada.text.formats import (
    format_of,
    json_rows,
    parquet_rows,
    plain_documents,
    plain_lines,
    row_documents,
    row_text,
)

ROWS = [{"text": "one"}, {"text": "zwei ß"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def written_parquet(path: Path, rows: list[dict[str, str]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def whole(path: Path) -> str:
    (document,) = plain_documents(path, TextSpec())
    return document.text


def test_the_format_of_a_file_is_that_of_the_suffix_under_the_compression() -> None:
    names = ["a.txt", "a.jsonl.xz", "wiki.test.raw", "B.PARQUET", "a.zip", "README", "a.gz"]
    found = [format_of(Path(name)) for name in names]
    expected = ["plain", "jsonl", "plain", "parquet", None, None, None]
    assert [form and form.name for form in found] == expected


def test_plain_text_keeps_line_ends_and_unicode(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("é\r\n\n".encode())
    assert whole(path) == "é\r\n\n"


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"a\.txt must be UTF-8"):
        whole(path)
    with pytest.raises(SpecError, match=r"a\.txt must be UTF-8"):
        list(plain_lines(path))


def test_a_file_that_only_claims_to_be_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(b"plain")
    with pytest.raises(SpecError, match="xz"):
        whole(path)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    packed = bytearray(gzip.compress(b"text " * 100, mtime=0))
    packed[10:12] = b"\xff\xff"
    path.write_bytes(packed)
    with pytest.raises(SpecError, match=r"a\.txt\.gz must be UTF-8 text; Error -3"):
        list(plain_lines(path))


def test_json_rows_come_from_plain_and_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES + "\n")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(LINES)
    with lzma.open(tmp_path / "a.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write(LINES)
    for path in tmp_path.iterdir():
        assert list(json_rows(path)) == ROWS


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": \n')
    with pytest.raises(SpecError, match=r"a\.jsonl, line 2, is no JSON"):
        list(json_rows(path))


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[1]\n")
    with pytest.raises(SpecError, match=r"line 1, must be a JSON object.*got list"):
        list(json_rows(path))


def test_parquet_rows_come_in_order(tmp_path: Path) -> None:
    assert list(parquet_rows(written_parquet(tmp_path / "a.parquet", ROWS))) == ROWS


def test_a_file_that_is_damaged_or_only_claims_to_be_parquet_is_refused(tmp_path: Path) -> None:
    path = written_parquet(tmp_path / "a.parquet", [{"text": f"row {n} " * 50} for n in range(99)])
    intact = path.read_bytes()
    damaged = intact[:100] + b"\xff" * 8 + intact[108:]
    for content in (damaged, b"nothing of the kind"):
        path.write_bytes(content)
        with pytest.raises(SpecError, match="must be an intact parquet file") as caught:
            list(parquet_rows(path))
        assert "\n" not in str(caught.value)


def test_the_text_is_found_under_its_usual_names_or_as_the_only_string() -> None:
    assert row_text({"title": "t", "content": "c"}, None, "row 1") == "c"
    assert row_text({"number": 3, "speech": "s"}, None, "row 1") == "s"


def test_a_chosen_field_wins_over_the_usual_names() -> None:
    assert row_text({"text": "t", "speech": "s"}, "speech", "row 1") == "s"


def test_an_unclear_field_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"`text_field`.*its fields are left, right"):
        row_text({"left": "a", "right": "b"}, None, "row 1")


def test_a_missing_chosen_field_lists_what_there_is() -> None:
    with pytest.raises(SpecError, match="row 7 has no field 'speech'; its fields are text"):
        row_text({"text": "t"}, "speech", "row 7")


def test_a_field_that_holds_no_text_is_refused() -> None:
    with pytest.raises(SpecError, match="field 'text' of row 1 must be text; got int"):
        row_text({"text": 3}, "text", "row 1")


def test_half_a_pair_of_surrogates_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'text' of row 1 must be Unicode text.*surrogates"):
        row_text(json.loads(r'{"text": "\ud83d"}'), None, "row 1")


def test_a_row_is_called_by_its_own_name_or_by_its_place() -> None:
    rows = [{"id": 7, "title": "x"}, {"id": None, "title": "x"}, {"title": ""}]
    found = row_documents([row | {"text": "t"} for row in rows], "a", TextSpec())
    assert [document.identifier for document in found] == ["7", "x", "a:3"]
