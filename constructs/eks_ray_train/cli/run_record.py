"""What a run told about itself in its event lines: kept for the report, the progress line and the final document."""

from __future__ import annotations

import re
import time
from typing import Any

MAX_STEPS = 20_000  # points kept of a curve; beyond, every second one goes
MAX_EVENTS = 5_000  # of every other kind


# What NCCL and its plugin say of themselves at start (NCCL 2.29, aws-ofi-nccl 1.21).
_VERSIONS = {
    "NCCL": re.compile(r"NCCL version ([\w.+-]+)"),
    "aws-ofi-nccl": re.compile(r"aws-ofi-nccl (\d[\w.+-]*)"),
    "libfabric": re.compile(r"Libfabric version (\d[\w.+-]*)", re.IGNORECASE),
}
MAX_NODES = 2_000


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
        kind = event["event"]
        if kind == "step":
            return self._step(event)
        if kind == "config":
            self.config = self.config or event
        elif kind == "done":
            self.done = event
        elif kind == "restart":
            self._restart(event)
        elif kind == "transport":
            self._transport(event)
        elif kind == "bandwidth" and len(self.bandwidth) < MAX_EVENTS:
            self.bandwidth.append(_plain(event))
        elif kind == "checkpoint" and len(self.checkpoints) < MAX_EVENTS:
            self.checkpoints.append(_plain(event))
        return True

    def _step(self, event: dict[str, Any]) -> bool:
        step = event.get("step")
        if not isinstance(step, int) or (self.last and step <= self.last["step"]):
            return False
        if self.first_step_at is None:
            self.first_step_at = time.monotonic()
        self.last = event
        if step % self._stride == 0:
            self.steps.append(_plain(event))
            if len(self.steps) > MAX_STEPS:
                self._stride *= 2
                self.steps = [kept for kept in self.steps if kept["step"] % self._stride == 0]
        return True

    def _restart(self, event: dict[str, Any]) -> None:
        resumed = event.get("step")
        back = bool(self.last) and isinstance(resumed, int) and resumed < self.last["step"]
        if len(self.restarts) < MAX_EVENTS:
            self.restarts.append({**_plain(event), **({"lost_steps": self.last["step"] - resumed} if back else {})})
        if back:
            self.steps = [kept for kept in self.steps if kept["step"] <= resumed]
            self.last = self.steps[-1] if self.steps else {}

    def _transport(self, event: dict[str, Any]) -> None:
        """One rank's evidence: of a node, its ranks, what was loaded there, and the bytes that its interfaces sent."""
        node = str(event.get("node"))
        if node not in self.transports and len(self.transports) >= MAX_NODES:
            return
        entry = self.transports.setdefault(node, {"ranks": [], "versions": {}, "interfaces": {}, "efa": None})
        if event.get("rank") not in entry["ranks"]:
            entry["ranks"].append(event.get("rank"))
        text = "\n".join(line for line in event.get("nccl_lines") or [] if isinstance(line, str))
        for name, pattern in _VERSIONS.items():
            if found := pattern.search(text):
                entry["versions"].setdefault(name, found[1])
        for name, moved in (event.get("interface_bytes") or {}).items():
            if isinstance(moved, dict) and isinstance(moved.get("sent"), int):
                entry["interfaces"][name] = max(entry["interfaces"].get(name, 0), moved["sent"])
        fabric = event.get("fi_info")
        if isinstance(fabric, dict) and fabric.get("domains"):
            entry["efa"] = ", ".join(map(str, fabric["domains"]))

    @property
    def total_steps(self) -> int | None:
        """Steps that the whole run will make, where the job said so."""
        total = self.last.get("steps") or self.config.get("steps")
        return total if isinstance(total, int) else None

    @property
    def steps_done(self) -> int:
        """The highest step reached."""
        return int(self.done.get("steps") or self.last.get("step") or 0)

    @property
    def final_loss(self) -> float | None:
        """Loss of the last step that was told."""
        value = self.done.get("final_loss")
        return value if isinstance(value, int | float) else self.last.get("loss")

    def eta_s(self) -> float | None:
        """Seconds until the last step, from the time of the latest one; None while unknown."""
        total, step_s = self.total_steps, self.last.get("step_s")
        if total is None or not isinstance(step_s, int | float):
            return None
        return max(0.0, (total - self.last["step"]) * step_s)

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "config": _plain(self.config),
            "steps": self.steps,
            "checkpoints": self.checkpoints,
            "restarts": self.restarts,
            "transports": self.transports,
            "bandwidth": self.bandwidth,
            "done": _plain(self.done),
        }


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "event"}
