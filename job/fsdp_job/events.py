"""The one writer of event lines: one JSON object a line on the driver's stdout, each with an ``event`` name.

Workers hand their events to a sink on the driver's node and the driver prints them. Printed by the workers themselves
they would pass Ray's log monitor, which prefixes lines, folds similar ones together and may lose the last ones when the
driver ends. The sink also keeps what a rank that dies cannot say any more: its last transport evidence, how far it was,
and which rank failed first.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any, Protocol

EVENTS = ("config", "step", "checkpoint", "restart", "transport", "bandwidth", "done")


def render(event: str, **fields: Any) -> str:
    """One event as a line of strict JSON (NaN and infinity, which JSON lacks, become null)."""
    if event not in EVENTS:
        raise ValueError(f"unknown event {event!r}; known: {', '.join(EVENTS)}")
    return json.dumps({"event": event, **{key: _plain(value) for key, value in fields.items()}}, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | bool) or value is None:
        return value
    return str(value)


def now() -> float:
    """An event's ``time``: seconds since 1970 by this machine's clock, to the millisecond."""
    return round(time.time(), 3)


def write_line(line: str) -> None:
    """Put one line on stdout, at once and in one piece."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Sink(Protocol):
    """Where a rank sends what others must know."""

    def emit(self, event: str, **fields: Any) -> None: ...
    def stash(self, event: str, **fields: Any) -> None: ...
    def progress(self, rank: int, step: int, phase: str) -> None: ...
    def failure(self, record: dict[str, Any]) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def begin_attempt(self) -> dict[str, Any]: ...
    def flush(self, timeout_s: float) -> None: ...


class SinkState:
    """What a sink holds; lives in an actor beside the driver (``fsdp_job.sink``) or, in tests, in this process."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.stashed: dict[int, str] = {}
        self.said: set[int] = set()
        self.where: dict[int, tuple[int, str, float]] = {}
        self.failures: list[dict[str, Any]] = []
        self.attempts = 0
        self.final_loss: float | None = None
        self.last_step = 0

    def add(self, line: str) -> None:
        self.lines.append(line)
        data = json.loads(line)
        if data["event"] == "transport":
            self.said.add(int(data["rank"]))
        elif data["event"] == "step":
            self.last_step, self.final_loss = data["step"], data["loss"]

    def stash(self, line: str) -> None:
        """Keep a rank's latest evidence; it is printed at the end unless the rank says more itself."""
        self.stashed[int(json.loads(line)["rank"])] = line

    def progress(self, rank: int, step: int, phase: str) -> None:
        self.where[rank] = (step, phase, time.time())

    def failure(self, record: dict[str, Any]) -> None:
        self.failures.append({**record, "attempt": self.attempts})

    def begin_attempt(self) -> dict[str, Any]:
        """Called by rank 0 of each attempt: forgets the ranks of the last one.

        What they had stashed goes out first, before the ``restart`` event: later it would look like an answer of this attempt,
        which may have fewer ranks on fewer nodes.
        """
        self.attempts += 1
        self.where.clear()
        self.lines += self.leftover()
        self.stashed.clear()
        self.said.clear()
        return self.state()

    def state(self) -> dict[str, Any]:
        return {
            "attempts": self.attempts,
            "failures": list(self.failures),
            "where": dict(self.where),
            "last_step": self.last_step,
            "final_loss": self.final_loss,
        }

    def drain(self) -> list[str]:
        out, self.lines = self.lines, []
        return out

    def leftover(self) -> list[str]:
        """The stashed evidence of ranks that never said theirs."""
        return [line for rank, line in sorted(self.stashed.items()) if rank not in self.said]


class LocalSink:
    """Prints at once in this process: for torchrun and for tests of the loop without Ray."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.held = SinkState()
        self.quiet = quiet
        self.history: list[dict[str, Any]] = []

    def emit(self, event: str, **fields: Any) -> None:
        line = render(event, **fields, time=now())
        self.held.add(line)
        self.history.append(json.loads(line))
        if not self.quiet:
            write_line(line)

    def stash(self, event: str, **fields: Any) -> None:
        self.held.stash(render(event, **fields, time=now()))

    def progress(self, rank: int, step: int, phase: str) -> None:
        self.held.progress(rank, step, phase)

    def failure(self, record: dict[str, Any]) -> None:
        self.held.failure(record)

    def begin_attempt(self) -> dict[str, Any]:
        return self.held.begin_attempt()

    def state(self) -> dict[str, Any]:
        return self.held.state()

    def flush(self, timeout_s: float) -> None:
        """Nothing is in flight: every line was written when it was emitted."""
