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
        size = min(self._most, self._world + max(0, self._free()))
        if size != self._size:
            self._size, self._since = size, self._clock()

    def size(self) -> int | None:
        """How many ranks could run, where these are more, have been for a while, and can share the global batch equally."""
        more = self._size > self._world and self._global_batch % self._size == 0
        return self._size if more and self._clock() - self._since >= STEADY_S else None
