"""Attention inside shifted groups is the dense mask's, at the price of the groups alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hylorada.seeds import generator
from hylorada.training.shifted_attention import shifted_attention
from tests.reference import shifted_attention as reference

GROUP = 4
TIME = 15
# Two rows of documents that end where no group of four does.
DOCUMENTS = [[0] * 6 + [1] * 9, [0] * 3 + [1] * 4 + [2] * 5 + [3] * 3]


def states(heads: int, kv_heads: int, time: int) -> list[Tensor]:
    draws = generator(7, "states")
    return [
        torch.randn(2, time, count, 8, dtype=torch.float64, generator=draws)
        .transpose(1, 2)
        .requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


def compare(
    given: list[Tensor],
    *,
    group_size: int,
    documents: list[list[int]] | None = None,
    scaling: float | None = None,
) -> None:
    """Compare the fast path with the dense mask, outputs and gradients."""
    fast = shifted_attention(
        *given,
        group_size=group_size,
        earliest=None if documents is None else earliest_of(documents),
        scaling=scaling,
    )
    slow = reference.attention(*given, group_size=group_size, documents=documents, scaling=scaling)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
    upstream = torch.randn(fast.shape, dtype=fast.dtype, generator=generator(1, "upstream"))
    gradients = torch.autograd.grad(fast, given, upstream)
    expected = torch.autograd.grad(slow, given, upstream)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)


def earliest_of(documents: list[list[int]]) -> Tensor:
    return torch.tensor([[row.index(document) for document in row] for row in documents])


def test_a_row_of_six_tokens_in_groups_of_four_sees_what_the_drawing_says() -> None:
    """Equal scores make each output the mean of the visible values, here one-hot vectors."""
    query = key = torch.zeros(1, 2, 6, 6)
    value = torch.eye(6).expand(1, 2, 6, 6)
    attended = shifted_attention(query, key, value, group_size=4)
    straight = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [4], [4, 5]]
    shifted = [[0], [0, 1], [2], [2, 3], [2, 3, 4], [2, 3, 4, 5]]
    for head, drawing in enumerate((straight, shifted)):
        for token, seen in enumerate(drawing):
            expected = torch.zeros(6)
            expected[seen] = 1 / len(seen)
            torch.testing.assert_close(attended[0, token, head], expected)


@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 12, 17])
@pytest.mark.parametrize("group_size", [2, 4, 5, 32])
def test_any_length_and_group_size_equal_the_dense_mask(time: int, group_size: int) -> None:
    compare(states(4, 4, time), group_size=group_size)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (3, 3), (4, 2), (9, 3), (5, 1), (2, 1)])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
def test_shared_key_heads_equal_the_dense_mask(
    heads: int, kv_heads: int, documents: list[list[int]] | None
) -> None:
    compare(states(heads, kv_heads, TIME), group_size=GROUP, documents=documents)


def test_a_given_scaling_is_used() -> None:
    compare(states(2, 2, TIME), group_size=GROUP, scaling=1.7)


def test_float32_errs_at_most_twice_as_much_as_the_dense_form() -> None:
    exact = [tensor.detach() for tensor in states(4, 2, 67)]
    rounded = [tensor.float() for tensor in exact]
    truth = reference.attention(*exact, group_size=16)
    plain = (reference.attention(*rounded, group_size=16) - truth).abs().max()
    fast = (shifted_attention(*rounded, group_size=16) - truth).abs().max()
    assert fast <= 2 * plain


def test_dropout_drops_attention_weights() -> None:
    given = states(2, 2, TIME)
    dropped = shifted_attention(*given, group_size=GROUP, dropout=0.5)
    assert not torch.equal(dropped, shifted_attention(*given, group_size=GROUP))


def test_operations_fall_with_the_group_size() -> None:
    """4096 tokens in 8 groups: an eighth of the pairs, less what short end groups save."""

    def operations(attend: Callable[[], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter:
            attend().sum().backward()
        return counter.get_total_flops()

    given = [torch.empty(1, 4, 4096, 16, device="meta", requires_grad=True) for _ in range(3)]
    query, key, value = given
    full = operations(
        lambda: nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    )
    grouped = operations(lambda: shifted_attention(*given, group_size=512))
    assert grouped / full == pytest.approx((8 + 7.5) / 2 / 64, rel=1e-6)
