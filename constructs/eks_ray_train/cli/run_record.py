"""What a run told about itself in its event lines: kept for the report, the progress line and the final document.

What a field holds is looked at here, once: a value of a wrong kind is as good as absent (None).
"""

from __future__ import annotations

import re
import time
from typing import Any

from .events import number, whole

MAX_STEPS = 20_000  # points kept of a curve; beyond, every second one goes
MAX_EVENTS = 5_000  # of every other kind


# What NCCL and its plugin say of themselves at start (NCCL 2.29, aws-ofi-nccl 1.21).
_VERSIONS = {
    "NCCL": re.compile(r"NCCL version ([\w.+-]+)"),
    "aws-ofi-nccl": re.compile(r"aws-ofi-nccl (\d[\w.+-]*)"),
    "libfabric": re.compile(r"Libfabric version (\d[\w.+-]*)", re.IGNORECASE),
}
MAX_NODES = 2_000
_COUNTS = ("step", "steps", "nodes", "world_size", "iterations")
_TIMES = ("step_s", "data_wait_s", "blocking_seconds")
LONGEST_S = 1e12  # no step takes 30,000 years, and none less than no time: sums of what is left are finite and go forward


class RunRecord:
    """Feed events in order. A step told twice counts once; after a restart the steps go back to where it resumed."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.restarts: list[dict[str, Any]] = []
        self.done: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.bandwidth: list[dict[str, Any]] = []
        self.transports: dict[str, dict[str, Any]] = {}
        self.first_step_at: float | None = None
        self._stride = 1

    def feed(self, event: dict[str, Any]) -> bool:
        """Take one event in; False for one that was told before."""
        kind, told = event["event"], _told(event)
        if kind == "step":
            return self._step(told)
        if kind == "config":
            self.config = self.config or told
        elif kind == "done":
            self.done = told
        elif kind == "restart":
            self._restart(told)
        elif kind == "transport":
            self._transport(told)
        elif kind == "bandwidth" and len(self.bandwidth) < MAX_EVENTS and _is_measured(told):
            self.bandwidth.append(told)
        elif kind == "checkpoint" and len(self.checkpoints) < MAX_EVENTS:
            self.checkpoints.append(told)
        return True

    def _step(self, event: dict[str, Any]) -> bool:
        step = event.get("step")
        if step is None or (self.last and step <= self.last["step"]):
            return False
        if self.first_step_at is None:
            self.first_step_at = time.monotonic()
        self.last = event
        if step % self._stride == 0:
            self.steps.append(event)
            if len(self.steps) > MAX_STEPS:
                self._stride *= 2
                self.steps = [kept for kept in self.steps if kept["step"] % self._stride == 0]
        return True

    def _restart(self, event: dict[str, Any]) -> None:
        resumed = event.get("step")
        event.pop("lost_steps", None)  # counted here, whatever the job says
        back = resumed is not None and bool(self.last) and resumed < self.last["step"]
        if back:
            event["lost_steps"] = self.last["step"] - resumed
        if len(self.restarts) < MAX_EVENTS:
            self.restarts.append(event)
        if back:
            self.steps = [kept for kept in self.steps if kept["step"] <= resumed]
            self.last = self.steps[-1] if self.steps else {}

    def _transport(self, event: dict[str, Any]) -> None:
        """One rank's evidence: of a node, its ranks, what was loaded there, and the bytes that its interfaces sent."""
        node = str(event.get("node"))
        if node not in self.transports and len(self.transports) >= MAX_NODES:
            return
        entry = self.transports.setdefault(node, {"ranks": [], "versions": {}, "interfaces": {}, "efa": None})
        rank, lines, moved_by = whole(event.get("rank")), event.get("nccl_lines"), event.get("interface_bytes")
        if rank is not None and rank not in entry["ranks"]:
            entry["ranks"].append(rank)
        text = "\n".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
        for name, pattern in _VERSIONS.items():
            if found := pattern.search(text):
                entry["versions"].setdefault(name, found[1])
        for name, moved in (moved_by if isinstance(moved_by, dict) else {}).items():
            if isinstance(moved, dict) and (sent := whole(moved.get("sent"))) is not None:
                entry["interfaces"][name] = max(entry["interfaces"].get(name, 0), sent)
        fabric = event.get("fi_info")
        domains = fabric.get("domains") if isinstance(fabric, dict) else None
        if isinstance(domains, list) and domains:
            entry["efa"] = ", ".join(map(str, domains))

    @property
    def total_steps(self) -> int | None:
        """Steps that the whole run will make, where the job said so."""
        total = whole(self.last.get("steps")) or whole(self.config.get("steps"))
        return total if total and total >= self.last.get("step", 0) else None

    @property
    def steps_done(self) -> int:
        """The highest step reached."""
        return whole(self.done.get("steps")) or whole(self.last.get("step")) or 0

    @property
    def final_loss(self) -> float | None:
        """Loss of the last step that was told."""
        value = number(self.done.get("final_loss"))
        return value if value is not None else number(self.last.get("loss"))

    def eta_s(self) -> float | None:
        """Seconds until the last step, from the time of the latest one; None while unknown."""
        total, step_s = self.total_steps, number(self.last.get("step_s"))
        if total is None or step_s is None:
            return None
        return number(max(0.0, (total - self.last.get("step", 0)) * step_s))

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "config": self.config,
            "steps": self.steps,
            "checkpoints": self.checkpoints,
            "restarts": self.restarts,
            "transports": self.transports,
            "bandwidth": self.bandwidth,
            "done": self.done,
        }


def _told(event: dict[str, Any]) -> dict[str, Any]:
    """A copy of the event's fields, in which counts are counts and times are times, or None."""
    told = {key: value for key, value in event.items() if key != "event"}
    for name in told.keys() & set(_COUNTS):
        told[name] = whole(told[name])
    for name in told.keys() & set(_TIMES):
        if (seconds := number(told[name])) is None or not 0 <= seconds <= LONGEST_S:
            told[name] = None
    return told


def _is_measured(told: dict[str, Any]) -> bool:
    """Whether a ``bandwidth`` event has what the benchmark reckons with."""
    seconds = told.get("seconds")
    return (
        bool(whole(told.get("bytes")) and told.get("world_size"))
        and told.get("iterations") is not None
        and isinstance(seconds, list)
        and all(value is None or number(value) is not None for value in seconds)
    )
