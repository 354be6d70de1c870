"""The packed shards as files of this node: in place where storage is a local folder that is the cache too, otherwise
copied once a node and checked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fsdp_job.data_pack import Shard
from fsdp_job.data_spec import INDEX_NAME, Index, PreparedData
from fsdp_job.data_store import StorageError, first_line, is_local, join, open_input, read_bytes, write_local
from fsdp_job.errors import JobUsageError

logger = logging.getLogger(__name__)

WAIT_S = 3600.0
"""How long a rank waits for the node's first reader, in seconds: the download of about a terabyte at 3 Gbit/s."""
_CHUNK = 8 << 20
_THREADS = 8


class NodeSetupError(JobUsageError):
    """One node lacks what others may have (a shared folder, disk space): not every rank meets it."""

    alike = False


def localize(prepared: PreparedData, *, wait_s: float = WAIT_S) -> tuple[Path, Index]:
    """(folder on this node, index) of a prepared data set; downloads what is missing or of the wrong size.

    One process a node downloads, the others wait at most `wait_s`. Raises StorageError that names the file at fault.
    """
    cache = Path(prepared.cache_dir).absolute()
    local = Path(prepared.folder) if is_local(prepared.folder) else None
    if local is not None and local.is_relative_to(cache):
        index, _ = _read_index(prepared.folder)
        for shard in index.shards:
            _check_size(local / shard.name, shard)
        return local, index
    folder = cache / "packed" / prepared.folder.rsplit("/", 1)[-1]
    if (folder / INDEX_NAME).exists():  # written after the shards: storage need not be asked
        index, _ = _read_index(str(folder))
        if not _missing(folder, index):
            return folder, index
    index, text = _read_index(prepared.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder / ".lock", wait_s):
        missing = _missing(folder, index)  # another process may have brought them meanwhile
        _check_space(folder, missing)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda shard: _fetch(prepared.folder, folder, shard), missing))
        write_local(folder / INDEX_NAME, text)
    return folder, index


def _read_index(folder: str) -> tuple[Index, bytes]:
    where = join(folder, INDEX_NAME)
    text = read_bytes(where)
    if text is None:
        raise NodeSetupError(
            f"packed data {where} is not there; it must be on s3:// or a folder that all nodes share, "
            "and be prepared by the driver first"
        )
    return Index.parse(text, where), text


def _missing(folder: Path, index: Index) -> list[Shard]:
    return [shard for shard in index.shards if _size(folder / shard.name) != shard.bytes]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _check_size(path: Path, shard: Shard) -> None:
    size = _size(path)
    if size != shard.bytes:
        state = "missing" if size is None else f"{size} of {shard.bytes} bytes"
        raise StorageError(f"packed data is damaged: {path} is {state}; start the job again, which packs it anew")


def _check_space(folder: Path, missing: list[Shard]) -> None:
    need, free = sum(shard.bytes for shard in missing), shutil.disk_usage(folder).free
    if need > free:
        raise NodeSetupError(
            f"{folder} has {free >> 20} MiB free, but {len(missing)} shards of packed data need {need >> 20} MiB; "
            "give a larger disk or another cache folder"
        )


def _fetch(source: str, folder: Path, shard: Shard) -> None:
    uri, target = join(source, shard.name), folder / shard.name
    temporary = folder / f".{shard.name}.{uuid.uuid4().hex[:8]}"
    checksum = 0
    try:
        with open_input(uri) as remote, temporary.open("wb") as out:
            while chunk := remote.read(_CHUNK):
                checksum = zlib.crc32(chunk, checksum)
                out.write(chunk)
        _check_size(temporary, shard)
        if checksum != shard.crc32:
            raise StorageError(f"packed data is damaged: {uri} has checksum {checksum:08x}, expected {shard.crc32:08x}")
        temporary.replace(target)
    except StorageError as error:
        raise StorageError(str(error).replace(str(temporary), uri)) from error
    except OSError as error:
        raise StorageError(f"{uri} cannot be copied to {target}: {first_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _one_at_a_time(path: Path, wait_s: float) -> Iterator[None]:
    """Holds an flock, which ends with its process, however that ends."""
    with path.open("a") as file:
        _lock(file, path, wait_s)
        yield  # closing the file releases the lock


def _lock(file: IO[str], path: Path, wait_s: float) -> None:
    deadline, noted = time.monotonic() + wait_s, time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                return  # no locks on this file system: each process downloads by itself, which atomic renames make safe
            raise
        now = time.monotonic()
        if now > deadline:
            raise StorageError(
                f"waited {wait_s:.0f} s for another process of this node (not {os.getpid()}) to download "
                "the packed data "
                f"(lock {path}); look for a hanging rank or a slow connection to storage"
            )
        if now - noted > 30:
            noted = now
            logger.info("waiting for another process of this node to download the packed data (%s)", path)
        time.sleep(0.1)
