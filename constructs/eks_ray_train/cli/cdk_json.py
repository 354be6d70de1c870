"""Changes settings inside cdk.json and nothing else: every byte that is not a changed value stays as it is."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from json.decoder import JSONDecoder
from pathlib import Path
from typing import Any

from eks_ray_train.errors import UsageError

PATH = ("context", "eks-ray-train")
_SPACE = " \t\r\n"


def write_settings(path: Path, updates: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Sets ``updates`` in the file's ``eks-ray-train`` block; returns what changed as key -> (old, new).

    Raises UsageError for a file that is missing or is not JSON with such a block.
    """
    try:
        text = path.read_text(encoding="utf-8")
        before = json.loads(text)
        block = before[PATH[0]][PATH[1]]
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; run the command in the folder of cdk.json") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UsageError(f'{path} has no "{PATH[1]}" block under "{PATH[0]}" ({error}); restore it') from None
    changed = {key: (block.get(key), value) for key, value in updates.items() if block.get(key) != value}
    if changed:
        replace_text(path, edit(text, {key: value for key, (_, value) in changed.items()}))
    return changed


def replace_text(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a crash leaves the old one. Its permissions, and a link to it, stay."""
    target = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(target, name)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def edit(text: str, updates: Mapping[str, Any]) -> str:
    """``text`` with the block's members set to ``updates``; new members go to the block's end."""
    start = _find(text, 0, PATH)
    members = _members(text, start)
    inserted = [key for key in updates if key not in members]
    for key, (begin, end) in sorted(members.items(), key=lambda item: -item[1][0]):
        if key in updates:
            text = text[:begin] + json.dumps(updates[key]) + text[end:]
    if inserted:
        spans = _members(text, start)
        last = max((end for _, end in spans.values()), default=start + 1)
        first = min((begin for begin, _ in spans.values()), default=start + 1)
        line = text[text.rfind("\n", 0, first) + 1 : first]
        indent = line[: len(line) - len(line.lstrip())]
        comma = "," if spans else ""
        body = ",".join(f"\n{indent}{json.dumps(key)}: {json.dumps(updates[key])}" for key in inserted)
        text = text[:last] + comma + body + text[last:]
    return text


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _members(text: str, start: int) -> dict[str, tuple[int, int]]:
    """Span of each member's value in the object that begins at ``start``."""
    decoder = JSONDecoder()
    found: dict[str, tuple[int, int]] = {}
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)  # over the colon
        _, end = decoder.raw_decode(text, begin)
        found[key] = (begin, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _find(text: str, at: int, path: tuple[str, ...]) -> int:
    start = _skip(text, at)
    for name in path:
        start = _members(text, start)[name][0]
    return start
