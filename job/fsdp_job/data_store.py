"""One way to files for local folders and `s3://`: pyarrow's filesystems (the container image has no s3fs)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from fsdp_job.errors import JobError, JobUsageError

CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
ATTEMPTS = 6
"""Tries of one S3 request, with waits that double (AWS's standard mode): together they bound how long a dead store
holds."""


class StorageError(JobError):
    """Storage or network failed while data was read or written: another attempt may well succeed."""

    retryable = True


def first_line(error: BaseException) -> str:
    """The first line with text in an error's message: AWS and Arrow append pages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@lru_cache(maxsize=16)
def _s3_filesystem(bucket: str, endpoint: str | None, region: str | None) -> Any:
    from pyarrow import fs

    options: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    }
    if endpoint:
        parts = urlsplit(endpoint)
        options |= {"endpoint_override": parts.netloc or parts.path, "scheme": parts.scheme or "https"}
        region = region or "us-east-1"
    else:
        # Pyarrow does not follow redirects to a bucket's region, so it asks for it first; where the answer is withheld
        # (a private network, say) the environment's region has to do.
        try:
            region = fs.resolve_s3_region(bucket)
        except OSError as error:
            if "NoSuchBucket" in str(error) or "not found" in str(error).lower():
                raise JobUsageError(f"bucket {bucket} does not exist; check the name in s3://{bucket}/…") from error
    return fs.S3FileSystem(region=region, **options) if region else fs.S3FileSystem(**options)


def filesystem(uri: str) -> tuple[Any, str]:
    """(pyarrow filesystem, path in it) of `s3://bucket/key` or a local path.

    Honours AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION.
    """
    if uri.startswith("s3://"):
        path = uri[len("s3://") :].strip("/")
        if not path:
            raise JobUsageError(f"{uri} names no bucket; write s3://bucket/prefix")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return _s3_filesystem(path.split("/", 1)[0], endpoint, region), path
    if "://" in uri:
        raise JobUsageError(f"{uri}: unknown kind of storage; allowed: s3://bucket/prefix or a path")
    from pyarrow import fs

    return fs.LocalFileSystem(), str(Path(uri).absolute())


def join(uri: str, *names: str) -> str:
    """`uri` with names appended; the same for both kinds."""
    return "/".join([uri.rstrip("/"), *names])


def is_local(uri: str) -> bool:
    return "://" not in uri


def absolute(uri: str) -> str:
    """A local path from the root, any other address as it is; without a trailing slash."""
    return (str(Path(uri).expanduser().absolute()) if is_local(uri) else uri).rstrip("/")


def open_input(uri: str) -> BinaryIO:
    """A seekable binary file for reading; errors as StorageError with the file's name."""
    system, path = filesystem(uri)
    try:
        return system.open_input_file(path)
    except OSError as error:
        raise StorageError(f"{uri} cannot be opened: {first_line(error)}") from error


@contextmanager
def open_output(uri: str) -> Iterator[BinaryIO]:
    """A new file for streaming; its folder is made where it is local. Give a unique name: it is not atomic."""
    system, path = filesystem(uri)
    try:
        if is_local(uri):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        with system.open_output_stream(path) as stream:
            yield stream
    except OSError as error:
        raise StorageError(f"{uri} cannot be written: {first_line(error)}") from error


def read_bytes(uri: str) -> bytes | None:
    """The whole of a small file; None where it does not exist."""
    from pyarrow import fs

    system, path = filesystem(uri)
    try:
        if system.get_file_info(path).type != fs.FileType.File:
            return None
        with system.open_input_stream(path) as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{uri} cannot be read: {first_line(error)}") from error


def write_bytes(uri: str, data: bytes | memoryview) -> None:
    """Writes a file so that readers see all of it or nothing: an S3 object appears when its upload completes, a local
    file by rename. Raises StorageError with the place and the cause."""
    system, path = filesystem(uri)
    try:
        if is_local(uri):
            write_local(Path(path), data)
        else:
            with system.open_output_stream(path) as stream:
                stream.write(data)
    except OSError as error:
        raise StorageError(f"{uri} cannot be written ({len(data)} bytes): {first_line(error)}") from error


def write_local(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sizes(folder: str) -> dict[str, int]:
    """Bytes of each file directly in a folder, by name; empty where the folder does not exist."""
    from pyarrow import fs

    system, path = filesystem(folder)
    try:
        found = system.get_file_info(fs.FileSelector(path, recursive=False, allow_not_found=True))
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {first_line(error)}") from error
    return {info.base_name: info.size for info in found if info.type == fs.FileType.File}


def remove(folder: str) -> None:
    """Removes a folder with all in it; one that does not exist is fine."""
    system, path = filesystem(folder)
    try:
        system.delete_dir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if sizes(folder):
            raise StorageError(f"{folder} cannot be removed: {first_line(error)}") from error


def remove_files(folder: str, names: list[str]) -> None:
    """Removes files of a folder; one that is gone already is fine."""
    system, path = filesystem(folder)
    for name in names:
        with suppress(FileNotFoundError):
            system.delete_file(f"{path}/{name}")


def remove_older(folder: str, hours: float) -> None:
    """Removes sub-folders in which nothing was written for `hours`: what a killed run left behind."""
    from datetime import UTC, datetime, timedelta

    from pyarrow import fs

    system, path = filesystem(folder)
    limit = datetime.now(UTC) - timedelta(hours=hours)
    newest: dict[str, datetime] = {}
    for info in system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True)):
        if info.type == fs.FileType.File:
            child = info.path[len(path) :].strip("/").split("/")[0]
            newest[child] = max(newest.get(child, info.mtime), info.mtime)
    for child, written in newest.items():
        if written < limit:
            remove(join(folder, child))
