"""A run's folder, on a local disk, a shared mount or S3: one code path through pyarrow's filesystems.

Layout below ``STORAGE_PATH/RUN_NAME``: ``attempts/`` (one small file per start of the workers), ``checkpoints/``,
``tensorboard/``, ``profile/``, ``export/``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from fsdp_job import data_store
from fsdp_job.errors import CheckpointError, JobUsageError

MARKER = "complete.json"
READ_ATTEMPTS = 6
_NAME = re.compile(r"step-(\d{8,})-a(\d{4,})")
_ATTEMPT = re.compile(r"attempt-(\d{4,})\.json")


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
        return Location(
            self.fs, "/".join([self.path.rstrip("/"), *parts]), "/".join([self.uri.rstrip("/"), *parts])
        )  # fmt: skip

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
        """Write all or nothing: a local file is renamed into place once the disk has it (a machine that loses power would
        else leave an empty file under the name), an S3 object appears at its end anyway."""
        data = json.dumps(value, indent=1, sort_keys=True).encode()
        if self.is_local:
            data_store.write_local(Path(self.path), data)
            return
        with self.fs.open_output_stream(self.path) as stream:
            stream.write(data)

    def list(self, *, recursive: bool = False) -> list[Any]:
        """FileInfo of what lies in this folder; empty where it does not exist."""
        return self.fs.get_file_info(pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive))

    def delete(self) -> None:
        """Delete the folder with all in it."""
        if self.exists():
            self.fs.delete_dir(self.path)

    def delete_file(self) -> None:
        """Delete the file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.delete_file(self.path)


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
    """The folder that ``uri`` names: ``s3://bucket/prefix`` or a path (relative to the working folder)."""
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
    """One checkpoint: its folder and what its marker says. ``damage``: why it cannot be used, where that is known already."""

    location: Location
    step: int
    attempt: int
    marker: dict[str, Any]
    damage: str | None = None

    @property
    def lineage(self) -> int | None:
        """The attempt in which its line of descent began; None where nothing says it any more."""
        return self.marker.get("lineage")


def read_saved(location: Location) -> Saved | None:
    """The checkpoint in this folder, or None where no marker says that it is complete.

    One whose marker is there but cannot be read was complete once: it is returned with its ``damage``, since a run that took
    it for none would start anew.
    """
    match = _NAME.fullmatch(location.path.rstrip("/").rsplit("/", 1)[-1])
    damage = None
    try:
        marker = location.join(MARKER).read_json()
        if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict):
            raise ValueError("it names no files")
        if match is None:
            return Saved(location, int(marker["step"]), 0, marker)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        marker, damage = {}, f"{MARKER} is damaged ({type(error).__name__}: {error})"
    step, attempt = (int(match[1]), int(match[2])) if match else (0, 0)
    return Saved(location, step, attempt, marker, damage)


class RunFolder:
    """``STORAGE_PATH/RUN_NAME`` and what lies in it."""

    def __init__(self, storage_path: str, run_name: str) -> None:
        self.root = locate(storage_path).join(run_name)
        self.checkpoints = self.root.join("checkpoints")
        self.attempts = self.root.join("attempts")

    def checkpoint(self, step: int, attempt: int) -> Location:
        """The folder of one checkpoint; the attempt in its name keeps a dead attempt's half-written one apart."""
        return self.checkpoints.join(f"step-{step:08d}-a{attempt:04d}")

    def _folders(self) -> list[Location]:
        """Checkpoints' folders, complete or not. What else lies there (a user's own, a file of the desktop) is not ours."""
        return [
            self.checkpoints.join(info.base_name)
            for info in self.checkpoints.list()
            if info.type == pafs.FileType.Directory and _NAME.fullmatch(info.base_name)
        ]

    def saved(self) -> list[Saved]:
        """Complete checkpoints, the newest (highest step, then attempt) first; also those whose marker is damaged, with the
        line of descent that their attempt's record names."""
        found = [s for s in map(read_saved, self._folders()) if s is not None]
        found = [s if s.damage is None else replace(s, marker=self.attempt_record(s.attempt) or {}) for s in found]
        return sorted(found, key=lambda s: (s.step, s.attempt), reverse=True)

    def line(self, lineage: int | None, saved: list[Saved]) -> tuple[list[Saved], str | None]:
        """Those of ``saved`` in one line of descent, best first, and the URI that it began from if that is not among them.

        First the lineage's own, then (after a rewind by path) the one it began from and those before that, and so on.
        """
        out: list[Saved] = []
        newest = (float("inf"), float("inf"))
        while True:
            out += [s for s in saved if s.lineage in (lineage, None) and (s.step, s.attempt) <= newest and s not in out]
            record = self.attempt_record(lineage) if lineage is not None else None
            origin = (record or {}).get("resumed_from")
            began = next((s for s in saved if s.location.uri == origin), None)
            if began is None or began.lineage is None or began.lineage >= (lineage or 0):
                return out, origin if began is None else None
            lineage, newest = began.lineage, (began.step, began.attempt)

    def outdated(self, newest: Location, *, lineage: int | None, keep: int) -> list[Location]:
        """Checkpoints to remove once ``newest`` of ``lineage`` is complete: all but ``keep``, and what is incomplete.

        The line of descent counts first, then the step: after ``--resume never`` the discarded line's high steps must not
        take the places of the new one's. One with a damaged marker stays: it may be all that is left.
        """
        saved = self.saved()
        line = self.line(lineage, saved)[0]
        whole = [s for s in line + [s for s in saved if s not in line] if s.damage is None]
        known = {s.location.path for s in saved} | {newest.path}
        return [s.location for s in whole[keep:] if s.location.path != newest.path] + [
            folder for folder in self._folders() if folder.path not in known
        ]

    def past_attempts(self) -> list[dict[str, Any]]:
        """What earlier attempts wrote when they began, in order."""
        numbers = sorted(int(m[1]) for info in self.attempts.list() if (m := _ATTEMPT.fullmatch(info.base_name)))
        return [record for number in numbers if (record := self.attempt_record(number)) is not None]

    def attempt_record(self, number: int) -> dict[str, Any] | None:
        """What this attempt wrote when it began; None where it wrote nothing."""
        location = self.attempts.join(f"attempt-{number:04d}.json")
        try:
            record = location.read_json()
            return {"attempt": number, **record}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{location.uri} cannot be read ({error}); it says which line of descent the run follows: remove it to go on "
                "with that of the attempt before, or give another --run-name"
            ) from error

    def record_attempt(self, number: int, facts: dict[str, Any]) -> None:
        self.attempts.make()
        self.attempts.join(f"attempt-{number:04d}.json").write_json({"attempt": number, **facts})

    def next_attempt(self) -> int:
        """A number that no attempt had: its checkpoints' folders must be new ones, also where a record was removed."""
        names = [folder.path.rsplit("/", 1)[-1] for folder in self._folders()]
        named = [int(match[2]) for name in names if (match := _NAME.fullmatch(name))]
        return max([0, *named, *(record["attempt"] for record in self.past_attempts())]) + 1

    def current_lineage(self) -> int | None:
        """The line of descent that the latest attempt followed (without records: that of the latest attempt that saved)."""
        past = self.past_attempts()
        if past:
            return past[-1].get("lineage")
        known = [s for s in self.saved() if s.lineage is not None]
        return max(known, key=lambda s: s.attempt).lineage if known else None
