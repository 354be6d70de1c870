"""What the benchmarks make of measured seconds. Pure; bandwidths in GB/s (10^9 bytes a second)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

LEAST_S = 1e-12  # an operation that is said to take less was not measured
Kind = TypeVar("Kind", bound=str)


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Count, median, lowest, highest, and how far these lie apart as a share of the median."""
    if not values:
        return {"count": 0, "median": None, "low": None, "high": None, "spread": None}
    middle = statistics.median(values)
    return {
        "count": len(values), "median": middle, "low": min(values), "high": max(values),
        "spread": (max(values) - min(values)) / middle if middle else None,
    }  # fmt: skip


def bus_factor(world_size: int) -> float:
    """Bus bandwidth of an all-reduce a byte reduced: 2 (n - 1) / n.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    return 2 * (world_size - 1) / world_size


def bandwidths(events: Sequence[Mapping[str, Any]], *, line_gbps: float | None) -> list[dict[str, Any]]:
    """One row a message size: seconds, algorithm and bus bandwidth, share of the node's line rate (Gbit/s; None: not known)."""
    rows = []
    for event in sorted(events, key=lambda e: e["bytes"]):
        seconds = [s for s in event["seconds"] if s and s > LEAST_S]
        factor, size = bus_factor(event["world_size"]), event["bytes"]
        bus = spread([size / s * factor / 1e9 for s in seconds])
        line = line_gbps / 8 if line_gbps else None
        rows.append(
            {
                "bytes": size, "seconds": spread(seconds), "algorithm_gb_s": spread([size / s / 1e9 for s in seconds])["median"], "bus_gb_s": bus,
                "line_rate_share": bus["median"] / line if line and bus["median"] is not None else None,
            }
        )  # fmt: skip
    return rows


def exchanged_bytes(events: Sequence[Mapping[str, Any]]) -> float:
    """Bytes that each node must have sent: of every operation at least (n - 1) / n of the message, n nodes in any order."""
    total = 0.0
    for event in events:
        nodes = max(1, int(event.get("nodes") or 1))
        total += event["bytes"] * event["iterations"] * len(event["seconds"]) * (nodes - 1) / nodes
    return total


def order(kinds: Sequence[Kind], repeats: int) -> list[tuple[int, Kind]]:
    """(repetition, kind): every second repetition backwards, so that a drift of the machine hits all kinds alike."""
    return [(n + 1, kind) for n in range(repeats) for kind in (kinds if n % 2 == 0 else list(reversed(kinds)))]
