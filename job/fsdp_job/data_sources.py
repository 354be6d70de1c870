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
    """What writers, editors and file systems leave: .git, __pycache__, _temporary of Spark, lost+found of a volume."""
    return any(part.startswith(".") or part in ("__pycache__", "_temporary", "lost+found") for part in name.split("/"))


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
    own = [*own, *map(os.path.realpath, own)]
    if given.is_file():
        root, paths, explicit = given.parent, [given], True
    elif given.is_dir():
        root, paths, explicit = given, _walk(given, own), False
    elif _GLOB.search(str(given)):
        _check_listable(str(given), own)
        paths = [path for path in map(Path, _glob(str(given))) if path.is_file()]
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
    paths = [path for path in paths if not _is_own(path, own)]
    names = {path.relative_to(root).as_posix(): path for path in paths}
    sources = []
    for name in _each_once(root, names, choose_readable(dataset, list(names), explicit=explicit)):
        path, status = names[name], names[name].stat()
        absolute = path.absolute()
        inside = absolute.is_relative_to(Path.cwd())
        relative = absolute.relative_to(Path.cwd()).as_posix() if inside else ""
        stamp = f"mtime {status.st_mtime_ns}"
        sources.append(Source(name=name, location=str(absolute), size=status.st_size, stamp=stamp, relative=relative))
    if sum(source.size for source in sources) <= CONTENT_DIGEST_LIMIT:
        sources = [replace(source, stamp=f"content {_digest(Path(source.location))}") for source in sources]
    return sources


def _walk(root: Path, own: Sequence[str]) -> list[Path]:
    """Every file below `root` but hidden and own ones, through links to folders too. OSError for a folder that cannot
    be listed: its text would be missing from the training without a word.

    Each folder once, so that a link to a folder above it ends; links come last, so that a folder goes by its own name.
    """
    found: list[Path] = []
    seen: set[str] = set()
    ahead = [str(root)]
    while ahead:
        for folder, folders, files in os.walk(ahead.pop(0), onerror=_raise):
            if (real := os.path.realpath(folder)) in seen:
                folders.clear()
                continue
            seen.add(real)
            within = (Path(folder, name) for name in sorted(folders) if not is_hidden(name))
            below = [path for path in within if not _is_own(path / "x", own)]
            folders[:] = [path.name for path in below]  # os.walk goes on into these, but for the links
            ahead += [str(path) for path in below if path.is_symlink()]
            found += [path for path in (Path(folder, name) for name in sorted(files)) if not is_hidden(path.name)]
    return [path for path in found if path.is_file()]


def _raise(error: OSError) -> None:
    raise error


def _glob(pattern: str) -> list[str]:
    return glob(pattern, recursive=True)  # noqa: PTH207  # Path.glob refuses absolute patterns


def _check_listable(pattern: str, own: Sequence[str]) -> None:
    """OSError where a folder that the pattern searches cannot be listed; glob passes over it."""
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        if not _GLOB.search(part):
            continue
        for folder in _glob("/".join(parts[:number]) + "/") if number else ["."]:
            if part == "**":
                _walk(Path(folder), own)
            elif not _is_own(Path(folder, "x"), own):
                os.scandir(folder).close()
        if part == "**":
            return


def _is_own(path: Path, own: Sequence[str]) -> bool:
    return _is_under(str(path.absolute()), own) or _is_under(os.path.realpath(path), own)


def _each_once(root: Path, names: dict[str, Path], chosen: set[str]) -> list[str]:
    """The chosen names in order, without those that lead by a link to a file that has another one: of several names of
    a file the one that goes through no link, else the first."""
    real = {name: os.path.realpath(names[name]) for name in chosen}
    linked = {name: real[name] != os.path.join(os.path.realpath(root), name) for name in chosen}  # noqa: PTH118
    kept = {real[name]: name for name in sorted(chosen, key=lambda name: (linked[name], name), reverse=True)}
    return sorted(kept.values())


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
