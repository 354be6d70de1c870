"""A rank that stops making progress ends the attempt in bounded time, and says who is missing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp_job.events import Sink
from fsdp_job.transport import Evidence

SLOW_PHASES = 10.0
"""How many times the limit a phase may take that waits for storage or a download: setup, evaluation, checkpoint, export."""


PATIENCE_S = 5.0
"""How much longer than the rank that others wait for those others live, in seconds."""


def where_is(thread: int) -> tuple[str, bool]:
    """(innermost place outside torch of a thread of this process, whether it waits for the device or for other ranks).

    A thread inside torch waits: its operations return at once, but for collectives and for reading a result.
    """
    frame = sys._current_frames().get(thread)
    waiting = False
    while frame is not None and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        waiting, frame = True, frame.f_back
    if frame is None:
        return "its end", False
    # Waiting without a Python frame of torch's own: a step's numbers are read by wait(), a save in flight by join().
    waiting = waiting or frame.f_code.co_name in ("wait", "join", "read", "_wait_for_tstate_lock")
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})", waiting


class Watch:
    """A thread beside the loop: tells the sink how far this rank is, keeps its evidence there, and watches for a hang.

    ``beat(step, phase)`` is a rank's sign of life and costs nothing; after ``limit_s`` without one the process records who
    is behind and ends itself, since a thread stuck in a collective cannot be interrupted.
    """

    def __init__(
        self, sink: Sink, evidence: Evidence, *, rank: int, node: str, world_size: int, limit_s: float,
        period_s: float = 1.0, stash_every_s: float = 30.0, end: Callable[[int], None] = os._exit,
    ) -> None:  # fmt: skip
        self._sink, self._evidence = sink, evidence
        self._rank, self._node, self._world = rank, node, world_size
        self._limit_s, self._period_s, self._stash_every_s, self._end = limit_s, period_s, stash_every_s, end
        self._now = (0, "setup", time.monotonic())
        self._allowance_s = limit_s
        self._thread_of_loop = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def beat(self, step: int, phase: str, *, allow: float = 1.0) -> None:
        """A sign of life; ``allow`` stretches the limit for a phase known to be slow (first step with compilation)."""
        self._allowance_s = self._limit_s * allow
        self._now = (step, phase, time.monotonic())

    def stop(self) -> None:
        """End the thread; called when the loop has ended either way."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        sent: tuple[int, str] | None = None
        stashed = 0.0
        while not self._stop.wait(self._period_s):
            step, phase, since = self._now
            if (step, phase) != sent:
                self._sink.progress(self._rank, step, phase)
                sent = (step, phase)
            if step > 0 and time.monotonic() - stashed > self._stash_every_s:
                self._sink.stash("transport", **self._evidence.fields(), final=False)
                stashed = time.monotonic()
            if time.monotonic() - since > self._allowance_s:
                self._give_up(step, phase)
                return

    def _give_up(self, step: int, phase: str) -> None:
        place, waiting = where_is(self._thread_of_loop)
        message = (
            f"rank {self._rank} made no progress for {self._allowance_s:.0f} s in step {step} ({phase}), at {place}; "
            + who_is_behind(self._sink.state()["where"], self._world)
        )
        self._sink.emit("transport", **self._evidence.fields(), final=True)
        self._sink.failure(
            {
                "rank": self._rank, "node": self._node, "time": time.time(), "type": "CollectiveTimeoutError",
                "message": message, "retryable": True, "noise": waiting,
            }
        )  # fmt: skip
        self._sink.flush(10)
        print(message, file=sys.stderr, flush=True)
        if waiting:
            time.sleep(PATIENCE_S)  # the rank that is waited for says more: it must not be ended before it has
        self._end(70)


def who_is_behind(where: dict[int, Any], world_size: int) -> str:
    """Names the ranks that others wait for: never heard of, or at an earlier step than the furthest."""
    silent = [rank for rank in range(world_size) if rank not in where]
    if silent:
        return f"ranks missing: {silent} (never reported)"
    furthest = max(step for step, _, _ in where.values())
    behind = {rank: (step, phase) for rank, (step, phase, _) in sorted(where.items()) if step < furthest}
    if not behind:
        return f"all ranks are at step {furthest}: { ({rank: phase for rank, (_, phase, _) in sorted(where.items())}) }"
    places = ", ".join(f"rank {rank} at step {step} ({phase})" for rank, (step, phase) in behind.items())
    return f"ranks missing: {list(behind)}: {places}, while others wait at step {furthest}"
