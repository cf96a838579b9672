"""One seed a run, one named stream a use."""

import hashlib

import torch

from hylorada.seeds import derived_seed, generator


def test_the_seed_of_a_stream_is_63_bits_of_its_names_sha256() -> None:
    digest = hashlib.sha256(b"42/blocks/3").hexdigest()
    assert derived_seed(42, "blocks", 3) == int(digest[:16], 16) // 2


def test_seeds_of_other_names_and_other_runs_differ() -> None:
    named = [(0,), (1,), (0, "a"), (0, "b"), (1, "a"), (0, "a", "b"), (0, "a", 0), (0, "a", 1)]
    assert len({derived_seed(seed, *stream) for seed, *stream in named}) == len(named)


def test_every_seed_fits_a_signed_integer_of_64_bits() -> None:
    assert all(0 <= derived_seed(seed, "stream") < 2**63 for seed in range(200))


def test_a_stream_can_be_drawn_again() -> None:
    first, second = (torch.rand(5, generator=generator(7, "noise")) for _ in range(2))
    assert torch.equal(first, second)


def test_draws_from_one_stream_move_no_other() -> None:
    expected = torch.rand(5, generator=generator(7, "noise"))
    other, wanted = generator(7, "blocks"), generator(7, "noise")
    torch.rand(100, generator=other)
    assert torch.equal(torch.rand(5, generator=wanted), expected)


def test_a_generator_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(5, generator=generator(7, "noise"))
    assert torch.equal(torch.get_rng_state(), before)
