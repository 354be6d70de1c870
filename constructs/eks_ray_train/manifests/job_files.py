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
    """A job folder, rendered: its ConfigMaps, what each one's keys map to below the mount (by the ConfigMap's name), the size
    of the largest as compact JSON in bytes, and a SHA-256 over names and contents (hex), which changes when any file does."""

    manifests: tuple[dict[str, Any], ...]
    items_by_map: Mapping[str, Mapping[str, str]]
    size_bytes: int
    digest: str

    @property
    def manifest(self) -> dict[str, Any]:
        """The first ConfigMap, which is the only one unless more were allowed."""
        return self.manifests[0]

    @property
    def items(self) -> Mapping[str, str]:
        """Keys and paths of the first ConfigMap."""
        return next(iter(self.items_by_map.values()))

    @property
    def further_items(self) -> dict[str, Mapping[str, str]]:
        """The same of further ConfigMaps, by name; empty where one holds the whole folder."""
        return dict(list(self.items_by_map.items())[1:])


def job_config_map(
    job_dir: Path,
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str] | None = None,
    require_entry: bool = True,
    max_objects: int = 1,
) -> JobFiles:
    """Render all files below ``job_dir`` (hidden ones and compiled Python left out) into one ConfigMap.

    A key cannot hold a slash, so ``a/b.py`` becomes the key ``a--b.py``, and ``items`` maps it back. Text goes into ``data``
    as it is, anything that is not UTF-8 into ``binaryData``. A folder that needs more room is spread over up to
    ``max_objects`` ConfigMaps (``name``, ``name-2``, …), each file by its path alone, so that an edit moves no file.
    Raises SettingsError for a missing or empty folder, for one without train.py (unless ``require_entry`` is false), for a
    file name that no key can carry, and where a ConfigMap would have 240,000 bytes of compact JSON or more (or 260,000 in
    kubectl's longer writing), naming the biggest files.
    """
    contents = _read(job_dir, require_entry=require_entry)
    too_large = None
    for count in range(1, max_objects + 1):
        shards: list[dict[str, bytes]] = [{} for _ in range(count)]
        for relative, content in contents.items():
            shards[int.from_bytes(hashlib.sha256(relative.encode()).digest()[:4]) % count][relative] = content
        named = {name if number == 0 else f"{name}-{number + 1}": shard for number, shard in enumerate(shards)}
        manifests = tuple(_config_map(map_name, shard, namespace, labels or {}) for map_name, shard in named.items())
        told = [text for text in map(_told_if_too_large, manifests) if text]
        if not told:
            digest = hashlib.sha256(b"".join(f"{path}\0{len(data)}\0".encode() + data for path, data in contents.items()))
            return JobFiles(
                manifests=manifests,
                items_by_map={map_name: {_key(path): path for path in shard} for map_name, shard in named.items()},
                size_bytes=max(_size(_compact_json(manifest)) for manifest in manifests),
                digest=digest.hexdigest(),
            )
        too_large = too_large or told[0]
    sizes = {path: _size(_compact_json(_value(content)[1])) for path, content in contents.items()}
    raise SettingsError(_too_large(job_dir, str(too_large), sizes, max_objects))


def _read(job_dir: Path, *, require_entry: bool) -> dict[str, bytes]:
    """Path below the folder -> content, sorted."""
    if not job_dir.is_dir():
        raise SettingsError(f"job_dir {job_dir} is not a folder; give the folder that holds {ENTRY_SCRIPT}")
    files = {path.relative_to(job_dir).as_posix(): path for path in sorted(job_dir.rglob("*")) if _wanted(path, job_dir)}
    if not files:
        raise SettingsError(f"job_dir {job_dir} holds no file; give the folder that holds {ENTRY_SCRIPT}")
    problems = []
    if require_entry and ENTRY_SCRIPT not in files:
        problems.append(f"job_dir {job_dir} holds no {ENTRY_SCRIPT} at its top; give the folder that does")
    keys: dict[str, str] = {}
    for relative in files:
        key = _key(relative)
        if not _KEY.fullmatch(key) or len(key) > 253:
            problems.append(f"job file {relative!r}: a ConfigMap's key may hold letters, digits, '-', '_' and '.' only; rename it")
        elif key in keys:
            problems.append(f"job files {keys[key]!r} and {relative!r} would share the key {key!r}; rename one")
        keys.setdefault(key, relative)
    if problems:
        raise SettingsError(problems)
    return {relative: path.read_bytes() for relative, path in files.items()}


def _key(relative: str) -> str:
    return relative.replace("/", _FOLDER_SEPARATOR)


def _value(content: bytes) -> tuple[str, str]:
    """(field of the ConfigMap, value)."""
    try:
        return "data", content.decode("utf-8")
    except UnicodeDecodeError:
        return "binaryData", base64.b64encode(content).decode("ascii")


def _config_map(name: str, contents: Mapping[str, bytes], namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "data": {},
    }
    for relative, content in contents.items():
        field, value = _value(content)
        manifest.setdefault(field, {})[_key(relative)] = value
    return manifest


def _told_if_too_large(manifest: Mapping[str, Any]) -> str | None:
    text = _compact_json(manifest)
    if _size(text) >= SIZE_LIMIT_BYTES:
        return f"{_size(text):,} bytes, at most {SIZE_LIMIT_BYTES - 1:,} fit"
    if _annotation_size(text) >= ANNOTATION_LIMIT_BYTES:
        return f"{_annotation_size(text):,} bytes as kubectl writes it (<, > and & take six), at most {ANNOTATION_LIMIT_BYTES - 1:,} fit"
    return None


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


def _too_large(job_dir: Path, told: str, sizes: Mapping[str, int], max_objects: int) -> str:
    biggest = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
    listed = ", ".join(f"{path} ({count:,} bytes)" for path, count in biggest)
    spread = f" (spread over {max_objects} it does not fit either)" if max_objects > 1 else ""
    return (
        f"job_dir {job_dir} makes a ConfigMap of {told}{spread}; biggest files: {listed}. "
        f"Move data out of the folder (S3, /fsx), put large files into the image, submit a working directory from S3, or "
        f"deploy a small folder and let `eks-ray-train submit` upload this one"
    )
