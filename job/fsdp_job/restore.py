"""From a checkpoint back into a model and optimizer, at any world size; damaged checkpoints are found and passed over."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pyarrow import fs as pafs
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemBase

from fsdp_job.checkpoint import Tensors, _short
from fsdp_job.errors import CheckpointError
from fsdp_job.ranks import broadcast_from_first
from fsdp_job.storage import MARKER, Location, RunFolder, Saved, locate, read_saved


class _ArrowFiles(FileSystemBase):
    """What DCP's reader needs of a filesystem, over pyarrow's: ranged reads straight from S3 or a disk."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self.filesystem = filesystem

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Iterator[Any]:  # type: ignore[override]
        if mode != "rb":
            raise ValueError(f"checkpoints are only read here, got mode {mode!r}")
        with Location(self.filesystem, str(path), str(path)).open() as stream:
            yield stream

    def concat_path(self, path: str | os.PathLike, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike) -> str:
        return str(path)

    def exists(self, path: str | os.PathLike) -> bool:
        return self.filesystem.get_file_info(str(path)).type != pafs.FileType.NotFound

    def rename(self, path: str | os.PathLike, new_path: str | os.PathLike) -> None:
        self.filesystem.move(str(path), str(new_path))

    def mkdir(self, path: str | os.PathLike) -> None:
        self.filesystem.create_dir(str(path), recursive=True)

    def rm_file(self, path: str | os.PathLike) -> None:
        self.filesystem.delete_file(str(path))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return True


class _Reader(dcp.FileSystemReader):
    def __init__(self, saved: Saved) -> None:
        super().__init__(saved.location.path)
        self.fs = _ArrowFiles(saved.location.fs)  # type: ignore[assignment]
        self.path = saved.location.path


def candidates(run: RunFolder, resume: str, submission: str) -> list[Saved]:
    """Checkpoints that ``--resume`` allows, best first (rank 0 only; reads the storage).

    ``auto``: this run's newest line of descent, back to the checkpoint that it began from. ``never``: only those of this very
    submission, whose restarts must go on. A path: that checkpoint, or the newest of that run's folder; then this
    submission's own once there are any.
    """
    if resume == "auto":
        return _newest_line(run)
    saved = run.saved()
    lineage = run.current_lineage()
    mine = [s for s in saved if s.lineage == lineage and s.marker.get("submission") == submission]
    if resume == "never" or mine:
        return mine
    return [_by_path(resume)]


def _newest_line(run: RunFolder) -> list[Saved]:
    saved = run.saved()
    line, origin = run.line(run.current_lineage(), saved)
    if origin is None:
        return line
    began = locate(origin)
    gone = Saved(began, 0, 0, {}, f"{MARKER} is missing")
    return [*line, read_saved(began) or gone]  # listed though it is gone: without it the run would start anew


def _by_path(path: str) -> Saved:
    found = read_saved(locate(path)) or next(iter(_newest_line(_run_at(path))), None)
    if found is None:
        raise CheckpointError(
            f"--resume {path}: no complete checkpoint there (no folder with complete.json); "
            "give the path of one, or --resume auto"
        )
    return found


def _run_at(path: str) -> RunFolder:
    base, _, name = path.rstrip("/").rpartition("/")
    return RunFolder(base or ".", name)


def damaged_files(saved: Saved, rank: int, world_size: int) -> list[str]:
    """Names of this rank's share of the files whose size or SHA-256 is not what the marker says, with the reason."""
    bad = []
    for name, entry in sorted(saved.marker["files"].items())[rank::world_size]:
        location = saved.location.join(name)
        info = location.fs.get_file_info(location.path)
        if info.type != pafs.FileType.File:
            bad.append(f"{name} is missing")
        elif info.size != entry["bytes"]:
            bad.append(f"{name} has {info.size} bytes of {entry['bytes']}")
        else:
            digest = hashlib.sha256()
            with location.open() as stream:
                while block := stream.read(2**22):
                    digest.update(block)
            if digest.hexdigest() != entry["sha256"]:
                bad.append(f"{name} has another SHA-256")
    return bad


def load_newest(found: list[Saved], tensors: Tensors, *, exact: bool) -> tuple[Saved | None, list[str]]:
    """Fill ``tensors`` (in place) from the first undamaged checkpoint of ``found``: (that one, messages about others).

    Collective; ``found`` is rank 0's list and ignored elsewhere. None where there is no checkpoint at all; raises
    CheckpointError where there are some and none is good, or where ``exact`` (a path was given) and that one is not.
    Keys that the checkpoint lacks keep their values (another world size has no random state for every rank).
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    chosen: list[Saved] = []
    messages: list[str] = []
    paths: Any = broadcast_from_first([s.location.uri for s in found] if rank == 0 else None)
    for uri in paths:
        saved = read_saved(locate(uri))
        if saved is None:
            bad = [f"{MARKER} is missing, or cannot be read on this node"]
        else:
            bad = [saved.damage] if saved.damage else damaged_files(saved, rank, world)
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, bad)
        problems = [text for answer in everyone for text in answer]
        if not problems and saved is not None:
            try:
                reader = _Reader(saved)
                known = reader.read_metadata().state_dict_metadata
                lacks = [key for key in tensors if key not in known and not key.startswith("rng.")]
                if lacks:
                    raise CheckpointError(
                        f"it lacks {len(lacks)} tensors, first {lacks[0]}: another model's checkpoint"
                    )
                dcp.load({key: value for key, value in tensors.items() if key in known}, storage_reader=reader)
                chosen.append(saved)
                break
            except (
                Exception,
                CheckpointException,
            ) as error:  # damaged in a way that checksums cannot see, or of another model
                problems = [_short(error)]
        messages.append(f"checkpoint {uri} is not usable: {'; '.join(sorted(set(problems)))}")
        if rank == 0:
            print(messages[-1] + "; trying the one before", file=sys.stderr, flush=True)
    if paths and not chosen:
        raise CheckpointError(
            ("the checkpoint cannot" if exact else "no checkpoint of this run can")
            + f" be loaded: {messages[-1]}; --resume never starts anew"
        )
    return (chosen[0] if chosen else None), messages
