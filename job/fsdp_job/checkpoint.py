"""Sharded checkpoints: staged in memory at once, written in the background, and counted only when complete.

A checkpoint is a folder of torch.distributed.checkpoint files plus ``complete.json``, written last by rank 0 once every
rank's files lie in the storage. The marker holds size and SHA-256 of each file and all state that is no tensor (step,
data position, configuration). At most one save is in flight, on a gloo group of its own: overlapping saves on the
default group hang.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from fsdp_job.errors import CheckpointError
from fsdp_job.staging import Staging
from fsdp_job.storage import MARKER, Location, RunFolder
from fsdp_job.writing import SHARE_BESIDE_CPU_TRAINING, Pace, upload, write_sharded

Tensors = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """What became of one save. ``seconds`` from its start to the commit, ``blocking_seconds`` that the loop waited."""

    step: int
    path: str
    seconds: float
    blocking_seconds: float
    bytes: int
    committed: bool
    error: str | None = None


class Checkpointer:
    """Saves of one attempt of a run. All ranks call ``save`` and ``wait`` at the same steps.

    ``share``: of the time that the background writer works; by default all of it beside a GPU, else a part (see ``writing``).
    """

    def __init__(
        self, run: RunFolder, *, attempt: int, keep: int, device: torch.device, timeout_s: float, share: float | None = None,
        on_result: Callable[[SaveResult], None] | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.attempt = attempt
        self.keep = keep
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.rank = dist.get_rank()
        self.on_result = on_result
        self.last_good: str | None = None
        self._thread: threading.Thread | None = None
        self._result: SaveResult | None = None
        self._staging = Staging(device)
        self._share = share or (1.0 if device.type == "cuda" else SHARE_BESIDE_CPU_TRAINING)
        self._pace = Pace(self._share)

    def prepare(self, tensors: Tensors) -> None:
        """Make room for copies of ``tensors`` in the background, before the first save needs it."""
        self._staging.prepare(tensors)

    def save(self, step: int, tensors: Tensors, facts: dict[str, Any]) -> None:
        """Copy ``tensors`` to memory of the host (blocking), then write them in the background.

        Waits first for a save still in flight. ``facts`` goes into the marker (JSON values).
        """
        began = time.perf_counter()
        self.wait()
        staged = self._staging.copy(tensors)
        blocked = time.perf_counter() - began
        self._result = None
        self._pace = Pace(self._share)
        self._thread = threading.Thread(
            target=self._write, args=(step, staged, facts, began, blocked), name=f"checkpoint-{step}", daemon=True
        )
        self._thread.start()

    def wait(self) -> SaveResult | None:
        """Wait for the save in flight, if any; returns the latest save's result."""
        if self._thread is not None:
            self._pace.hurry()
            self._thread.join()
            self._thread = None
        return self._result

    @property
    def in_flight(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _write(self, step: int, staged: Any, facts: dict[str, Any], began: float, blocked: float) -> None:
        target = self.run.checkpoint(step, self.attempt)
        problem: str | None = None
        size = 0
        try:
            size = self._write_files(target, step, staged, facts)
        except (
            Exception,
            CheckpointException,
        ) as error:  # DCP's is a BaseException; the loop goes on without this checkpoint and reports it
            problem = _short(error)
            if self.rank == 0:
                self._discard(target)
        if problem is None:
            self.last_good = target.uri
        self._result = SaveResult(
            step=step, path=target.uri, seconds=time.perf_counter() - began, blocking_seconds=blocked, bytes=size,
            committed=problem is None, error=problem,
        )  # fmt: skip
        if self.on_result is not None:
            self.on_result(self._result)

    def _write_files(self, target: Location, step: int, staged: Any, facts: dict[str, Any]) -> int:
        """Write, upload, and commit; returns the bytes of all files. Raises on every rank if any rank failed."""
        folder, scratch = Path(target.path), None
        trouble: str | None = None
        try:
            if not target.is_local:
                folder = scratch = Path(tempfile.mkdtemp(prefix="checkpoint-"))
            folder.mkdir(parents=True, exist_ok=True)
        except Exception as error:
            trouble = _short(error)
        try:
            # A rank that left alone would meet the others' collectives of this save with those of its next one.
            self._agree(step, trouble)
            digests = write_sharded(staged, folder, self.group, self._pace)
            mine: dict[str, dict[str, Any]] | str
            try:
                mine = self._own_files(folder, digests)
                if scratch is not None:
                    for name in mine:
                        upload(folder / name, target.join(name), self._pace)
            except Exception as error:
                mine = _short(error)
        finally:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
        files = {name: entry for answer in self._agree(step, mine) for name, entry in answer.items()}
        self._commit(target, files, facts)
        return sum(entry["bytes"] for entry in files.values())

    def _agree(self, step: int, answer: Any) -> list[Any]:
        """Every rank's answer, by rank. Raises on every rank where one is a text (what went wrong there), or where the
        ranks are not at the same step: their files would make one checkpoint of two states."""
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, (step, answer), group=self.group)
        failed = [f"rank {rank}: {said}" for rank, (_, said) in enumerate(everyone) if isinstance(said, str)]
        if failed:
            raise CheckpointError("; ".join(failed))
        steps = sorted({at for at, _ in everyone})
        if len(steps) > 1:
            raise CheckpointError(
                f"the ranks save different steps ({', '.join(map(str, steps))}); all must save the same"
            )
        return [said for _, said in everyone]

    def _own_files(self, folder: Path, digests: dict[str, str]) -> dict[str, dict[str, Any]]:
        return {name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in digests.items()}

    def _commit(self, target: Location, files: dict[str, Any], facts: dict[str, Any]) -> None:
        """Rank 0 looks that every file is there and writes the marker; all learn the outcome. Then old ones are removed."""
        problem: list[str | None] = [None]
        if self.rank == 0:
            try:
                there = {info.base_name: info.size for info in target.list()}
                missing = [name for name, entry in files.items() if there.get(name) != entry["bytes"]]
                if missing:
                    raise CheckpointError(
                        f"{target.uri} lacks {', '.join(missing[:3])}: the storage path must be one that all nodes share"
                    )
                target.join(MARKER).write_json({**facts, "files": files, "attempt": self.attempt})
            except Exception as error:
                problem = [_short(error)]
        dist.broadcast_object_list(problem, src=0, group=self.group)
        if problem[0]:
            raise CheckpointError(problem[0])
        if self.rank == 0:
            self._remove_old(target, facts.get("lineage"))

    def _remove_old(self, newest: Location, lineage: int | None) -> None:
        """Remove what ``RunFolder.outdated`` names. ``newest`` is complete whatever happens here, so this only warns."""
        try:
            outdated = self.run.outdated(newest, lineage=lineage, keep=self.keep)
        except Exception as error:
            print(
                f"checkpoint: cannot look for old ones in {self.run.checkpoints.uri}: {_short(error)}", file=sys.stderr
            )
            return
        for old in outdated:
            try:
                old.join(MARKER).delete_file()  # first, so that one that is removed in part does not count
                old.delete()
            except Exception as error:
                print(
                    f"checkpoint: cannot remove the old {old.uri}: {_short(error)}; tried again after the next save",
                    file=sys.stderr,
                )

    def _discard(self, target: Location) -> None:
        """Remove an incomplete checkpoint; one with a marker is good, though the ranks could not agree on it."""
        try:
            if not target.join(MARKER).exists():
                target.delete()
        except Exception as error:
            print(f"checkpoint: cannot remove the incomplete {target.uri}: {_short(error)}", file=sys.stderr)


def _short(error: BaseException) -> str:
    """One line: DCP wraps each rank's error with its traceback, whose last line says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"[:500]
