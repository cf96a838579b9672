import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from hylorada.errors import SpecError
from hylorada.text.batches import (
    PackedBlocks,
    PackedDocuments,
    PaddedDocuments,
    pad_documents,
)
from hylorada.text.tokens import TokenStore


def store_of(*lengths: int) -> TokenStore:
    """Return documents of the given lengths; the tokens count up from 1 through all of them."""
    offsets = np.array([0, *np.cumsum(lengths)], dtype=np.int64)
    return TokenStore(
        tokens=np.arange(1, offsets[-1] + 1, dtype=np.uint16),
        offsets=offsets,
        byte_counts=np.array(lengths, dtype=np.int64),
        fingerprint="counting",
    )


@pytest.fixture
def model() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()


def test_blocks_are_the_stream_without_its_incomplete_tail() -> None:
    blocks = PackedBlocks(store_of(5, 6), 4)
    assert [blocks[index]["input_ids"].tolist() for index in range(len(blocks))] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_blocks_are_long_tensors_whose_labels_are_the_tokens() -> None:
    item = PackedBlocks(store_of(8), 4)[1]
    assert item["input_ids"].dtype == item["labels"].dtype == torch.int64
    assert torch.equal(item["labels"], item["input_ids"])
    assert item["labels"].data_ptr() != item["input_ids"].data_ptr()


def test_a_count_without_a_seed_takes_the_first_blocks() -> None:
    assert PackedBlocks(store_of(40), 4, count=3).indices.tolist() == [0, 1, 2]


def test_a_seed_draws_blocks_without_replacement() -> None:
    drawn = PackedBlocks(store_of(400), 4, count=60, seed=1).indices.tolist()
    assert len(set(drawn)) == 60
    assert drawn != sorted(drawn)


def test_the_same_seed_draws_the_same_blocks_and_another_does_not() -> None:
    first, same, other = (
        PackedBlocks(store_of(400), 4, count=20, seed=seed).indices.tolist() for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    short = PackedBlocks(store_of(400), 4, count=20, seed=1).indices.tolist()
    long = PackedBlocks(store_of(400), 4, count=50, seed=1).indices.tolist()
    assert long[:20] == short


@pytest.mark.parametrize("count", [0, 3])
def test_more_blocks_than_the_text_has_are_refused(count: int) -> None:
    with pytest.raises(SpecError, match=f"count must be 1 to 2, the blocks of 4.*got {count}"):
        PackedBlocks(store_of(8), 4, count=count)


def test_a_text_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(SpecError, match="length must not exceed the 3 tokens of the text; got 4"):
        PackedBlocks(store_of(3), 4)


@pytest.mark.parametrize("dataset", [PackedBlocks, PaddedDocuments, PackedDocuments])
def test_one_token_predicts_nothing(dataset: type[PackedBlocks]) -> None:
    with pytest.raises(SpecError, match=r"length must be at least 2.*got 1"):
        dataset(store_of(3), 1)


def test_documents_are_cut_off_and_those_of_one_token_left_out() -> None:
    items = PaddedDocuments(store_of(2, 1, 0, 5), 3)
    assert [items[index]["input_ids"].tolist() for index in range(len(items))] == [
        [1, 2],
        [4, 5, 6],
    ]


@pytest.mark.parametrize("dataset", [PaddedDocuments, PackedDocuments])
def test_documents_too_short_to_predict_are_refused(dataset: type[PaddedDocuments]) -> None:
    with pytest.raises(SpecError, match="no document of at least two tokens"):
        dataset(store_of(1, 1), 4)


def test_padding_is_hidden_from_labels_and_attention() -> None:
    batch = pad_documents(list(PaddedDocuments(store_of(2, 3), 4)), pad_token_id=9)
    assert batch["input_ids"].tolist() == [[1, 2, 9], [3, 4, 5]]
    assert batch["labels"].tolist() == [[1, 2, -100], [3, 4, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_a_pad_token_that_occurs_in_the_text_is_still_a_target_there() -> None:
    batch = pad_documents(list(PaddedDocuments(store_of(2, 3), 4)), pad_token_id=4)
    assert batch["labels"].tolist() == [[1, 2, -100], [3, 4, 5]]


def test_whole_documents_share_a_row_while_they_fit() -> None:
    rows = PackedDocuments(store_of(3, 2, 4), 6, pad_token_id=9)
    assert rows[0]["input_ids"].tolist() == [1, 2, 3, 4, 5, 9]
    assert rows[0]["labels"].tolist() == [-100, 2, 3, -100, 5, -100]
    assert rows[0]["position_ids"].tolist() == [0, 1, 2, 0, 1, 0]
    assert rows[1]["input_ids"].tolist() == [6, 7, 8, 9, 9, 9]
    assert len(rows) == 2


def test_a_document_longer_than_a_row_is_cut_into_rows() -> None:
    rows = PackedDocuments(store_of(5), 3)
    assert [row["labels"].tolist() for row in rows] == [[-100, 2, 3], [-100, 5, -100]]


def test_a_packed_row_predicts_each_document_as_if_it_stood_alone(model: PreTrainedModel) -> None:
    row = PackedDocuments(store_of(3, 4), 9, pad_token_id=0)[0]
    packed = model(
        input_ids=row["input_ids"][None], position_ids=row["position_ids"][None], use_cache=False
    ).logits[0]
    alone = model(input_ids=row["input_ids"][None, 3:7], use_cache=False).logits[0]
    torch.testing.assert_close(packed[3:7], alone, atol=1e-6, rtol=1e-5)


def test_padded_documents_are_predicted_as_if_each_stood_alone(model: PreTrainedModel) -> None:
    items = list(PaddedDocuments(store_of(2, 5), 5))
    batch = pad_documents(items, pad_token_id=0)
    together = model(**batch).loss
    losses = [model(input_ids=one["input_ids"][None], labels=one["labels"][None]) for one in items]
    expected = (losses[0].loss * 1 + losses[1].loss * 4) / 5
    torch.testing.assert_close(together, expected)
