import json
from pathlib import Path

import numpy as np
import pytest

from hylorada.errors import SpecError
from hylorada.text.formats import Document
from hylorada.text.tokens import TokenStore, require_disjoint, tokenise
from tests.unit.text.byte_tokens import byte_tokenizer


def two_documents() -> TokenStore:
    return TokenStore(
        tokens=np.array([5, 6, 7, 8], dtype=np.uint16),
        offsets=np.array([0, 3, 4], dtype=np.int64),
        byte_counts=np.array([3, 1], dtype=np.int64),
        fingerprint="by hand",
    )


def written(folder: Path, *texts: str) -> TokenStore:
    documents = (Document(text, text) for text in texts)
    return tokenise(documents, byte_tokenizer(), folder, progress=False)


def test_the_length_counts_documents() -> None:
    assert len(two_documents()) == 2


def test_a_document_is_the_tokens_between_two_offsets() -> None:
    assert two_documents().document(0).tolist() == [5, 6, 7]
    assert two_documents().document(-1).tolist() == [8]


def test_a_document_beyond_the_last_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="document 2 of 2"):
        two_documents().document(2)


def test_an_opened_store_is_mapped_and_read_only(tmp_path: Path) -> None:
    written(tmp_path / "s", "abc")
    store = TokenStore.open(tmp_path / "s")
    assert isinstance(store.tokens, np.memmap)
    assert not store.tokens.flags.writeable


def test_a_folder_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no prepared tokens; run `hylorada prepare`"):
        TokenStore.open(tmp_path)


def test_a_truncated_file_is_noticed(tmp_path: Path) -> None:
    written(tmp_path / "s", "abc")
    with (tmp_path / "s" / "tokens.bin").open("ab") as file:
        file.truncate(5)
    with pytest.raises(SpecError, match="must have 8 bytes; got 5"):
        TokenStore.open(tmp_path / "s")


def test_another_schema_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "s", "abc")
    meta = tmp_path / "s" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"schema": 99}))
    with pytest.raises(SpecError, match="written as schema 99"):
        TokenStore.open(tmp_path / "s")


def test_stores_that_share_a_document_are_not_disjoint(tmp_path: Path) -> None:
    train = written(tmp_path / "train", "a", "b", "c")
    test = written(tmp_path / "test", "d", "b")
    with pytest.raises(SpecError, match=r"train and test must have no document in common.* 1;"):
        require_disjoint({"train": train, "test": test})


def test_stores_without_a_common_document_are_disjoint(tmp_path: Path) -> None:
    require_disjoint({"train": written(tmp_path / "a", "a"), "test": written(tmp_path / "b", "b")})
