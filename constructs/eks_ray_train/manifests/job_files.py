"""The job's folder as a ConfigMap, sub-folders included."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eks_ray_train.errors import SettingsError

# A ConfigMap may hold 1 MiB, but CDK's handler runs `kubectl create --save-config`, which also stores the object in an
# annotation: 262,144 bytes at most, counted over all annotations
# (https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/). kubectl's JSON is longer than ours: Go
# escapes <, > and & to six characters (https://pkg.go.dev/encoding/json#Encoder.SetEscapeHTML), so both are bounded.
SIZE_LIMIT_BYTES = 240_000
ANNOTATION_LIMIT_BYTES = 260_000
ENTRY_SCRIPT = "train.py"
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_FOLDER_SEPARATOR = "--"
_SKIPPED_FOLDERS = {"__pycache__", "node_modules"}


@dataclass(frozen=True, kw_only=True)
class JobFiles:
    """A job folder, rendered: the ConfigMap, how its keys map to paths below the mount, its size as compact JSON in bytes,
    and a SHA-256 over names and contents (hex), which changes when any file does."""

    manifest: dict[str, Any]
    items: Mapping[str, str]
    size_bytes: int
    digest: str


def job_config_map(
    job_dir: Path, *, name: str, namespace: str, labels: Mapping[str, str] | None = None, require_entry: bool = True
) -> JobFiles:
    """Render all files below ``job_dir`` (hidden ones and compiled Python left out) into one ConfigMap.

    A key cannot hold a slash, so ``a/b.py`` becomes the key ``a--b.py``, and ``items`` maps it back. Text goes into ``data``
    as it is, anything that is not UTF-8 into ``binaryData``. Raises SettingsError for a missing or empty folder, for one
    without train.py (unless ``require_entry`` is false), for a file name that no key can carry, and from 240,000 bytes of
    compact JSON on (or 260,000 in kubectl's longer writing), naming the biggest files.
    """
    if not job_dir.is_dir():
        raise SettingsError(f"job_dir {job_dir} is not a folder; give the folder that holds {ENTRY_SCRIPT}")
    files = {path.relative_to(job_dir).as_posix(): path for path in sorted(job_dir.rglob("*")) if _wanted(path, job_dir)}
    if not files:
        raise SettingsError(f"job_dir {job_dir} holds no file; give the folder that holds {ENTRY_SCRIPT}")
    problems = []
    if require_entry and ENTRY_SCRIPT not in files:
        problems.append(f"job_dir {job_dir} holds no {ENTRY_SCRIPT} at its top; give the folder that does")
    items: dict[str, str] = {}
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    digest = hashlib.sha256()
    for relative, path in files.items():
        key = relative.replace("/", _FOLDER_SEPARATOR)
        if not _KEY.fullmatch(key) or len(key) > 253:
            problems.append(f"job file {relative!r}: a ConfigMap's key may hold letters, digits, '-', '_' and '.' only; rename it")
            continue
        if key in items:
            problems.append(f"job files {items[key]!r} and {relative!r} would share the key {key!r}; rename one")
            continue
        content = path.read_bytes()
        digest.update(f"{relative}\0{len(content)}\0".encode() + content)
        items[key] = relative
        try:
            data[key] = content.decode("utf-8")
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(content).decode("ascii")
    if problems:
        raise SettingsError(problems)
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "data": data,
    }
    if binary:
        manifest["binaryData"] = binary
    rendered = _compact_json(manifest)
    sizes = {items[key]: _size(_compact_json(text)) for key, text in {**data, **binary}.items()}
    if _size(rendered) >= SIZE_LIMIT_BYTES:
        raise SettingsError(_too_large(job_dir, f"{_size(rendered):,} bytes, at most {SIZE_LIMIT_BYTES - 1:,} fit", sizes))
    if _annotation_size(rendered) >= ANNOTATION_LIMIT_BYTES:
        told = f"{_annotation_size(rendered):,} bytes as kubectl writes it (<, > and & take six), at most {ANNOTATION_LIMIT_BYTES - 1:,} fit"
        raise SettingsError(_too_large(job_dir, told, sizes))
    return JobFiles(manifest=manifest, items=items, size_bytes=_size(rendered), digest=digest.hexdigest())


def _wanted(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    hidden = any(part.startswith(".") or part in _SKIPPED_FOLDERS for part in parts)
    return path.is_file() and not hidden and path.suffix not in (".pyc", ".pyo")


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _size(text: str) -> int:
    return len(text.encode("utf-8"))


def _annotation_size(text: str) -> int:
    return _size(text) + 5 * sum(text.count(character) for character in "<>&")


def _too_large(job_dir: Path, told: str, sizes: Mapping[str, int]) -> str:
    biggest = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
    listed = ", ".join(f"{path} ({count:,} bytes)" for path, count in biggest)
    return (
        f"job_dir {job_dir} makes a ConfigMap of {told}; biggest files: {listed}. "
        f"Move data out of the folder (S3, /fsx), put large files into the image, submit a working directory from S3, or "
        f"deploy a small folder and let `eks-ray-train submit` upload this one"
    )
