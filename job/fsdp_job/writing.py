"""Files of a checkpoint, written beside the training loop without taking its time: paced, and hashed as they are written.

On a machine that trains on its CPUs, writing and hashing at full speed take a core away from the loop (on hyperthreads a good
part of one). So a writer there works a share of the time and rests the other, until someone waits for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem

from fsdp_job.storage import Location

BLOCK = 2**20
"""Bytes written and hashed between two rests: about 2 ms of work."""

SHARE_BESIDE_CPU_TRAINING = 0.15
"""Share of the time that a writer works where the loop needs the CPUs itself."""


FREE_S = 0.05
"""Seconds of work that no loop feels: a small checkpoint is written at once."""


class Pace:
    """Rests so that the calling thread works at most ``share`` of the time, but for its first ``free_s`` seconds of work.

    ``hurry`` ends all resting for good.
    """

    def __init__(self, share: float, free_s: float = FREE_S) -> None:
        self._share, self._free_s = share, free_s
        self._hurry = threading.Event()
        self._worked = 0.0

    def begin(self) -> None:
        """Called by the thread whose work counts, before it works."""
        self._worked = time.thread_time()

    def rest(self) -> None:
        """As long as the work since the last call asks for."""
        work = time.thread_time() - self._worked
        free = min(work, self._free_s)
        self._free_s -= free
        if self._share < 1 and work > free and not self._hurry.is_set():
            self._hurry.wait((work - free) * (1 / self._share - 1))
        self._worked = time.thread_time()

    def hurry(self) -> None:
        """Someone waits: from now on at full speed."""
        self._hurry.set()


class _HashedFile:
    """A file for writing that hashes what passes and rests between blocks."""

    def __init__(self, raw: Any, pace: Pace) -> None:
        self._raw, self._pace = raw, pace
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            self._raw.write(block)
            self.sha256.update(block)
            self._pace.rest()
        return len(view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _HashingFiles(FileSystem):
    """DCP's own local files, with the SHA-256 of each that was written."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.digests: dict[str, str] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[Any]:  # type: ignore[override]
        with super().create_stream(path, mode) as raw:
            if mode != "wb":
                yield raw
                return
            stream = _HashedFile(raw, self._pace)
            yield stream
            self.digests[Path(path).name] = stream.sha256.hexdigest()

    def rename(self, path: str | os.PathLike, new_path: str | os.PathLike) -> None:
        super().rename(path, new_path)
        if Path(path).name in self.digests:
            self.digests[Path(new_path).name] = self.digests.pop(Path(path).name)


def write_sharded(state: dict[str, Any], folder: Path, group: Any, pace: Pace) -> dict[str, str]:
    """This rank's part of a DCP checkpoint, a collective of ``group``: name -> SHA-256 of each file that this rank wrote."""
    writer = dcp.FileSystemWriter(folder)
    files = _HashingFiles(pace)
    writer.fs = files
    pace.begin()
    with _without_crc():
        dcp.save(state, storage_writer=writer, process_group=group)
    return files.digests


@contextlib.contextmanager
def _without_crc() -> Iterator[None]:
    """torch.save's own CRC-32 of each tensor costs as much as SHA-256 does here and protects nothing that SHA-256 does not."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def upload(source: Path, target: Location, pace: Pace) -> None:
    """Copy a file to where the checkpoint goes, at the same pace."""
    pace.begin()  # what this thread did before is nobody's rest
    with source.open("rb") as reader, target.fs.open_output_stream(target.path, compression=None) as writer:
        while block := reader.read(4 * BLOCK):
            writer.write(block)
            pace.rest()
