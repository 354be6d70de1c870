"""Documents of one file or one part of it: parquet, jsonl and plain text, gzip allowed."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from fsdp_job.data_store import StorageError, first_line, open_input
from fsdp_job.errors import JobError, JobUsageError

Format = Literal["parquet", "jsonl", "text"]
TEXT_COLUMNS = ("text", "content")
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_TEXT_SUFFIXES = re.compile(
    r"\.(txt|text|md|rst|py|pyi|html?|xml|tex|c|h|cc|cpp|hpp|cu|java|js|ts|go|rs|rb|sh|sql|ya?ml|toml|ini|cfg|log)"
)
_OTHER_SUFFIXES = re.compile(
    r"\.(csv|tsv|arrow|feather|orc|avro|zst|bz2|xz|zip|tar|tgz|npy|npz|bin|pt|safetensors|pyc|so|png|jpe?g|pdf)"
)
ALLOWED = "parquet or jsonl with a column text or content, or plain text (.txt, .py, …); each but parquet may be .gz"


class NotVisibleError(JobError):
    """A local source that this node does not have (the driver has): its folder is not shared between nodes."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of the data set. `name` is relative to the data set's root, so that a moved copy keeps its identity."""

    name: str
    location: str  # absolute path, s3://bucket/key or hf://owner/name@revision/path
    size: int  # bytes
    stamp: str  # what changes when the content does: content digest, mtime or the hub's revision
    relative: str = ""  # path from the working directory, where it lies in it: nodes unpack the job's folder elsewhere

    @property
    def compressed(self) -> bool:
        return self.name.lower().endswith(".gz")

    @property
    def format(self) -> Format:
        return _SUFFIXES.get(_suffix(self.name), "text")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a source that one task reads: bytes [begin, end) of a jsonl file, row groups of a parquet file, or
    all."""

    source: Source
    begin: int = 0
    end: int | None = None


def _suffix(name: str) -> str:
    """What the file's name says of its content, whether or not that is compressed."""
    return PurePosixPath(name.lower().removesuffix(".gz")).suffix


def is_supported(name: str, *, explicit: bool) -> bool:
    """Whether a file of this name is read: any but known other kinds when the user named it, else known kinds only."""
    suffix = _suffix(name)
    if suffix == ".json" and not explicit:
        return False  # in a folder it is metadata far more often than text
    if suffix in _SUFFIXES:
        return not (name.lower().endswith(".gz") and _SUFFIXES[suffix] == "parquet")
    return not _OTHER_SUFFIXES.fullmatch(suffix) if explicit else bool(_TEXT_SUFFIXES.fullmatch(suffix))


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """The source's bytes, decompressed."""
    with _open_raw(source) as raw:
        if source.compressed:
            with gzip.open(raw) as file:
                yield file  # type: ignore[misc]  # GzipFile is a binary file in all but its declared base
        else:
            yield raw


@contextmanager
def _open_raw(source: Source) -> Iterator[BinaryIO]:
    if source.location.startswith("hf://"):
        from fsdp_job.data_hub import download

        with download(source.location).open("rb") as file:
            yield file
    elif source.location.startswith("s3://"):
        with open_input(source.location) as native:
            yield io.BufferedReader(native, 1 << 20)  # type: ignore[type-var]  # Arrow's file has readinto
    else:
        paths = [Path(path) for path in (source.location, source.relative) if path]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            raise NotVisibleError(
                f"{source.location} does not exist on this node; use s3:// or a folder that all nodes share"
            )
        with path.open("rb") as file:
            yield file


def documents(piece: Piece) -> Iterator[bytes]:
    """The piece's documents in order, as UTF-8. Raises JobUsageError that names the file where it cannot be read."""
    source = piece.source
    read = {"parquet": _parquet, "jsonl": _jsonl, "text": _text}[source.format]
    try:
        with open_source(source) as file:
            yield from read(piece, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise JobUsageError(f"{source.location} is not a whole gzip file: {first_line(error)}; copy it again") from error
    except OSError as error:
        raise StorageError(f"{source.location} cannot be read: {first_line(error)}") from error


def split(source: Source, unit_bytes: int) -> list[Piece]:
    """Pieces of about `unit_bytes`, in order, whose documents together are the source's. They depend on the file
    only."""
    if source.size <= unit_bytes or source.compressed or source.format == "text":
        return [Piece(source=source)]
    if source.format == "jsonl":
        return [
            Piece(source=source, begin=begin, end=min(begin + unit_bytes, source.size))
            for begin in range(0, source.size, unit_bytes)
        ]
    with open_source(source) as file:
        metadata = _open_parquet(source, file).metadata
        pieces, begin, size = [], 0, 0
        for group in range(metadata.num_row_groups):
            size += metadata.row_group(group).total_byte_size
            if size >= unit_bytes or group == metadata.num_row_groups - 1:
                pieces.append(Piece(source=source, begin=begin, end=group + 1))
                begin, size = group + 1, 0
        return pieces


def _open_parquet(source: Source, file: BinaryIO) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except pa.ArrowException as error:
        raise JobUsageError(f"{source.location} is not a whole parquet file: {first_line(error)}; copy it again") from error


def _parquet(piece: Piece, file: BinaryIO) -> Iterator[bytes]:
    import pyarrow as pa

    source = piece.source
    parquet = _open_parquet(source, file)
    names = parquet.schema_arrow.names
    column = next((name for name in TEXT_COLUMNS if name in names), None)
    if column is None:
        raise _no_text(source.location, names)
    groups = range(piece.begin, parquet.metadata.num_row_groups if piece.end is None else piece.end)
    try:
        for batch in parquet.iter_batches(batch_size=1024, row_groups=list(groups), columns=[column]):
            for value in batch.column(0).cast(pa.large_string()).cast(pa.large_binary()).to_pylist():
                if value:
                    yield value
    except pa.ArrowException as error:
        raise JobUsageError(
            f"{source.location}: column {column} cannot be read as text: {first_line(error)}; give a file whose column holds strings"
        ) from error


def _jsonl(piece: Piece, file: BinaryIO) -> Iterator[bytes]:
    source = piece.source
    position = piece.begin
    if position:  # a line belongs to the piece in which it begins
        file.seek(position - 1)
        position += len(file.readline()) - 1
    for line in iter(file.readline, b""):
        if piece.end is not None and position >= piece.end:
            return
        at = f"{source.location}, byte {position}"
        position += len(line)
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter for thousands of brackets within one another
            raise JobUsageError(
                f"{at}: not a JSON object on one line ({error}); jsonl holds one object a line"
            ) from error
        if not isinstance(row, dict):
            raise JobUsageError(
                f"{at}: expected a JSON object, got {type(row).__name__}; jsonl holds one object a line"
            )
        column = next((name for name in TEXT_COLUMNS if name in row), None)
        if column is None:
            raise _no_text(at, list(row))
        value = row[column]
        if value is not None and not isinstance(value, str):
            raise JobUsageError(f"{at}: {column} must be a string, got {type(value).__name__}; correct that line")
        if value:
            yield value.encode("utf-8", "replace")  # JSON allows lone surrogates, UTF-8 does not


def _text(piece: Piece, file: BinaryIO) -> Iterator[bytes]:
    content = file.read()
    if b"\0" in content[:8192]:
        raise JobUsageError(f"{piece.source.location} is not text (it holds zero bytes); allowed: {ALLOWED}")
    if content:
        yield content


def _no_text(where: str, names: list[str]) -> JobUsageError:
    return JobUsageError(
        f"{where} has no column {' or '.join(TEXT_COLUMNS)}; its columns: {', '.join(names) or 'none'}. "
        "Rename the column that holds the text, or write it out as jsonl"
    )
