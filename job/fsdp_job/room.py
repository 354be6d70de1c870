"""Room for more ranks: an elastic run that lost nodes takes others in right after a checkpoint, so that no step is done twice.

Ray would resize a running group by itself, once a minute, and the steps since the last checkpoint would be done again: all of them
where there is none yet. So that is switched off (``NO_RESIZE_S``); the attempt ends in order, and the driver begins the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEADY_S = 25.0
"""Seconds that room must have been seen. Ray's own picture of the cluster is up to 20 s old (TICK_INTERVAL_S in
ray/data/_internal/cluster_autoscaler/default_autoscaling_coordinator.py), and an attempt begun before would get no more ranks."""

NO_RESIZE_S = 1e9
"""``elastic_resize_monitor_interval_s`` of Ray Train's ScalingConfig: thirty years."""


def fitting(available: int, global_batch: int) -> int:
    """The largest number of ranks, at most ``available``, that share ``global_batch`` sequences equally; 0 where none is available."""
    return next((n for n in range(available, 0, -1) if global_batch % n == 0), 0)


class Room:
    """Of one attempt, on rank 0: ``world`` ranks run, ``most`` were asked for, ``free()`` says how many more could be placed now."""

    def __init__(
        self, *, world: int, most: int, global_batch: int, free: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._world, self._most, self._global_batch = world, most, global_batch
        self._free, self._clock = free, clock
        self._size = world
        self._since = 0.0

    def look(self) -> None:
        """Ask how many ranks could run; a changed answer begins the time of ``STEADY_S`` anew."""
        size = fitting(min(self._most, self._world + max(0, self._free())), self._global_batch)
        if size != self._size:
            self._size, self._since = size, self._clock()

    def size(self) -> int | None:
        """How many ranks could run and share the global batch equally, where these are more and have been for a while."""
        steady = self._clock() - self._since >= STEADY_S
        return self._size if self._size > self._world and steady else None
