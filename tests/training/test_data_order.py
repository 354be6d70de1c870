"""The seeded order of sequences: a bijection per epoch, and positions in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_job.data_order import Order, Position, Split, key64, mix64, permute, step_places, train_ids
from fsdp_job.errors import JobUsageError

SEEDS = st.integers(min_value=-(2**63), max_value=2**64)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5000), seed=SEEDS, epoch=st.integers(0, 1000))
def test_permutation_is_a_bijection_for_any_size_seed_and_epoch(n: int, seed: int, epoch: int) -> None:
    assert sorted(permute(np.arange(n), n=n, seed=seed, epoch=epoch).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 65536, 65537])
def test_permutation_is_a_bijection_around_powers_of_two(n: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n=n, seed=7, epoch=3)), np.arange(n))


def test_permutation_gives_one_place_the_same_number_as_all_places_together() -> None:
    whole = permute(np.arange(1000), n=1000, seed=5, epoch=2)
    assert [int(permute(np.array([k]), n=1000, seed=5, epoch=2)[0]) for k in (0, 1, 500, 999)] == whole[
        [0, 1, 500, 999]
    ].tolist()


def test_permutation_works_at_sizes_far_beyond_memory() -> None:
    n = 10**12 + 7
    numbers = permute(np.array([0, 1, 10**6, n - 1]), n=n, seed=1, epoch=0)
    assert len(set(numbers.tolist())) == 4
    assert (numbers >= 0).all() and (numbers < n).all()


def test_permutation_refuses_places_outside_the_epoch() -> None:
    with pytest.raises(ValueError, match=r"\[0, 10\)"):
        permute(np.array([10]), n=10, seed=0, epoch=0)


def test_permutation_differs_between_epochs_and_seeds() -> None:
    n, places = 1000, np.arange(1000)
    first = permute(places, n=n, seed=1, epoch=0)
    for other in (permute(places, n=n, seed=1, epoch=1), permute(places, n=n, seed=2, epoch=0)):
        # Two independent permutations agree in one place on average (Poisson); 8 has probability about 1e-6.
        assert (first == other).sum() < 8


def test_each_place_holds_each_number_about_equally_often_over_seeds() -> None:
    n, trials = 10, 2000
    counts = np.zeros((n, n))
    for seed in range(trials):
        counts[np.arange(n), permute(np.arange(n), n=n, seed=seed, epoch=0)] += 1
    chi_square = ((counts - trials / n) ** 2 / (trials / n)).sum()
    # (n - 1)**2 = 81 degrees of freedom: mean 81, standard deviation 12.7; six of them above is 157.
    assert chi_square < 157


def test_neighbours_end_up_far_apart() -> None:
    n = 10_000
    steps = np.abs(np.diff(permute(np.arange(n), n=n, seed=3, epoch=0)))
    assert abs(steps.mean() / n - 1 / 3) < 0.02  # the mean distance of two uniform places is a third
    assert (steps == 1).sum() < 12


def test_order_by_blocks_equals_the_permutation() -> None:
    n = 3 * Order.BLOCK + 17
    order = Order(n, seed=9)
    places = np.arange(Order.BLOCK - 5, 2 * Order.BLOCK + 5)
    assert np.array_equal(order.numbers(4, places), permute(places, n=n, seed=9, epoch=4))
    assert np.array_equal(order.numbers(4, np.array([n - 1])), permute(np.array([n - 1]), n=n, seed=9, epoch=4))


def test_mixing_changes_half_of_the_bits_for_one_bit_of_input() -> None:
    values = np.arange(2000, dtype=np.uint64)
    for bit in (0, 17, 63):
        flipped = np.bitwise_count(mix64(values) ^ mix64(values ^ np.uint64(1 << bit)))
        assert abs(float(flipped.mean()) - 32) < 1


def test_key_depends_on_the_order_of_its_parts() -> None:
    assert len({int(key64(1, 2)), int(key64(2, 1)), int(key64(1, 2, 0)), int(key64(-1, 2))}) == 4


def test_position_after_the_last_place_is_the_next_epoch() -> None:
    assert Position(0, 8).advance(2, 10) == Position(1, 0)
    assert Position(0, 8).advance(5, 10) == Position(1, 3)
    assert Position(2, 0).advance(25, 10) == Position(4, 5)


def test_step_across_an_epoch_takes_the_rest_and_then_the_next_epochs_first() -> None:
    runs = [(epoch, places.tolist()) for epoch, places in step_places(Position(0, 8), 5, 10)]
    assert runs == [(0, [8, 9]), (1, [0, 1, 2])]
    assert [(e, p.tolist()) for e, p in step_places(Position(0, 10), 2, 10)] == [(1, [0, 1])]


@settings(max_examples=50, deadline=None)
@given(total=st.integers(2, 400), data=st.data(), seed=SEEDS)
def test_split_is_disjoint_and_covers_everything(total: int, data: st.DataObject, seed: int) -> None:
    split = Split(total=total, n_eval=data.draw(st.integers(0, total - 1)), seed=seed)
    held_out = split.eval_ids()
    trained = train_ids(np.arange(split.n_train), held_out)
    assert len(held_out) == split.n_eval
    assert sorted([*held_out.tolist(), *trained.tolist()]) == list(range(total))


def test_split_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(JobUsageError, match=r"got 10 of 10 sequences; lower --eval-sequences"):
        Split(total=10, n_eval=10, seed=0)
