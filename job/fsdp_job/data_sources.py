"""`--dataset` to the sorted list of files it means."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path

from fsdp_job.data_formats import ALLOWED, Piece, Source, is_supported, split
from fsdp_job.data_store import filesystem, first_line
from fsdp_job.errors import JobUsageError

CONTENT_DIGEST_LIMIT = 256 << 20
"""Local data sets up to this size (bytes) are identified by content, larger ones by size and modification time: the
job's own folder is unpacked anew for each submission, with new times."""

_GLOB = re.compile(r"[*?\[]")
FORMS = "a path, folder or glob, s3://bucket/prefix, hf://owner/name, or random"


def find_sources(dataset: str, *, own: Sequence[str] = ()) -> list[Source]:
    """The data set's files, sorted by name, without those under the folders `own`, which the job itself writes.

    Raises JobUsageError where there is none, with what was found instead.
    """
    if dataset.startswith("s3://"):
        sources = _find_s3(dataset, own)
    elif dataset.startswith("hf://"):
        from fsdp_job.data_hub import find_hub

        sources = find_hub(dataset)
    elif "://" in dataset and not Path(dataset).exists():
        raise JobUsageError(f"--dataset {dataset}: unknown kind of place; allowed: {FORMS}")
    else:
        try:
            sources = _find_local(dataset, own)
        except OSError as error:
            raise JobUsageError(
                f"--dataset {dataset}: {error.filename} cannot be read: {error.strerror}; check its permissions, "
                "and that nothing changes the folder meanwhile"
            ) from error
    return sorted(sources, key=lambda source: source.name)


def group_units(sources: Iterable[Source], unit_bytes: int) -> list[list[Piece]]:
    """Pieces in document order, grouped into units of about `unit_bytes`: the work of one task each."""
    units: list[list[Piece]] = []
    filled = unit_bytes
    for source in sources:
        for piece in split(source, unit_bytes):
            if filled >= unit_bytes:
                units.append([])
                filled = 0
            units[-1].append(piece)
            filled += source.size if piece.end is None else unit_bytes
    return units


def choose_readable(dataset: str, names: list[str], *, explicit: bool) -> set[str]:
    """The names to read. Of a folder with parquet or jsonl files only those: the rest is cards and metadata."""
    readable = [name for name in names if is_supported(name, explicit=explicit)]
    if explicit:
        refused = sorted(set(names) - set(readable))
        if refused:
            raise JobUsageError(f"--dataset {dataset}: {refused[0]} is of a kind that is not read; allowed: {ALLOWED}")
    else:
        tables = [name for name in readable if re.search(r"\.(parquet|pq|jsonl(\.gz)?|ndjson(\.gz)?)$", name.lower())]
        readable = tables or readable
    if not readable:
        kinds = sorted({Path(name).suffix or "no suffix" for name in names})
        found = f"{len(names)} other files ({', '.join(kinds[:8])})" if names else "no file at all"
        raise JobUsageError(f"--dataset {dataset} holds no readable file, but {found}; allowed: {ALLOWED}")
    return set(readable)


def is_hidden(name: str) -> bool:
    """Files and folders that writers and editors leave: .git, __pycache__, _temporary of Spark."""
    return any(part.startswith(".") or part in ("__pycache__", "_temporary") for part in name.split("/"))


def _is_under(location: str, folders: Sequence[str]) -> bool:
    return any(location.startswith(f"{folder}/") for folder in folders)


def glob_to_regex(pattern: str) -> re.Pattern[str]:
    """A shell pattern over whole names: `*` and `?` stay within a folder, `**` crosses folders."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return re.compile(
        "".join(parts.get(t, t if t.startswith("[") and t.endswith("]") else re.escape(t)) for t in tokens)
    )


def _find_local(dataset: str, own: Sequence[str]) -> list[Source]:
    given = Path(dataset).expanduser()
    if given.is_file():
        root, paths, explicit = given.parent, [given], True
    elif given.is_dir():
        found = [path for path in given.rglob("*") if path.is_file()]
        root, explicit = given, False
        paths = [path for path in found if not is_hidden(path.relative_to(given).as_posix())]
    elif _GLOB.search(str(given)):
        matches = glob(str(given), recursive=True)  # noqa: PTH207  # Path.glob refuses absolute patterns
        paths = [path for path in map(Path, matches) if path.is_file()]
        if not paths:
            raise JobUsageError(
                f"--dataset {dataset}: no file matches the pattern (seen from {Path.cwd()}); allowed: {FORMS}"
            )
        root, explicit = Path(os.path.commonpath([path.parent for path in paths])), True
    else:
        raise JobUsageError(
            f"--dataset {dataset} does not exist (seen from {Path.cwd()}); allowed: {FORMS}. "
            "A path must exist where the job runs: put small files into the job's folder, large ones "
            "into s3:// or a shared folder"
        )
    paths = [path for path in paths if not _is_under(str(path.absolute()), own)]
    names = {path.relative_to(root).as_posix(): path for path in paths}
    sources = []
    for name in choose_readable(dataset, list(names), explicit=explicit):
        path, status = names[name], names[name].stat()
        absolute = path.absolute()
        inside = absolute.is_relative_to(Path.cwd())
        relative = absolute.relative_to(Path.cwd()).as_posix() if inside else ""
        stamp = f"mtime {status.st_mtime_ns}"
        sources.append(Source(name=name, location=str(absolute), size=status.st_size, stamp=stamp, relative=relative))
    if sum(source.size for source in sources) <= CONTENT_DIGEST_LIMIT:
        sources = [replace(source, stamp=f"content {_digest(Path(source.location))}") for source in sources]
    return sources


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _find_s3(dataset: str, own: Sequence[str]) -> list[Source]:
    from pyarrow import fs

    system, path = filesystem(dataset)
    pattern = None
    if _GLOB.search(path):
        pattern = glob_to_regex(path)
        path = path[: _GLOB.search(path).start()].rpartition("/")[0]  # type: ignore[union-attr]
    try:
        info = system.get_file_info(path)
        if info.type == fs.FileType.File:
            found, root, explicit = [info], path.rpartition("/")[0], True
        else:
            found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=False))
            root, explicit = path, pattern is not None
    except OSError as error:
        raise JobUsageError(
            f"--dataset {dataset} cannot be listed: {first_line(error)}; check bucket, prefix, region "
            "and the pod's permissions"
        ) from error
    names = {}
    for info in found:
        name = info.path[len(root) :].strip("/")
        if info.type != fs.FileType.File or _is_under(f"s3://{info.path}", own):
            continue
        if not is_hidden(name) and (pattern is None or pattern.fullmatch(info.path)):
            names[name] = info
    if pattern is not None and not names:
        raise JobUsageError(f"--dataset {dataset}: no object matches the pattern under s3://{path}; check bucket, prefix and pattern")
    return [
        Source(
            name=name, location=f"s3://{names[name].path}", size=names[name].size, stamp=f"mtime {names[name].mtime_ns}"
        )
        for name in choose_readable(dataset, list(names), explicit=explicit)
    ]
