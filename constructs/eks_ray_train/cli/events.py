"""Reads what a job writes on its log: event lines (one JSON object each) and the prefixes that Ray puts before others.

The writer is ``job/fsdp_job/events.py``; tests hold both against each other.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

EVENTS = frozenset({"config", "step", "checkpoint", "restart", "transport", "bandwidth", "done"})
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html
_PREFIX = re.compile(r"^\((?P<actor>[\w.:\- ]+?) ?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?")


@dataclass(frozen=True)
class Line:
    """One log line without colours: which process said it (None: the driver itself) and what."""

    text: str
    actor: str | None = None
    pid: int | None = None
    ip: str | None = None

    @property
    def source(self) -> tuple[str | None, int | None]:
        """Who said it, for putting the lines of one process together."""
        return self.ip, self.pid


def split_line(raw: str) -> Line:
    """Take colours and Ray's prefix off a line."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if text.startswith("(") and (match := _PREFIX.match(text)):
        return Line(text[match.end() :], match["actor"], int(match["pid"]), match["ip"])
    return Line(text)


def parse_event(raw: str) -> dict[str, Any] | None:
    """The event that a line carries, or None. Never raises: a line cut off in the middle is no event."""
    if '"event"' not in raw:
        return None
    text = split_line(raw).text.strip()
    if not text.startswith("{"):
        return None
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return data if isinstance(data, dict) and data.get("event") in EVENTS else None
