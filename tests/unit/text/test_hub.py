"""The hub itself is out of reach here; `datasets` reads the same splits from a local folder."""

import json
import logging
from pathlib import Path

import pytest

from hylorada.errors import SpecError
from hylorada.text.corpus import HUB_NAME, SPLITS, documents, hub_rows, quiet_hub


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that a relative name is found by `datasets` there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


def test_hub_names_have_an_owner_a_name_and_a_configuration() -> None:
    assert HUB_NAME.fullmatch("Salesforce/wikitext:wikitext-2-raw-v1")
    assert HUB_NAME.fullmatch("imdb")
    assert not HUB_NAME.fullmatch("./folder")
    assert not HUB_NAME.fullmatch("a/b/c")
    assert not HUB_NAME.fullmatch("/absolute")


def test_rows_come_from_the_split_that_is_asked_for(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a")
    write(elsewhere / "owner/name/validation.jsonl", "b")
    rows, has_split = hub_rows("owner/name", "valid")
    assert [row["text"] for row in rows] == ["b"]
    assert has_split


def test_all_rows_come_from_all_splits(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a")
    write(elsewhere / "owner/name/test.jsonl", "b")
    rows, has_split = hub_rows("owner/name", "all")
    assert sorted(row["text"] for row in rows) == ["a", "b"]
    assert has_split


def test_a_dataset_with_one_split_leaves_the_division_to_the_caller(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a", "b")
    rows, has_split = hub_rows("owner/name", "test")
    assert [row["text"] for row in rows] == ["a", "b"]
    assert not has_split


def test_a_split_that_is_missing_says_what_there_is(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a")
    write(elsewhere / "owner/name/test.jsonl", "b")
    with pytest.raises(SpecError, match="owner/name has no valid split; it has"):
        hub_rows("owner/name", "valid")


def test_a_configuration_after_a_colon_reaches_the_hub(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a", "b")
    write(elsewhere / "owner/name/test.jsonl", "c")
    found = list(documents("owner/name:default", "train"))
    assert [document.text for document in found] == ["a", "b"]
    assert found[1].identifier == "owner/name:default:2"


def test_a_mistyped_folder_with_a_configuration_is_not_asked_of_the_hub(elsewhere: Path) -> None:
    write(elsewhere / "owner/name/train.jsonl", "a")
    with pytest.raises(SpecError, match="holds no 'owner/nmae'; did you mean 'owner/name'"):
        documents("owner/nmae:default", "train")


def test_rows_of_wikitext_are_one_text_joined_by_two_newlines(elsewhere: Path) -> None:
    write(elsewhere / "owner/wikitext/train.jsonl", "x")
    write(elsewhere / "owner/wikitext/test.jsonl", "", " = Title = \n", "", " Body . \n")
    (document,) = documents("owner/wikitext:default", "test")
    assert document.text == "\n\n = Title = \n\n\n\n\n Body . \n"


def test_a_dataset_with_one_split_is_divided_by_hash(elsewhere: Path) -> None:
    texts = {f"document {number}" for number in range(60)}
    write(elsewhere / "owner/name/train.jsonl", *sorted(texts))
    parts = [list(documents("owner/name:default", split)) for split in SPLITS]
    assert {document.text for part in parts for document in part} == texts
    assert sum(map(len, parts)) == 60


def test_the_hub_is_quiet_about_its_retries_inside_the_block_only() -> None:
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    with quiet_hub():
        assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING)
    assert logger.level == before
