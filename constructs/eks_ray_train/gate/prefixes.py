"""What launchers, Ray and log collectors put around a line: read off, so that NCCL's own text is left. Pure.

Only what can be told apart for certain is known here. Behind anything else a statement does not count as evidence, since a
program that quotes a line of NCCL's looks the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from eks_ray_train.gate import patterns as p

_MAX_WRAPPED_BYTES = 1 << 20
_ACTOR_DETAIL = re.compile(r"[(\[<{].*|[\d_\-# ]+", re.DOTALL)
_ENTRY_TEXT = ("log", "message")
_ENTRY_REST = {"stream", "time", "timestamp", "@timestamp", "date", "kubernetes"}
"""What Docker's, fluent-bit's and Vector's entries hold besides the line: a program's own JSON with a "log" is none of them."""


@dataclass(slots=True)
class Prefix:
    """What stands before NCCL's own text: who, by Ray or mpirun, and where that text begins (``end``)."""

    end: int = 0
    ip: str | None = None
    pid: int | None = None
    ray: bool = False
    actor: str = ""
    """Name of the Ray actor's class or task, without what tells one actor from the next; empty where Ray gives none."""
    mpi_rank: int | None = None

    @property
    def speaker(self) -> tuple[str, str | None, int] | None:
        """The Ray process: (class of actor, address, pid)."""
        return (self.actor, self.ip, self.pid) if self.ray and self.pid is not None else None


def strip_colour(line: bytes) -> bytes:
    """The line without terminal escapes and without NULs."""
    if b"\x00" in line:
        line = line.replace(b"\x00", b"")
    return p.ANSI.sub(b"", line) if b"\x1b" in line or b"m(" in line or b"[0m" in line else line


def read_prefix(line: bytes) -> Prefix:
    """Walk over the prefixes that launchers, Ray and log collectors put before a line."""
    found = Prefix()
    while match := p.TOKEN.match(line, found.end):
        if match.end() == found.end:
            break
        found.end = match.end()
        if match["mpi"]:
            found.mpi_rank = int(match["mpi"][:9])
        elif match["pid"]:
            found.ray, found.pid = True, int(match["pid"][:12])
            found.ip = match["ip"].decode("ascii", "replace") if match["ip"] else None
            found.actor = _ACTOR_DETAIL.sub("", (match["actor"] or b"").decode("utf-8", "replace"))[:64]
    return found


def unwrapped(line: bytes) -> list[bytes] | None:
    """The lines inside a JSON entry of a log collector (Docker's json-file, fluent-bit, Vector); None where it is none."""
    begin = line.find(b"{")
    if begin < 0 or len(line) > _MAX_WRAPPED_BYTES or not (b'"log"' in line or b'"message"' in line):
        return None
    if begin and read_prefix(line).end != begin:
        return None
    try:
        entry = json.loads(line[begin:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not _ENTRY_REST & entry.keys():
        return None
    text = next((entry[key] for key in _ENTRY_TEXT if isinstance(entry.get(key), str)), None)
    return None if text is None else text.encode("utf-8", "replace").replace(b"\r", b"\n").split(b"\n")
