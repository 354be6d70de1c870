"""Why a job failed, in a few lines: the rank that raised first, with its node, above the noise of those that waited for it."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

from .events import Line

# Ray Train names each worker once (ray/train/v2/_internal/execution/worker_group/worker_group.py, Ray 2.58).
_WORKER = re.compile(r"\(ip=(?P<ip>[\w.:]+), pid=(?P<pid>\d{1,10})\) world_rank=(?P<rank>\d{1,10})")
_RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Stop|Failure)\w*)(?:: (?P<text>.*))?$")
# What the others say when one rank has gone: they lost touch with it.
ECHO = re.compile(
    r"Connection (?:closed|reset)|Broken pipe|NCCL|ncclSystemError|gloo|Timed out waiting|connectFullMesh|DistBackendError"
    r"|Watchdog|SIGABRT|store->get|ActorDied|WorkerGroupError|TrainingFailedError|RayTaskError|recvBytes",
    re.IGNORECASE,
)
MAX_TRACE = 40  # lines kept of one traceback
MAX_SOURCES = 256  # processes whose traceback is being read at once
MAX_FOUND = 64


class FailureFinder:
    """Feed every line of the log; ask ``summary`` at the end. Bounded memory."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], int] = {}
        self._open: OrderedDict[tuple[str | None, int | None], list[str]] = OrderedDict()
        self._found: list[tuple[Line, list[str]]] = []
        self._done_error: dict[str, Any] | None = None

    def feed_event(self, event: dict[str, Any]) -> None:
        """An event line: the job's own ``done`` knows best which rank failed first."""
        if event["event"] == "done":
            error = event.get("error")
            self._done_error = error if isinstance(error, dict) else None

    def feed(self, line: Line) -> None:
        """Any other line, its prefix taken off."""
        text = line.text
        if "world_rank=" in text and (match := _WORKER.search(text)):
            if len(self._ranks) < 65_536:
                self._ranks[match["ip"], int(match["pid"])] = int(match["rank"])
            return
        if text.startswith("Traceback (most recent call last)"):
            self._open[line.source] = [text]
            while len(self._open) > MAX_SOURCES:
                self._open.popitem(last=False)
            return
        trace = self._open.get(line.source) if self._open else None
        if trace is None:
            return
        if len(trace) >= MAX_TRACE:
            del trace[1 : MAX_TRACE // 2]
        trace.append(text[:2000])
        if text and not text[0].isspace():
            del self._open[line.source]
            if _RAISED.match(text) and len(self._found) < MAX_FOUND:
                self._found.append((line, trace))

    def summary(self) -> str | None:
        """Who raised first and what, or None where the log shows no exception."""
        trace = self._first()
        if self._done_error:
            error = self._done_error
            rank, node = error.get("rank"), error.get("node")
            who = f"rank {rank}" + (f" on node {node}" if node else "") + " failed first: " if rank is not None else ""
            head = f"{who}{error.get('type', 'error')}: {error.get('message', '')}".strip()
            own = trace is not None and self._rank_of(trace[0]) == rank and rank is not None
            return head + ("\n" + _indent(trace[1]) if own and trace else "")
        if trace is None:
            return None
        line, lines = trace
        return f"{self._who(line)} raised first: {lines[-1]}\n{_indent(lines)}"

    def _first(self) -> tuple[Line, list[str]] | None:
        """The first exception that is no echo: of a rank, else of a Train worker, the driver, any process of Ray's."""
        kinds = (
            lambda line: self._rank_of(line) is not None,
            lambda line: line.actor is not None and "TrainWorker" in line.actor,
            lambda line: line.pid is None,
            lambda line: True,
        )
        for echo in (False, True):
            for kind in kinds:
                for line, trace in self._found:
                    if kind(line) and (echo or not ECHO.search(trace[-1])):
                        return line, trace
        return None

    def _rank_of(self, line: Line) -> int | None:
        if line.pid is None:
            return None
        if line.ip is not None:
            return self._ranks.get((line.ip, line.pid))
        # Ray leaves the address out for workers on the driver's node.
        return next((rank for (_, pid), rank in self._ranks.items() if pid == line.pid), None)

    def _who(self, line: Line) -> str:
        if line.pid is None:
            return "the driver"
        rank = self._rank_of(line)
        name = f"rank {rank}" if rank is not None else f"{line.actor or 'worker'} pid {line.pid}"
        node = line.ip or next((ip for (ip, pid) in self._ranks if pid == line.pid), None)
        return f"{name} on node {node}" if node else name


def _indent(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)
