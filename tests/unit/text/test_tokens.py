import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase

from hylorada.errors import SpecError
from hylorada.text.formats import Document
from hylorada.text.tokens import TokenStore, tokenise, tokenizer_fingerprint
from tests.unit.text.byte_tokens import byte_tokenizer

TEXTS = ("first", "zweiß", "", "last")


class PowerCutError(Exception):
    """Stands for a machine that goes away in the middle of the corpus."""


def stream(*texts: str) -> Iterator[Document]:
    return (Document(f"document {number}", text) for number, text in enumerate(texts))


def interrupted(*texts: str) -> Iterator[Document]:
    yield from stream(*texts)
    raise PowerCutError


def prepared(folder: Path, *texts: str, boundary: str = "auto") -> TokenStore:
    return tokenise(
        stream(*texts), byte_tokenizer(), folder, boundary=boundary, shard_bytes=4, progress=False
    )


def spied(tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Return the tokenizer and a list of the texts it encodes from now on."""
    seen: list[str] = []

    class Spied(type(tokenizer)):
        def __call__(self, texts, **options):
            seen.extend(texts)
            return super().__call__(texts, **options)

    tokenizer.__class__ = Spied
    return tokenizer, seen


def test_documents_decode_to_their_texts(tmp_path: Path) -> None:
    store = prepared(tmp_path / "s", *TEXTS)
    tokenizer = byte_tokenizer()
    decoded = [tokenizer.decode(store.document(index).tolist()) for index in range(4)]
    assert decoded == [f"{text}<end>" for text in TEXTS]


def test_counts_are_those_of_the_utf8_bytes(tmp_path: Path) -> None:
    store = prepared(tmp_path / "s", *TEXTS)
    assert store.byte_counts.tolist() == [5, 6, 0, 4]
    assert store.offsets.tolist() == [0, 6, 13, 14, 19]
    assert store.tokens.dtype == np.uint16


def test_a_boundary_can_be_left_out(tmp_path: Path) -> None:
    store = prepared(tmp_path / "s", *TEXTS, boundary="none")
    assert store.offsets.tolist() == [0, 5, 11, 11, 15]


def test_a_boundary_can_begin_a_document(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<end>"
    store = tokenise(stream("ab"), tokenizer, tmp_path / "s", boundary="bos", progress=False)
    assert store.tokens.tolist()[0] == 0
    assert len(store.tokens) == 3


def test_a_boundary_the_tokenizer_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no bos token; choose boundary 'none'"):
        prepared(tmp_path / "s", *TEXTS, boundary="bos")


def test_without_an_end_token_auto_adds_nothing(tmp_path: Path) -> None:
    store = tokenise(stream("ab"), byte_tokenizer(end=None), tmp_path / "s", progress=False)
    assert len(store.tokens) == 2


def test_an_unknown_boundary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="boundary must be one of"):
        prepared(tmp_path / "s", *TEXTS, boundary="both")


def test_a_large_vocabulary_needs_four_bytes(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(2**16)])
    store = tokenise(stream("<65535>"), tokenizer, tmp_path / "s", progress=False)
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist() == [257 + 65535, 0]


def test_an_interrupted_preparation_tokenises_only_what_is_missing(tmp_path: Path) -> None:
    tokenizer, seen = spied(byte_tokenizer())
    with pytest.raises(PowerCutError):
        tokenise(
            interrupted("first", "zweiß", "x"),
            tokenizer,
            tmp_path / "s",
            shard_bytes=4,
            progress=False,
        )
    assert not (tmp_path / "s").exists()
    assert seen == ["first", "zweiß"]
    store = tokenise(stream(*TEXTS), tokenizer, tmp_path / "s", shard_bytes=4, progress=False)
    assert seen == ["first", "zweiß", "", "last"]
    whole = prepared(tmp_path / "whole", *TEXTS)
    assert np.array_equal(store.tokens, whole.tokens)
    assert store.fingerprint == whole.fingerprint


def test_a_shard_of_changed_text_is_tokenised_again(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        tokenise(
            interrupted("first"), byte_tokenizer(), tmp_path / "s", shard_bytes=4, progress=False
        )
    store = prepared(tmp_path / "s", "other", "last")
    assert byte_tokenizer().decode(store.document(0).tolist()) == "other<end>"


def test_a_finished_folder_is_returned_without_tokenising(tmp_path: Path) -> None:
    first = prepared(tmp_path / "s", *TEXTS)
    tokenizer, seen = spied(byte_tokenizer())
    again = tokenise(stream(*TEXTS), tokenizer, tmp_path / "s", shard_bytes=4, progress=False)
    assert seen == []
    assert again.fingerprint == first.fingerprint


def test_a_finished_folder_of_other_text_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path / "s", "one")
    with pytest.raises(SpecError, match="holds other text, or tokens of another tokenizer"):
        prepared(tmp_path / "s", "two")


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo").write_text("mine")
    with pytest.raises(SpecError, match="exists and holds no tokens"):
        prepared(tmp_path, "one")
    assert (tmp_path / "photo").read_text() == "mine"


def test_the_finished_folder_holds_the_store_and_nothing_else(tmp_path: Path) -> None:
    prepared(tmp_path / "s", *TEXTS)
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {
        "tokens.bin",
        "offsets.npy",
        "byte_counts.npy",
        "text_hashes.npy",
        "meta.json",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_the_meta_file_counts_everything(tmp_path: Path) -> None:
    prepared(tmp_path / "s", *TEXTS)
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    assert (meta["documents"], meta["tokens"], meta["bytes"]) == (4, 19, 15)
    assert (meta["vocabulary"], meta["after_document"]) == (257, [0])


def test_the_fingerprint_does_not_depend_on_the_size_of_shards(tmp_path: Path) -> None:
    fine = prepared(tmp_path / "fine", *TEXTS)
    coarse = tokenise(stream(*TEXTS), byte_tokenizer(), tmp_path / "coarse", progress=False)
    assert fine.fingerprint == coarse.fingerprint


def test_the_fingerprint_depends_on_text_and_boundary(tmp_path: Path) -> None:
    stores = [
        prepared(tmp_path / "a", "one"),
        prepared(tmp_path / "b", "two"),
        prepared(tmp_path / "c", "one", boundary="none"),
    ]
    assert len({store.fingerprint for store in stores}) == 3


def test_padding_does_not_move_a_tokenizers_fingerprint() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = "<end>"
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_fingerprint(tokenizer) == before


def test_another_vocabulary_moves_a_tokenizers_fingerprint() -> None:
    tokenizer = byte_tokenizer()
    before = tokenizer_fingerprint(tokenizer)
    tokenizer.add_tokens(["<new>"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_a_tokenizer_written_in_python_has_a_fingerprint_too(tmp_path: Path) -> None:
    fewer, more = ByT5Tokenizer(extra_ids=0), ByT5Tokenizer(extra_ids=1)
    assert tokenizer_fingerprint(fewer) != tokenizer_fingerprint(more)
    store = tokenise(stream("ab"), fewer, tmp_path / "s", progress=False)
    assert store.tokens.tolist() == [ord("a") + 3, ord("b") + 3, fewer.eos_token_id]


def test_no_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no documents"):
        prepared(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_documents_without_any_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the 2 documents hold no token"):
        prepared(tmp_path / "s", "", "", boundary="none")
    assert list(tmp_path.iterdir()) == []


def test_progress_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenise(stream(*TEXTS), byte_tokenizer(), tmp_path / "s")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "4 documents" in captured.err
