"""Changes settings inside cdk.json and nothing else: every byte that is not a changed value stays as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.decoder import JSONDecoder
from pathlib import Path
from typing import Any

from eks_ray_train.errors import EksRayTrainError, UsageError

PATH = ("context", "eks-ray-train")
_SPACE = " \t\r\n"
# Windows' editors begin a UTF-8 file with it; settings.py and the CDK read such a file, so it is no fault here either.
_BOM = "\ufeff"


@dataclass(frozen=True)
class Spelled:
    """A member's value as a file spelled it, to the byte; ``None``: the file had no such member."""

    text: str | None


def read_text(path: Path) -> str:
    """The file as it is, byte order mark and line ends too. Raises UsageError where it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:  # newline="": CRLF must not become LF
            return file.read()
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; run the command in the folder of cdk.json") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; make it a readable file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 ({error}); store it as UTF-8") from None


def write_settings(path: Path, updates: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Sets ``updates`` in the file's ``eks-ray-train`` block; returns what changed as key -> (old, new).

    Raises UsageError for a file that is missing, is not JSON with such a block, or cannot be written.
    """
    text = read_text(path)
    block = _block(path, text)
    changed = {key: (block.get(key), value) for key, value in updates.items() if _differs(block, key, value)}
    if changed:
        replace_text(path, edit(text, {key: value for key, (_, value) in changed.items()}))
    return changed


@dataclass
class Changes:
    """What one run wrote into the file, to be put back without what somebody else wrote there meanwhile."""

    path: Path
    _written: dict[str, tuple[Spelled, Any]] = field(default_factory=dict)  # key -> as it was before, as written

    def write(self, updates: Mapping[str, Any]) -> None:
        """``write_settings``, remembered. Raises as that does."""
        text = read_text(self.path)
        before = _block(self.path, text)
        spelled = {key: text[begin:end] for key, (_, begin, end) in _members(text, _find(text, PATH)).items()}
        for key, (_, new) in write_settings(self.path, updates).items():
            old = Spelled(spelled.get(key))
            if key in self._written and before.get(key) == self._written[key][1]:
                old = self._written[key][0]  # this run's own value: what was there before the run is older
            self._written[key] = (old, new)

    def put_back(self) -> None:
        """The old values, where the file still holds what ``write`` wrote: any other value is somebody's edit."""
        block = _block(self.path, read_text(self.path))
        mine = {key: old for key, (old, new) in self._written.items() if key in block and block[key] == new}
        write_settings(self.path, mine)
        self._written.clear()


def check_move(old: str | None, new: str, cloudformation: Callable[[str], Any]) -> None:
    """Raises UsageError where ``region`` would go from ``old`` to ``new`` while stacks stand in ``old``.

    `down` and `up` look only in the region of cdk.json: the stacks would cost money unseen, and `up` would deploy
    a second cluster. Where they cannot be read, that is said, and the change goes on.
    """
    from .aws_session import aws_errors
    from .consent import note
    from .stack_state import read_stacks

    if not old or old == new:
        return
    try:
        with aws_errors("cloudformation:DescribeStacks"):
            standing = [state for state in read_stacks(cloudformation(old)).values() if state.stands]
    except EksRayTrainError as error:
        note(
            f"region goes from {old} to {new}; whether stacks of this app stand in {old} was not checked ({error}): "
            f"see for yourself, since `eks-ray-train down` then looks in {new} only"
        )
        return
    if standing:
        raise UsageError(
            f"{', '.join(map(str, standing))} in {old}: with region {new} in cdk.json neither `eks-ray-train down` nor "
            "`up` would find them; run `eks-ray-train down` first (cdk.json is as it was)"
        )


def replace_text(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a crash leaves the old one. Its permissions, and a link to it, stay.

    Raises UsageError where it cannot be written.
    """
    target = path.resolve()
    try:
        _replace(target, text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}) and is as it was; make the folder {target.parent} "
            "writable and its disk not full, and run the command again"
        ) from None


def _replace(target: Path, text: str) -> None:
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
    for key, value in updates.items():
        text = _set(text, key, value)
    return text


def _set(text: str, key: str, value: Any) -> str:
    new = value.text if isinstance(value, Spelled) else json.dumps(value)
    start = _find(text, PATH)
    members = _members(text, start)
    if new is None:
        return _without(text, start, members, key)
    if key in members:
        _, begin, end = members[key]
        return text[:begin] + new + text[end:]
    last = max((end for *_, end in members.values()), default=start + 1)
    first = min((begin for _, begin, _ in members.values()), default=start + 1)
    line = text[text.rfind("\n", 0, first) + 1 : first]
    indent = line[: len(line) - len(line.lstrip())]
    found = re.search(r"\r?\n", text)
    line_end = found[0] if found else "\n"
    return f"{text[:last]}{',' if members else ''}{line_end}{indent}{json.dumps(key)}: {new}{text[last:]}"


def _without(text: str, start: int, members: dict[str, tuple[int, int, int]], key: str) -> str:
    """The exact reverse of an insertion: what is between the member before and the member's end goes."""
    if key not in members:
        return text
    at, _, end = members[key]
    before = [e for *_, e in members.values() if e <= at]
    after = [a for a, *_ in members.values() if a >= end]
    if before or not after:
        return text[: max(before, default=start + 1)] + text[end:]
    return text[:at] + text[min(after) :]


def _block(path: Path, text: str) -> dict[str, Any]:
    try:
        block = json.loads(text.removeprefix(_BOM))[PATH[0]][PATH[1]]
        if not isinstance(block, dict):
            raise TypeError(f"it is {json.dumps(block)[:50]}, not an object")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f'{path} has no "{PATH[1]}" block under "{PATH[0]}" ({error}); restore it') from None
    return block


def _differs(block: Mapping[str, Any], key: str, value: Any) -> bool:
    if not isinstance(value, Spelled):
        return bool(block.get(key) != value)
    return key in block if value.text is None else key not in block or bool(block[key] != json.loads(value.text))


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _members(text: str, start: int) -> dict[str, tuple[int, int, int]]:
    """Of each member of the object that begins at ``start``: where its key begins, its value begins and ends."""
    decoder = JSONDecoder()
    found: dict[str, tuple[int, int, int]] = {}
    at = _skip(text, start + 1)
    while text[at] != "}":
        name_at = at
        key, at = decoder.raw_decode(text, at)
        begin = _skip(text, _skip(text, at) + 1)  # over the colon
        _, end = decoder.raw_decode(text, begin)
        found[key] = (name_at, begin, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def _find(text: str, path: tuple[str, ...]) -> int:
    start = _skip(text, len(_BOM) if text.startswith(_BOM) else 0)
    for name in path:
        start = _members(text, start)[name][1]
    return start


def check_changeable(path: Path, folder: str) -> None:
    """Raises UsageError where ``write_settings`` would fail: told before anybody pays or waits. ``folder``: its name in messages."""
    from .writable import check_writable

    write_settings(path, {})  # reads it as the write will
    # A new file takes the old one's place, so the folder decides.
    check_writable(path.resolve().parent, folder, folder=True)
