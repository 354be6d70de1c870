"""A run's folder, on a local disk, a shared mount or S3: one code path through pyarrow's filesystems.

Layout below ``STORAGE_PATH/RUN_NAME``: ``attempts/`` (one small file per start of the workers), ``checkpoints/``,
``tensorboard/``, ``profile/``, ``export/``.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from fsdp_job import data_store
from fsdp_job.errors import JobUsageError

MARKER = "complete.json"
READ_ATTEMPTS = 6
_NAME = re.compile(r"^step-(\d{8})-a(\d{4})$")


@dataclass(frozen=True)
class Location:
    """A folder on some filesystem; ``path`` is in that filesystem's own spelling, ``uri`` in the user's."""

    fs: pafs.FileSystem
    path: str
    uri: str

    @property
    def is_local(self) -> bool:
        """True where files can be written with ``open`` (a local disk or any mount)."""
        return isinstance(self.fs, pafs.LocalFileSystem)

    def join(self, *parts: str) -> Location:
        """The folder or file below this one."""
        base, _, query = self.uri.partition("?")
        uri = "/".join([base.rstrip("/"), *parts]) + (f"?{query}" if query else "")
        return Location(self.fs, "/".join([self.path.rstrip("/"), *parts]), uri)

    def make(self) -> None:
        """Create the folder and its parents (S3 needs none)."""
        if self.is_local:
            self.fs.create_dir(self.path, recursive=True)

    def exists(self) -> bool:
        return self.fs.get_file_info(self.path).type != pafs.FileType.NotFound

    def open(self) -> io.BufferedReader:
        """The file for reading at any place; a remote read that fails is tried again."""
        return io.BufferedReader(_PatientFile(self.fs, self.path), buffer_size=2**20)

    def read_json(self) -> Any:
        with self.open() as stream:
            return json.loads(stream.read())

    def write_json(self, value: Any) -> None:
        """Write all or nothing: a local file is renamed into place, an S3 object appears at its end anyway."""
        data = json.dumps(value, indent=1, sort_keys=True).encode()
        target = self.path + ".tmp" if self.is_local else self.path
        with self.fs.open_output_stream(target) as stream:
            stream.write(data)
        if self.is_local:
            Path(target).replace(self.path)

    def list(self, *, recursive: bool = False) -> list[Any]:
        """FileInfo of what lies in this folder; empty where it does not exist."""
        return self.fs.get_file_info(pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive))

    def delete(self) -> None:
        """Delete the folder with all in it."""
        if self.exists():
            self.fs.delete_dir(self.path)


class _PatientFile(io.RawIOBase):
    """A pyarrow file that is opened again where it stood when a read fails: a service that answers 500 once, or breaks
    off, must not make a good checkpoint look damaged."""

    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        self._fs, self._path, self._place = filesystem, path, 0
        self._file: Any = None
        self._size = int(self._try(lambda file: file.size()))

    def _try(self, action: Callable[[Any], Any]) -> Any:
        for attempt in range(READ_ATTEMPTS):
            try:
                if self._file is None:
                    self._file = self._fs.open_input_file(self._path)
                return action(self._file)
            except FileNotFoundError:
                raise
            except OSError:
                self._file = None
                if attempt == READ_ATTEMPTS - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size - self._place))
        data = self._try(lambda file: file.read_at(wanted, self._place)) if wanted else b""
        view[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def locate(uri: str) -> Location:
    """The folder that ``uri`` names: ``s3://bucket/prefix``, ``file:///…`` or a path (relative to the working folder)."""
    if "://" not in uri:
        path = Path(uri).expanduser().absolute()
        return Location(pafs.LocalFileSystem(), path.as_posix(), path.as_posix())
    try:
        filesystem, path_text = data_store.filesystem(uri)
    except (ValueError, OSError) as error:
        raise JobUsageError(
            f"--storage-path {uri}: {error}; give s3://bucket/prefix or a folder that all nodes share"
        ) from error
    return Location(filesystem, path_text, uri)


def default_storage_path() -> str:
    """Where runs go unless the user says: what the pods' environment names, else a folder in the home directory."""
    return os.environ.get("EKS_RAY_TRAIN_STORAGE_PATH") or str(Path.home() / "eks-ray-train-runs")


@dataclass(frozen=True)
class Saved:
    """One complete checkpoint: its folder and what its marker says."""

    location: Location
    step: int
    attempt: int
    marker: dict[str, Any]


def read_saved(location: Location) -> Saved | None:
    """The checkpoint in this folder, or None where no (readable) marker says that it is complete."""
    name = location.path.rstrip("/").rsplit("/", 1)[-1]
    match = _NAME.match(name)
    try:
        marker = location.join(MARKER).read_json()
    except (FileNotFoundError, ValueError):
        return None
    step, attempt = (int(match[1]), int(match[2])) if match else (int(marker["step"]), 0)
    return Saved(location, step, attempt, marker)


class RunFolder:
    """``STORAGE_PATH/RUN_NAME`` and what lies in it."""

    def __init__(self, storage_path: str, run_name: str) -> None:
        self.root = locate(storage_path).join(run_name)
        self.checkpoints = self.root.join("checkpoints")
        self.attempts = self.root.join("attempts")

    def checkpoint(self, step: int, attempt: int) -> Location:
        """The folder of one checkpoint; the attempt in its name keeps a dead attempt's half-written one apart."""
        return self.checkpoints.join(f"step-{step:08d}-a{attempt:04d}")

    def saved(self) -> list[Saved]:
        """Complete checkpoints, the newest (highest step, then attempt) first."""
        found = [read_saved(self.checkpoints.join(info.base_name)) for info in self.checkpoints.list()]
        return sorted((s for s in found if s is not None), key=lambda s: (s.step, s.attempt), reverse=True)

    def past_attempts(self) -> list[dict[str, Any]]:
        """What earlier attempts wrote when they began, in order."""
        names = sorted(info.base_name for info in self.attempts.list() if info.base_name.endswith(".json"))
        return [self.attempts.join(name).read_json() for name in names]

    def record_attempt(self, number: int, facts: dict[str, Any]) -> None:
        self.attempts.make()
        self.attempts.join(f"attempt-{number:04d}.json").write_json({"attempt": number, **facts})
