"""``train.py`` as a process on a local Ray cluster: started, watched line by line, and what it left when it ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from eks_ray_train.cli.local_ray import LocalCluster

REPO = Path(__file__).resolve().parents[2]
ENDS_WITHIN_S = 900  # a bound, not an expectation: on a busy machine a run ends ten times later than on an idle one
NODE_ENVIRONMENT = {"PYTHONPATH": str(REPO / "job"), "RAY_worker_niceness": "0"}
"""Of the cluster's nodes: Ray gives workers the folder of the driver's script, which for a faulty one is not the job's; and a
niceness of 15, with which they starve on a busy machine."""


@dataclass(frozen=True)
class Finished:
    """What a run of the driver left: exit code, all its event lines and what it printed on stderr."""

    code: int
    events: list[dict[str, Any]]
    stderr: str
    seconds: float

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def losses(self) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.of("step")}

    @property
    def done(self) -> dict[str, Any]:
        (event,) = self.of("done")
        return event


class Driver:
    """A running driver. Both its pipes are read all the time: a full one would stop it, and a line read ahead be lost."""

    def __init__(
        self, cluster: LocalCluster, flags: dict[str, Any], fault: tuple[str, ...] = (), **more: Any
    ) -> None:  # fmt: skip
        script = [str(REPO / "tests/training/faulty_train.py"), *fault] if fault else [str(REPO / "job/train.py")]
        words = [f"--{name}={value}" for name, value in {**flags, **more}.items()]
        env = {**os.environ, **cluster.environment(), "RAY_ADDRESS": cluster.gcs_address, "PYTHONPATH": str(REPO / "job")}
        self.began = time.monotonic()
        self.events: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, *script, *words], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._read, args=(stream, take), daemon=True)
            for stream, take in ((self.process.stdout, self._take), (self.process.stderr, self.stderr.append))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: IO[str], take: Callable[[str], None]) -> None:
        for line in stream:
            with self._changed:
                take(line)
                self._changed.notify_all()

    def _take(self, line: str) -> None:
        if line.startswith('{"event"'):
            self.events.append(json.loads(line))

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for such an event; an error where the driver ends, or much time passes, without one."""
        give_up = time.monotonic() + ENDS_WITHIN_S
        with self._changed:
            while not any(wanted(event) for event in self.events):
                assert self.process.poll() is None, f"the driver ended: {''.join(self.stderr)[-2000:]}"
                assert time.monotonic() < give_up, f"no such event within {ENDS_WITHIN_S} s; last: {self.events[-1:]}"
                self._changed.wait(0.2)

    def until_step(self, step: int) -> None:
        self.until(lambda event: event["event"] == "step" and event["step"] >= step)

    def finish(self) -> Finished:
        """Wait for its end (bounded) and for all that it printed."""
        try:
            code = self.process.wait(timeout=ENDS_WITHIN_S)
        finally:
            self.process.kill()
        for thread in self._threads:
            thread.join(timeout=10)
        return Finished(code, self.events, "".join(self.stderr), time.monotonic() - self.began)


def run(cluster: LocalCluster, flags: dict[str, Any], fault: tuple[str, ...] = (), **more: Any) -> Finished:
    """One driver from start to end."""
    return Driver(cluster, flags, fault, **more).finish()
