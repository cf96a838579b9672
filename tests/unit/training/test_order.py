"""Any number of processes sees the same batches."""

from itertools import chain

import pytest

from hylorada.errors import SpecError
from hylorada.specs.run import TrainingSpec
from hylorada.training.loop import DealtBatches


def batches(processes: int, accumulation: int = 1, items: int = 12) -> list[list[int]]:
    """The items of each micro-step over all processes, in the order of the processes."""
    spec = TrainingSpec(batch_size=4, accumulation=accumulation, seed=7)
    dealt = [list(DealtBatches(items, spec, rank, processes)) for rank in range(processes)]
    return [list(chain(*step)) for step in zip(*dealt, strict=True)]


def test_an_epoch_visits_every_item_once() -> None:
    assert sorted(chain(*batches(1))) == list(range(12))


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_together_see_the_batches_of_one(processes: int) -> None:
    assert batches(processes) == batches(1)


def test_accumulation_cuts_batches_without_reordering() -> None:
    assert list(chain(*batches(1, accumulation=2))) == list(chain(*batches(1)))
    assert [len(batch) for batch in batches(1, accumulation=2)] == [2] * 6


def test_a_short_last_batch_is_shared_evenly() -> None:
    assert batches(2, items=10) == batches(1, items=10)
    assert [len(batch) for batch in batches(2, items=10)] == [4, 4, 2]


def test_epochs_differ_and_repeat_exactly() -> None:
    order = DealtBatches(12, TrainingSpec(batch_size=4, seed=7))
    first = list(order)
    order.epoch = 1
    second = list(order)
    order.epoch = 0
    assert list(order) == first != second


def test_the_length_is_the_number_of_micro_batches() -> None:
    order = DealtBatches(11, TrainingSpec(batch_size=4, accumulation=2))
    assert len(order) == len(list(order)) == 6


def test_items_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(SpecError, match="got 11; use 10"):
        DealtBatches(11, TrainingSpec(batch_size=4), processes=2)


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(SpecError, match="multiple of accumulation × processes, 2 × 3; got 4"):
        DealtBatches(12, TrainingSpec(batch_size=4, accumulation=2), processes=3)


def test_empty_data_is_refused() -> None:
    with pytest.raises(SpecError, match="at least one item"):
        DealtBatches(0, TrainingSpec())
