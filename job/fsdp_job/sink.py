"""The sink as a Ray actor on the driver's node, the workers' end of it, and the driver's thread that prints its lines."""

from __future__ import annotations

import json
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fsdp_job import events
from fsdp_job.events import SinkState


def start_sink() -> Any:
    """Start the actor on this node; it asks for no CPU, so that a head without any can hold it. Returns its handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(SinkState).options(num_cpus=0, scheduling_strategy=here, max_concurrency=1).remote()


class ActorSink:
    """A rank's end: calls do not wait for the actor, but for ``state`` and ``flush``."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._last: Any = None

    def emit(self, event: str, **fields: Any) -> None:
        self._last = self.handle.add.remote(events.render(event, **fields, time=events.now()))

    def stash(self, event: str, **fields: Any) -> None:
        self._last = self.handle.stash.remote(events.render(event, **fields, time=events.now()))

    def progress(self, rank: int, step: int, phase: str) -> None:
        self._last = self.handle.progress.remote(rank, step, phase)

    def failure(self, record: dict[str, Any]) -> None:
        self._last = self.handle.failure.remote(record)

    def begin_attempt(self) -> dict[str, Any]:
        return ray.get(self.handle.begin_attempt.remote(), timeout=60)

    def state(self) -> dict[str, Any]:
        return ray.get(self.handle.state.remote(), timeout=60)

    def flush(self, timeout_s: float) -> None:
        """Wait until all that this rank sent has arrived, at most ``timeout_s`` seconds (calls arrive in order)."""
        if self._last is not None:
            ray.wait([self._last], timeout=timeout_s)


class Printer:
    """The driver's thread that prints the sink's lines as they come."""

    def __init__(self, handle: Any, period_s: float = 0.25) -> None:
        self._handle = handle
        self._period_s = period_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.seen: dict[str, Any] = {}  # how far the run is, by the lines so far, for an ending that cannot ask any more
        self._thread = threading.Thread(target=self._run, name="event-printer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                self._drain(timeout_s=30)
            except (RayActorError, GetTimeoutError) as error:
                events.sys.stderr.write(f"events: the sink does not answer ({type(error).__name__})\n")
                if isinstance(error, RayActorError):
                    return

    def _drain(self, timeout_s: float) -> None:
        with self._lock:
            for line in ray.get(self._handle.drain.remote(), timeout=timeout_s):
                events.write_line(line)
                self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            self.seen |= {"last_step": event["step"], "final_loss": event["loss"]}
        elif event["event"] == "config":
            self.seen["attempts"] = self.seen.get("attempts", 0) + 1

    def finish(self, timeout_s: float = 10) -> dict[str, Any]:
        """Print what is left, the evidence of ranks that never said theirs included; returns the sink's state."""
        self._stop.set()
        self._drain(timeout_s)
        for line in ray.get(self._handle.leftover.remote(), timeout=timeout_s):
            events.write_line(line)
        return ray.get(self._handle.state.remote(), timeout=timeout_s)
