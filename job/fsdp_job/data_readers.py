"""Sequences by number, from the packed shards of this node or from a hash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import numpy as np

from fsdp_job.data_order import key64, mix64
from fsdp_job.data_pack import record_dtype
from fsdp_job.data_spec import Index
from fsdp_job.data_store import StorageError

Arrays = tuple[np.ndarray, np.ndarray]


class Reader(Protocol):
    """Sequences by number: tokens [n, seq_len + 1] and, of the same shape, whether a document begins there."""

    def read(self, ids: np.ndarray) -> Arrays: ...

    def close(self) -> None: ...


class ShardReader:
    """One pread a sequence. Not a memory map: a file that shrinks or a disk that fails would kill the process by
    SIGBUS, where a read says which file it was."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._record = record_dtype(index.seq_len, index.dtype)
        self._width = index.seq_len + 1
        self._shards = [(folder / shard.name, shard.header) for shard in index.shards]
        self._firsts = np.cumsum([0, *(shard.sequences for shard in index.shards)])[:-1]
        self._files: dict[int, int] = {}

    def read(self, ids: np.ndarray) -> Arrays:
        records = np.empty(len(ids), dtype=self._record)
        buffer = memoryview(records.view(np.uint8).data).cast("B")
        size = self._record.itemsize
        shards = np.searchsorted(self._firsts, ids, side="right") - 1
        places = ids - self._firsts[shards]
        for row, (shard, place) in enumerate(zip(shards.tolist(), places.tolist(), strict=True)):
            path, header = self._shards[shard]
            try:
                got = os.preadv(self._open(shard, path), [buffer[row * size : (row + 1) * size]], header + place * size)
            except OSError as error:
                raise StorageError(f"packed data {path} cannot be read: {error.strerror or error}") from error
            if got != size:
                raise StorageError(
                    f"packed data {path} is cut short: sequence {place} has {got} of {size} bytes; start the job again"
                )
        starts = np.unpackbits(records["starts"], axis=1, count=self._width)
        return records["tokens"], starts.view(bool)

    def _open(self, shard: int, path: Path) -> int:
        if shard not in self._files:
            if len(self._files) >= 256:  # stay far below the usual limit of open files
                os.close(self._files.pop(next(iter(self._files))))
            self._files[shard] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._files[shard]

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])


class RandomReader:
    """Synthetic tokens: a hash of (seed, sequence, place), the same on every machine, no file read."""

    def __init__(self, seq_len: int, seed: int, vocab_size: int) -> None:
        self._width, self._key, self._vocab_size = seq_len + 1, key64(seed, 1), np.uint64(vocab_size)

    def read(self, ids: np.ndarray) -> Arrays:
        counters: np.ndarray = ids.astype(np.uint64)[:, None] * np.uint64(self._width) + np.arange(
            self._width, dtype=np.uint64
        )
        tokens = (mix64(counters ^ self._key) % self._vocab_size).astype(np.int64)
        starts = np.zeros(tokens.shape, dtype=bool)
        starts[:, 0] = True
        return tokens, starts

    def close(self) -> None:
        """Nothing is open."""
