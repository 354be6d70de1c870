"""Who trains what when: a seeded bijection per epoch and the position in it.

Sequence at place k of an epoch is `permutation(n, seed, epoch)(k)`: random access with O(1) memory, so a resumed run
at any world size finds its place from two numbers. The bijection is a Feistel network over the next power of four
above n with cycle walking (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002): an output
outside [0, n) is enciphered again until it lies inside, at most four times on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fsdp_job.errors import JobUsageError

_ROUNDS = 8
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Position:
    """How far the whole job has read: `index` sequences of epoch `epoch` are consumed. Independent of the world
    size."""

    epoch: int = 0
    index: int = 0

    def advance(self, count: int, n: int) -> Position:
        """The position after `count` more sequences of a split of `n`; a finished epoch is (epoch + 1, 0)."""
        epochs, index = divmod(self.index + count, n)
        return Position(self.epoch + epochs, index)


def mix64(values: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014) on a uint64 array: every input bit reaches every output
    bit."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key64(*parts: int) -> np.uint64:
    """One 64-bit key of several integers; their order matters and negative ones are fine."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix64(state ^ np.array([part & _MASK64], dtype=np.uint64))
    return np.uint64(state[0])


def permute(places: np.ndarray, *, n: int, seed: int, epoch: int) -> np.ndarray:
    """Sequence numbers at `places` (int array of values in [0, n)) of an epoch; a bijection of [0, n). Returns
    int64."""
    places = np.asarray(places)
    if places.size and (places.min() < 0 or places.max() >= n):
        raise ValueError(f"places must lie in [0, {n}), got {places.min()} to {places.max()}")
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = [key64(seed, epoch, half, number) for number in range(_ROUNDS)]
    result = _encipher(places.astype(np.uint64), half, keys)
    outside = np.flatnonzero(result >= n)
    while outside.size:
        result[outside] = _encipher(result[outside], half, keys)
        outside = outside[result[outside] >= n]
    return result.astype(np.int64)


def _encipher(values: np.ndarray, half: int, keys: list[np.uint64]) -> np.ndarray:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (mix64(right ^ key) & mask)
    return (left << shift) | right


class Order:
    """The permutations of a split's epochs, some thousand places at a time: one place alone costs nearly as much."""

    BLOCK = 4096

    def __init__(self, n: int, seed: int) -> None:
        self._n, self._seed = n, seed
        self._block = lru_cache(maxsize=4)(self._compute)

    def numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """`permute` of ascending places."""
        first, last = int(places[0]) // self.BLOCK, int(places[-1]) // self.BLOCK
        if first == last:
            return self._block(epoch, first)[places % self.BLOCK]
        blocks = places // self.BLOCK
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        runs = np.split(places, cuts)
        return np.concatenate([self._block(epoch, int(run[0]) // self.BLOCK)[run % self.BLOCK] for run in runs])

    def _compute(self, epoch: int, block: int) -> np.ndarray:
        places = np.arange(block * self.BLOCK, min(self._n, (block + 1) * self.BLOCK))
        return permute(places, n=self._n, seed=self._seed, epoch=epoch)


def step_places(position: Position, count: int, n: int) -> list[tuple[int, np.ndarray]]:
    """The next `count` places as (epoch, places) runs: an epoch's rest is followed by the next epoch's first places."""
    runs: list[tuple[int, np.ndarray]] = []
    epoch, index = position.epoch, position.index
    while count > 0:
        if index >= n:
            epoch, index = epoch + 1, 0
        taken = min(count, n - index)
        runs.append((epoch, np.arange(index, index + taken, dtype=np.int64)))
        index += taken
        count -= taken
    return runs


@dataclass(frozen=True, kw_only=True)
class Split:
    """Sequences [0, total) divided into a held-out part of `n_eval` and the rest, by a permutation of the seed."""

    total: int
    n_eval: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.n_eval < self.total:
            raise JobUsageError(
                f"eval_sequences must leave sequences to train on: got {self.n_eval} of {self.total} sequences; "
                "lower --eval-sequences, shorten --seq-len or give more text"
            )

    @property
    def n_train(self) -> int:
        return self.total - self.n_eval

    def eval_ids(self) -> np.ndarray:
        """The held-out sequence numbers, ascending (int64)."""
        chosen = permute(np.arange(self.n_eval), n=self.total, seed=self.seed, epoch=-1)
        return np.sort(chosen)

    def edge_ids(self) -> np.ndarray:
        """Sequences, ascending, whose successor in the stream belongs to the other split."""
        held_out = self.eval_ids()
        near = np.union1d(held_out - 1, held_out)
        near = near[(near >= 0) & (near < self.total - 1)]
        return near[contains(held_out, near) != contains(held_out, near + 1)]


def contains(ascending: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Whether each of `ids` is among the `ascending` ones."""
    if not ascending.size:
        return np.zeros(len(ids), dtype=bool)
    return ascending[np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)] == ids


def train_ids(numbers: np.ndarray, eval_ids: np.ndarray) -> np.ndarray:
    """Sequence numbers of the `numbers`-th training sequences: the j-th number that is not in `eval_ids`
    (ascending)."""
    return numbers + np.searchsorted(eval_ids - np.arange(len(eval_ids)), numbers, side="right")
