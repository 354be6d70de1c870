"""Reads what a job writes on its log: event lines (one JSON object each) and the prefixes that Ray puts before others.

The writer is ``job/fsdp_job/events.py``; tests hold both against each other. A user's own script may print events too, with
anything in any field: what is read here must never end the command that follows the run.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, cast

EVENTS = frozenset({"config", "step", "checkpoint", "restart", "transport", "bandwidth", "done"})
MAX_DEPTH = 32  # of a value inside an event; what lies deeper is left out, since Python gives up at about 1000
MOST_WHOLE = 2**53  # above it neighbouring whole numbers are the same number to a chart and to most readers of JSON
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# https://docs.ray.io/en/latest/ray-observability/user-guides/configure-logging.html
_PREFIX = re.compile(r"^\((?P<actor>[\w.:\- ]+?) ?pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:]+))?\) ?")


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
    """The event that a line carries, as ``plain`` leaves it, or None. Never raises: a line cut off in the middle is no event."""
    if '"event"' not in raw:
        return None
    text = split_line(raw).text.strip()
    if not text.startswith("{"):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(kind := data.get("event"), str) or kind not in EVENTS:
        return None
    return cast("dict[str, Any]", plain(data))


def number(value: Any) -> float | None:
    """A finite number, or None: also for a whole number that is too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: Any) -> int | None:
    """A count: a whole number from 0 to ``MOST_WHOLE``, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_WHOLE else None


def plain(value: Any, *, depth: int = MAX_DEPTH) -> Any:
    """``value`` as strict JSON and UTF-8 can say it: None for NaN and infinity, ``?`` for half of a surrogate pair."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if number(value) is not None else None
    if isinstance(value, dict):
        return {plain(key): plain(item, depth=depth - 1) for key, item in value.items()} if depth else None
    if isinstance(value, list | tuple):
        return [plain(item, depth=depth - 1) for item in value] if depth else None
    return value
