"""Batches of a prepared data set: which sequences a rank takes at each optimizer step, read ahead by a thread.

A global batch is `world_size * accumulate * micro_batch` consecutive places of the epoch's permutation; rank r takes
the r-th equal slice, cut into its micro-batches. So the set of sequences of a step depends on the position and the
global batch alone. An epoch's last places are joined by the next epoch's first: every sequence is trained once an
epoch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Literal

import numpy as np

from fsdp_job.data_cache import localize
from fsdp_job.data_order import Order, Position, Split, contains, step_places, train_ids
from fsdp_job.data_readers import RandomReader, Reader, ShardReader
from fsdp_job.data_spec import RANDOM, DataSpec, PreparedData
from fsdp_job.errors import JobUsageError
from fsdp_job.prepare import prepare

__all__ = ["Batches", "DataSpec", "Position", "PreparedData", "open_batches", "prepare"]

IGNORED = -100
"""The label that the loss leaves out (torch.nn.functional.cross_entropy's default ignore_index)."""

SplitName = Literal["train", "eval"]


class _Selector:
    """Sequence numbers of each step, and the micro-batches of one rank made of them."""

    def __init__(
        self,
        prepared: PreparedData,
        reader: Reader,
        *,
        split: SplitName,
        rank: int,
        world_size: int,
        micro_batch: int,
        accumulate: int,
    ) -> None:
        self.n = prepared.n_train if split == "train" else prepared.n_eval
        self.global_batch = world_size * micro_batch * accumulate
        self._reader, self._split = reader, split
        self._mine = slice(rank * micro_batch * accumulate, (rank + 1) * micro_batch * accumulate)
        self._shape = (accumulate, micro_batch, prepared.seq_len)
        self._order = Order(self.n, prepared.seed)
        parts = Split(total=prepared.n_total, n_eval=prepared.n_eval, seed=prepared.seed)
        self._eval_ids = parts.eval_ids()
        # The last label is the next sequence's first token: ignored where that one belongs to the other split.
        self._cut = np.zeros(0, dtype=np.int64) if prepared.dataset == RANDOM else parts.edge_ids()

    def ids(self, position: Position) -> np.ndarray:
        """Sequence numbers of this rank's step at a position; -1 fills the last step of an evaluation."""
        if self._split == "eval":
            ids = self._eval_ids[position.index : position.index + self.global_batch]
            return np.concatenate([ids, np.full(self.global_batch - len(ids), -1, dtype=np.int64)])[self._mine]
        runs = step_places(position.advance(self._mine.start, self.n), self._mine.stop - self._mine.start, self.n)
        numbers = [self._order.numbers(epoch, places) for epoch, places in runs]
        return train_ids(np.concatenate(numbers), self._eval_ids)

    def arrays(self, position: Position) -> dict[str, np.ndarray]:
        """input_ids, labels and position_ids of this rank's step: int64 [accumulate, micro_batch, seq_len]."""
        ids = self.ids(position)
        filler = ids < 0
        tokens, starts = self._reader.read(np.where(filler, self._eval_ids[0] if filler.any() else 0, ids))
        width = tokens.shape[1] - 1
        labels = tokens[:, 1:].astype(np.int64)
        labels[starts[:, 1:]] = IGNORED
        if self._cut.size:
            labels[contains(self._cut, ids), -1] = IGNORED
        labels[filler] = IGNORED
        steps = np.arange(width, dtype=np.int64)
        begun = np.maximum.accumulate(np.where(starts[:, :-1], steps, 0), axis=1)
        arrays = {"input_ids": tokens[:, :-1].astype(np.int64), "labels": labels, "position_ids": steps - begun}
        return {name: array.reshape(self._shape) for name, array in arrays.items()}

    def close(self) -> None:
        self._reader.close()


class Batches:
    """Iterates optimizer steps: a list of `accumulate` dicts of int64 tensors [micro_batch, seq_len].

    Training never ends; an evaluation goes through its split once, in steps filled up with ignored labels so that all
    ranks take equally many. `position` is after the last yielded step, `data_wait_s` what that step was waited for.
    """

    def __init__(self, selector: _Selector, position: Position, *, once: bool, prefetch: int, pin_memory: bool) -> None:
        self.position = position
        self.data_wait_s = 0.0
        self._selector, self._once, self._prefetch, self._pin = selector, once, prefetch, pin_memory
        self._ready: deque[tuple[Position, list[dict[str, Any]]] | BaseException | None] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._read_ahead, args=(position,), name="read-ahead", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Steps left of an evaluation."""
        if not self._once:
            raise TypeError("training batches have no end")
        return (
            -(-(self._selector.n - self.position.index) // self._selector.global_batch)
            if not self.position.epoch
            else 0
        )

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        started = time.perf_counter()
        with self._changed:
            while not self._ready and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StopIteration
            item = self._ready[0]
            if not isinstance(item, tuple):  # stays, so that asking again ends the same way
                if item is None:
                    raise StopIteration
                raise item
            self._ready.popleft()
            self._changed.notify_all()
        self.data_wait_s = time.perf_counter() - started
        self.position, step = item
        return step

    def _read_ahead(self, position: Position) -> None:
        selector = self._selector
        try:
            while not (self._once and position.epoch):
                step = self._tensors(selector.arrays(position))
                count = min(selector.global_batch, selector.n - position.index) if self._once else selector.global_batch
                position = position.advance(count, selector.n)
                if not self._put((position, step)):
                    return
            self._put(None)
        except BaseException as error:  # handed to the consumer, which raises it
            self._put(error)
        finally:
            selector.close()

    def _tensors(self, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        import torch

        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        if self._pin:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return [
            {name: tensor[number] for name, tensor in tensors.items()}
            for number in range(len(next(iter(tensors.values()))))
        ]

    def _put(self, item: tuple[Position, list[dict[str, Any]]] | BaseException | None) -> bool:
        with self._changed:
            while len(self._ready) >= self._prefetch and not self._closed:
                self._changed.wait()
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()
            return not self._closed

    def close(self) -> None:
        """Ends the read-ahead thread, at the latest after the step that it is reading."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_batches(
    prepared: PreparedData,
    *,
    split: SplitName,
    rank: int,
    world_size: int,
    micro_batch: int,
    accumulate: int,
    position: Position,
    prefetch: int = 2,
    pin_memory: bool = False,
) -> Batches:
    """Batches of this rank from `position` on, which any other world size with the same global batch continues exactly.

    Brings the shards to this node first. Raises JobUsageError where the split is too small, JobError for damaged data.
    """
    if min(world_size, micro_batch, accumulate, prefetch) < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"sizes must be at least 1 and rank in [0, world_size): {rank=} {world_size=} "
            f"{micro_batch=} {accumulate=} {prefetch=}"
        )
    if split == "train":
        prepared.check_global_batch(world_size * micro_batch * accumulate)
    elif prepared.n_eval < 1:
        raise JobUsageError("evaluation needs held-out sequences, got none; set --eval-sequences to at least 1")
    n = prepared.n_train if split == "train" else prepared.n_eval
    if position.epoch < 0 or not 0 <= position.index <= n:
        raise JobUsageError(
            f"{position} lies outside the {split} split of {n} sequences; the checkpoint belongs to other data, "
            "another --seq-len or another --eval-sequences: use those, or --resume never"
        )
    reader: Reader
    if prepared.dataset == RANDOM:
        reader = RandomReader(prepared.seq_len, prepared.seed, prepared.vocab_size)
    else:
        reader = ShardReader(*localize(prepared))
    selector = _Selector(
        prepared, reader, split=split, rank=rank, world_size=world_size, micro_batch=micro_batch, accumulate=accumulate
    )
    return Batches(selector, position, once=split == "eval", prefetch=prefetch, pin_memory=pin_memory)
