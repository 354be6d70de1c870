"""The job's folder as one zip that Ray unpacks on every node. Pure but for reading files.

The same files always give the same bytes (fixed times, sorted names), so the name is the content and nothing is sent twice.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from eks_ray_train.errors import UsageError

# Body limit of Ray's dashboard (DASHBOARD_CLIENT_MAX_SIZE in ray/_private/ray_constants.py, Ray 2.58).
LIMIT_BYTES = 100 * 1024**2
EXCLUDED_DIRS = frozenset(
    {
        ".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache",
        ".ipynb_checkpoints", ".idea", ".vscode", ".tox", ".nox", ".aws",
    }
)  # fmt: skip
EXCLUDED_FILES = frozenset({".DS_Store", ".env", ".netrc"})
EXCLUDED_SUFFIXES = (".pyc", ".pyo")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Package:
    """A zipped folder: ``name`` is the package's name in Ray's store, ``data`` the zip, ``files`` how many files it holds."""

    name: str
    data: bytes
    files: int

    @property
    def uri(self) -> str:
        """What ``runtime_env`` calls it."""
        return f"gcs://{self.name}"


def _mib(size: int) -> str:
    return f"{size / 1024**2:.1f} MiB"


def list_files(root: Path) -> list[tuple[str, Path]]:
    """(name in the zip, path) of every file to send, sorted; links are followed, each folder once.

    Raises UsageError for a link that leads nowhere.
    """
    found: list[tuple[str, Path]] = []
    seen: set[str] = set()
    for folder, names, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            names.clear()
            continue
        seen.add(real)
        names[:] = sorted(name for name in names if name not in EXCLUDED_DIRS)
        for name in files:
            if name in EXCLUDED_FILES or name.endswith(EXCLUDED_SUFFIXES):
                continue
            path = Path(folder, name)
            if not path.exists():
                raise UsageError(f"{path} is a link that leads nowhere; remove it or make its target")
            if stat.S_ISREG(path.stat().st_mode):
                found.append((path.relative_to(root).as_posix(), path))
    return sorted(found)


def _largest(files: list[tuple[str, Path]], count: int = 5) -> str:
    sizes: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for name, path in files:
        top, sep, _ = name.partition("/")
        sizes[top + sep] += path.stat().st_size
        number[top + sep] += 1
    return ", ".join(
        f"{top} {_mib(size)}" + (f" in {number[top]} files" if top.endswith("/") else "") for top, size in sizes.most_common(count)
    )


def build_package(root: Path, *, entry: str = "train.py", limit_bytes: int = LIMIT_BYTES) -> Package:
    """Zip ``root``. Raises UsageError where it is missing, lacks ``entry``, or packs to more than ``limit_bytes``."""
    if not root.is_dir():
        raise UsageError(f"no job folder {root}; run from the application's folder or name it with --job-dir")
    files = list_files(root)
    if entry not in (name for name, _ in files):
        raise UsageError(f"{root} has no {entry}, which the job's command runs; name the job's folder with --job-dir")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, path in files:
            info = zipfile.ZipInfo(name, date_time=_ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IMODE(path.stat().st_mode) | stat.S_IFREG) << 16
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                while chunk := source.read(1024**2):
                    target.write(chunk)
                    if buffer.tell() > limit_bytes:
                        raise _too_large(root, files, limit_bytes)
    data = buffer.getvalue()
    if len(data) > limit_bytes:
        raise _too_large(root, files, limit_bytes)
    return Package(name=f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip", data=data, files=len(files))


def _too_large(root: Path, files: list[tuple[str, Path]], limit_bytes: int) -> UsageError:
    total = sum(path.stat().st_size for _, path in files)
    return UsageError(
        f"{root} is too large to upload: {_mib(total)} in {len(files)} files pack to more than the limit of {_mib(limit_bytes)} "
        f"of Ray's dashboard; largest: {_largest(files)}. Move data and checkpoints out of the folder "
        "(--dataset and --storage-path read and write elsewhere)"
    )
